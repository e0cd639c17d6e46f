"""Verifiers: they say of single steps whether a search was needless and whether a statement holds; one a file."""
