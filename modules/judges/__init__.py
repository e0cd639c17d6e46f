"""Judges of sibling steps, one a file; none of them knows how the siblings were found."""
