"""Selective-Context: passages without the units that a language model expects anyway."""
