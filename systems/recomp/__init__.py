"""RECOMP: passages shortened to chosen sentences or to a written summary."""
