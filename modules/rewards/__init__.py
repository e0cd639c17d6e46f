"""Rewards: what an episode, or each of its steps, is worth. One a file; `combine` adds them up."""
