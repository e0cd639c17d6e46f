"""Judges of steps, one a file; none of them knows how the steps were found."""
