"""Teachers over real data: a plan of sub-questions, sub-answers and thoughts, carried out turn by turn."""
