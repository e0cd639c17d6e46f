"""Episodes that are kept to be read: rows as in predictions, and the passages that they found, each once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.files import write_json
from envs.types import Episode

Row = dict[str, Any]


def passages(episodes: Sequence[Episode]) -> dict[str, Row]:
    """Title and text of every document that the steps of episodes found, by id."""
    documents = {hit.document.id: hit.document for episode in episodes for step in episode.steps for hit in step.hits}
    return {id_: {"title": documents[id_].title, "text": documents[id_].text} for id_ in sorted(documents)}


def keep(path: Path, rows: Sequence[Row], found: dict[str, Row], **where: Any) -> None:
    """Write rows of episodes with the passages that they found; `where` says when and of what they were taken."""
    write_json(path, where | {"episodes": list(rows), "passages": found})
