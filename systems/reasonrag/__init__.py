"""ReasonRAG (arXiv 2505.14069): a tree search prefers turns, and DPO learns from them."""
