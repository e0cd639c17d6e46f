"""SFT on chosen turns: the preferred turn of each pair as an episode, without the rejected one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.errors import DataError
from datamodules.records import episode_to_row, numbered_rows, pair_from_row, write_rows
from envs.types import Episode


class SftOnChosen:
    """Writes `data/episodes.jsonl`: for every turn that some pair prefers an episode that trains that turn alone.

    A turn that several pairs prefer comes once, at the first of them.

    Args:
        pairs: a stage folder that holds `data/pairs.jsonl`.

    Raises:
        DataError: on merging, a row is malformed, or there is no pair.
    """

    def __init__(self, pairs: Path) -> None:
        self.pairs = Path(pairs)

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Nothing: reading the pairs once is all there is to do, and rank 0 does it."""

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Write the episodes; returns how many turns and questions there are."""
        questions: list[str] = []

        def rows() -> Iterator[dict[str, Any]]:
            for episode in self._episodes():
                questions.append(episode.question.id)
                yield episode_to_row(episode)

        write_rows(folder / "data" / "episodes.jsonl", rows())
        if not questions:
            raise DataError(f"{self.pairs}: no pair, so no turn was chosen")
        return {"chosen/turns": float(len(questions)), "chosen/questions": float(len(set(questions)))}

    def _episodes(self) -> Iterator[Episode]:
        seen: set[str] = set()
        for where, row in numbered_rows(self.pairs / "data" / "pairs.jsonl"):
            chosen = pair_from_row(row, where).chosen
            if not chosen.turns:
                raise DataError(f"{where}: the chosen episode has no turn")
            if chosen.turns[-1].uid not in seen:
                seen.add(chosen.turns[-1].uid)
                before = [replace(turn, trainable=False) for turn in chosen.turns[:-1]]
                yield replace(chosen, turns=[*before, chosen.turns[-1]])
