"""Search-R1 (arXiv 2503.09516): a policy thinks, searches and answers, and is paid for the answer."""
