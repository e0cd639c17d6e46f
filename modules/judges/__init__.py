"""Judges of steps, one a file. A judge does not depend on how the steps were sampled."""
