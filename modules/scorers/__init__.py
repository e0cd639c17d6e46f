"""Step scorers beside the reward model: what bounds it from above and from below."""
