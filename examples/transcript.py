"""Episodes as lines for a terminal: steps with one line a passage, answers, sources."""

from __future__ import annotations

from collections.abc import Sequence

from common.plain_text import one_line
from envs.types import Document, Episode, Step

_WIDTH = 100


def step_lines(number: int, step: Step) -> list[str]:
    """A step: what was written, and each passage that it found on one line."""
    said = one_line(step.said) if step.spans else ""
    lines = [f"Step {number}: {step.kind}{'' if step.valid else ' (not valid)'}", *([f"  {said}"] if said else [])]
    for hit in step.hits:
        score = "" if hit.score is None else f"{hit.score:8.3f}  "
        fate = "" if step.kept is None else "kept     " if hit.document.id in step.kept else "dropped  "
        source, title, text = map(one_line, (hit.document.id, hit.document.title, hit.document.text))
        lines.append(f"    {fate}{score}{title}: {text[:_WIDTH]} [{source}]")
    return lines


def answer_line(episode: Episode) -> str:
    """The answer, and how the episode ended."""
    return f"Answer: {one_line(episode.answer or '') or '(none)'}   [{episode.status}]"


def source_lines(documents: Sequence[Document]) -> list[str]:
    """The sources of an answer, numbered."""
    return [f"  [{n}] {one_line(d.title)} ({one_line(d.id)})" for n, d in enumerate(documents, 1)]
