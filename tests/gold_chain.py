"""A question of two hops with its gold reasoning and passages, for tests of what judges by them."""

from __future__ import annotations

from envs.types import Document, Gold, GoldStep, Question

# Gold reasoning: the novel's author (passage A), then the author's birthplace (passage B).
A, B = Document("a", "The Novel", "By Ada Byron."), Document("b", "Ada Byron", "Born in Rome.")
OTHER = Document("c", "Else", "Nothing.")
MUSIQUE = Question(
    "m",
    "Where was the author of The Novel born?",
    ("Rome",),
    Gold(
        steps=(GoldStep("The Novel >> author", "Ada Byron", ("a",)), GoldStep("Where was #1 born?", "Rome", ("b",))),
        documents=("a", "b"),
        titles=("The Novel", "Ada Byron"),
    ),
)
