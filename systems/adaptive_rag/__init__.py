"""Adaptive-RAG: a classifier chooses between no retrieval, one, and many, question by question."""
