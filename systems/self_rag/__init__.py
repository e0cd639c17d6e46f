"""Self-RAG: a policy that says when to retrieve and how good passages and its own sentences are, by tokens."""
