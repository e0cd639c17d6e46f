"""Retrievers: BM25 and dense in-process, or any of them behind HTTP."""
