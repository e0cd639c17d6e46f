"""Iterations of GRPO in the suite and in TRL: sampling, update and the whole, on the same work."""
