"""Step scorers to compare a reward model with: bounds from above and below."""
