"""Auto-RAG: a dialogue with the retriever, in which the model decides when it knows enough."""
