"""Runs as they lie on disk, small enough to check by hand, and pages read back from their HTML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from datamodules.records import write_rows
from evaluation.report.page import collect, render
from evaluation.report.run import read_run
from tests.evaluation.fake import answered, evaluation

Rows = Sequence[dict[str, Any]]
GOLD = {
    "steps": [{"question": "Who wrote it?", "answer": "Ann", "documents": ["d1"]}],
    "documents": ["d1"],
    "titles": [],
}


def experiment(
    runs: Path,
    stages: Mapping[str, Path],
    *,
    name: str = "exp",
    seed: int = 0,
    question: str = "",
    names: Mapping[str, str] | None = None,
) -> Path:
    """The folder of a run whose stages lie in `runs/store`, finished or not."""
    folder = runs / name / f"seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    places = {stage: path.relative_to(runs).as_posix() for stage, path in stages.items()}
    told = {"question": question, "changes": "rl.module.lr=2", "stages": places, "names": names or {}}
    (folder / "experiment.json").write_text(json.dumps(told))
    return folder


def arm(runs: Path, stage: str, rows: Rows, /, **more: Any) -> Path:
    """A finished evaluation; every passage that its steps found has a text."""
    folder = evaluation(runs / "store" / f"{stage}-1", rows, **more)
    hits = sorted({hit for row in rows for step in row["steps"] for hit in step["hits"]})
    passages = ({"id": hit, "title": f"Title {hit}", "text": f"Text of {hit}."} for hit in hits)
    write_rows(folder / "data" / "passages-toy-dev.jsonl", passages)
    return folder


def judged(number: int, em: float, *truth: bool | None, **more: Any) -> dict[str, Any]:
    """A row of predictions whose steps were judged."""
    row = answered(
        number, em, hops=1 + number % 3, gold=GOLD, searches=1, premature=float(number % 3 > 0), late=0.0, **more
    )
    for step, verdict in zip(row["steps"], truth, strict=False):
        step["truth"] = verdict
    return row


def collected(*folders: Path) -> dict[str, Any]:
    """The data of the page of some runs."""
    return collect([read_run(folder) for folder in folders], folders[0])


def page(*folders: Path) -> Page:
    """The page of some runs, read back."""
    return Page(render(collected(*folders)))


class Page(HTMLParser):
    """The file of a page: its `ids`, the `hrefs` of its links, its `tables` by caption, the `data` of its script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html, self.tables = html, dict[str, list[list[str]]]()
        self.ids: list[str] = []
        self.hrefs: list[str] = []
        self._tags: list[str] = []
        self._rows: list[list[str]] = []
        self._caption = self._data = ""
        self.feed(html)
        self.data: dict[str, Any] = json.loads(self._data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.ids += [told["id"]] if told.get("id") else []
        if tag == "a":
            self.hrefs.append(told["href"] or "")
        if tag == "table":
            self._rows, self._caption = [], ""
        if tag == "tr":
            self._rows.append([])
        if tag in ("td", "th"):
            self._rows[-1].append("")
        if tag != "meta":
            self._tags.append("data" if told.get("type") == "application/json" else tag)

    def handle_endtag(self, tag: str) -> None:
        while self._tags and self._tags.pop() not in (tag, "data"):
            pass
        if tag == "table":
            self.tables[self._caption] = self._rows

    def handle_data(self, data: str) -> None:
        if "data" in self._tags:
            self._data += data
        elif "caption" in self._tags:
            self._caption += data
        elif {"td", "th"} & {*self._tags}:
            self._rows[-1][-1] += data

    def counts(self) -> dict[str, dict[str, Any]]:
        """What is counted of each arm: its episodes, its mistakes, its first untrue steps."""
        return {row["arm"]: row for row in self.data["counts"]}
