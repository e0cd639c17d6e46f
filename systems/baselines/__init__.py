"""Inference methods without training of their own, one a file."""
