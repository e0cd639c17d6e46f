"""Retrievers: in this process, behind HTTP, in engines and of the web; several fused, or reranked."""
