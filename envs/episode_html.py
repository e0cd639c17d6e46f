"""An episode as a notebook shows it: question, a row a step, answer."""

from __future__ import annotations

from common.html_table import html_table
from envs.types import Episode, Hit


def episode_html(episode: Episode) -> str:
    """A table of the steps, or of the turns where the episode is not over; texts are escaped."""
    rows = [
        (number, step.kind, "" if step.valid else "not valid", step.said or step.text, _titles(step.hits))
        for number, step in enumerate(episode.steps, 1)
    ] or [
        (number, turn.action.kind, "", turn.text or turn.action.text, _titles(turn.hits))
        for number, turn in enumerate(episode.turns, 1)
    ]
    gold = " / ".join(answer for answer in episode.question.answers if answer)
    ended = [("", "answer", episode.status or "not over", episode.error or episode.answer, gold and f"gold: {gold}")]
    return html_table(episode.question.text, ("", "step", "", "text", "found"), [*rows, *ended])


def _titles(hits: tuple[Hit, ...]) -> str:
    return "; ".join(hit.document.title for hit in hits)
