"""SIRAG (arXiv 2509.18167): two agents and a generator, trained together with one critic."""
