"""Runs as they lie on disk, small enough to check by hand, and pages read back from their HTML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from datamodules.records import write_rows
from evaluation.report.view_page import render_page
from evaluation.report.view_run import read_run
from tests.evaluation.fake import answered, evaluation

Rows = Sequence[dict[str, Any]]
GOLD = {
    "steps": [{"question": "Who wrote it?", "answer": "Ann", "documents": ["d1"]}],
    "documents": ["d1"],
    "titles": [],
}


def experiment(runs: Path, stages: Mapping[str, Path], *, name: str = "exp", seed: int = 0, question: str = "") -> Path:
    """The folder of a run whose stages lie in `runs/store`, finished or not."""
    folder = runs / name / f"seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    places = {stage: path.relative_to(runs).as_posix() for stage, path in stages.items()}
    told = {"question": question, "changes": "rl.module.lr=2", "stages": places}
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


def page(*folders: Path, limit: int = 5_000_000) -> Page:
    """The page of some runs, read back."""
    return Page(render_page([read_run(folder) for folder in folders], limit=limit))


class Page(HTMLParser):
    """What a reader finds: `ids`, `links` within the page, `tables` by caption, the `text` of elements with an id."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html, self.tables, self.text = html, dict[str, list[list[str]]](), dict[str, str]()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: dict[str, dict[str, str | None]] = {}
        self._open: list[tuple[str, str | None]] = []
        self._rows: list[list[str]] = []
        self._caption = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        if id_ := told.get("id"):
            self.ids.append(id_)
            self.attributes[id_] = told
            self.text[id_] = ""
        if tag == "a" and (told.get("href") or "").startswith("#"):
            self.links.append((told["href"] or "")[1:])
        if tag == "table":
            self._rows, self._caption = [], ""
        if tag == "tr":
            self._rows.append([])
        if tag in ("td", "th"):
            self._rows[-1].append("")
        if tag not in ("meta", "input", "br", "path", "use"):
            self._open.append((tag, id_))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass
        if tag == "table":
            self.tables[self._caption] = self._rows

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self._open]
        if "caption" in tags:
            self._caption += data
        elif tags and ({"td", "th"} & set(tags)):
            self._rows[-1][-1] += data
        for _, id_ in self._open:
            if id_:
                self.text[id_] += data

    def counts(self) -> dict[str, list[str]]:
        """The table of mistakes: its cells by arm."""
        return {row[0]: row[1:] for row in self.tables["Episodes by arm; each count leads to its episodes"]}
