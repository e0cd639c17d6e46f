"""A trained agent as a folder that leaves the suite: the model, how it is asked, and a card."""
