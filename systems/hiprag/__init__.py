"""HiPRAG (arXiv 2510.07794): a policy is paid for searching just where it must."""
