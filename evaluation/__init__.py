"""Scores of episodes, statistics over questions and seeds, step ranking, and pages of finished runs."""
