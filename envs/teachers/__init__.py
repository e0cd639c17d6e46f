"""Teachers over real data: a plan of sub-questions, sub-answers and thoughts, played turn by turn."""
