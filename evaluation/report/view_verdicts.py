"""What judges said of the steps of a search: which of two is better, or how right one is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from datamodules.records import LABELLED, PAIR, read_rows
from evaluation.report.view_run import Run
from evaluation.report.view_text import Row, printable

Verdict = tuple[str, str, str]  # better or worse, than which, why; or how right, by itself
Verdicts = Mapping[str, Sequence[Verdict]]  # by the uid of a turn


def verdicts(run: Run, search: str, questions: set[str]) -> Verdicts:
    """The verdicts on steps of some questions in the stages that judged pairs or single steps of this search."""
    found: dict[str, list[Verdict]] = {}
    for stage in run.stages.values():
        inputs = [each["artifact"] for each in stage.manifest.get("inputs", {}).values()]
        if stage.state == "finished" and search in inputs:
            for uid, verdict in chain(_compared(stage.folder, questions), _labelled(stage.folder, questions)):
                found.setdefault(uid, []).append(verdict)
    return found


def _compared(folder: Path, questions: set[str]) -> Iterator[tuple[str, Verdict]]:
    for row in _rows(folder / "data" / "pairs.jsonl", PAIR):
        if row["history"]["question"]["id"] in questions:
            better, worse = (_last_turn(row, side) for side in ("chosen", "rejected"))
            reason = printable(row["reason"], 200)
            yield better["uid"], ("better than", _short(worse), reason)
            yield worse["uid"], ("worse than", _short(better), reason)


def _labelled(folder: Path, questions: set[str]) -> Iterator[tuple[str, Verdict]]:
    for row in _rows(folder / "data" / "labels.jsonl", LABELLED):
        episode = row["episode"]
        if episode["question"]["id"] in questions:
            for step, label in zip(episode["steps"], row["labels"], strict=True):
                if label is not None:
                    turn = episode["turns"][step["spans"][-1][0]]
                    yield turn["uid"], (f"{'right' if label >= 0.5 else 'wrong'} (label {label:.2f})", "", "")


def _rows(path: Path, schema: str) -> Iterator[Row]:
    return read_rows(path, schema) if path.exists() else iter(())


def _last_turn(row: Row, side: str) -> Row:
    return (row["history"]["turns"] + row[side]["turns"])[-1]


def _short(turn: Row) -> str:
    return printable(turn["action"]["text"] or turn["text"], 100)
