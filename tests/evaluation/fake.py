"""Evaluations as `evaluation/evaluate.py` leaves them, small enough to check by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.report import report
from evaluation.steps.step_auc import BASELINES


def answered(number: int, em: float, **more: Any) -> dict[str, Any]:
    """A row of predictions."""
    step = {"kind": "query", "text": f"who is {number}?", "valid": True, "hits": [f"d{number}", "d0"]}
    end = {"kind": "answer", "text": "x", "valid": em == 1, "hits": []}
    return {
        "id": f"q{number}",
        "question": f"Question {number}?",
        "answers": ["x", "y"],
        "prediction": "x" if em else "",
        "em": em,
        "f1": em,
        "status": "answered" if em else "step_budget",
        "steps": [step, end],
        **more,
    }


def evaluation(
    folder: Path, predictions: Sequence[dict[str, Any]], *, dataset: str = "toy", commit: str = "abc123", **more: Any
) -> Path:
    """An artifact folder whose `em` is that of the predictions."""
    scored = [row["em"] for row in predictions if row["em"] is not None]
    em = sum(scored) / len(scored)
    row = {"dataset": dataset, "split": "dev", "n": len(predictions), "em": em, "em_low": em / 2, "em_high": em}
    row |= {"f1": em, "cover": None, "searches": 1.5, "cover_low": 0.0, "seconds": 12.4}
    results = {"rows": [row], "groups": [], "notes": {"top_k": 3}} | more
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "results.json").write_text(json.dumps(results))
    lines = "".join(json.dumps(row) + "\n" for row in predictions)
    (folder / "data" / f"predictions-{dataset}-dev.jsonl").write_text(lines)
    manifest = {"commit": commit, "versions": {"torch": "2.13.0"}, "metrics": {"em": em}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def step_ranking(folder: Path, *, right: int, wrong: int = 0, judged: Sequence[str] = ()) -> Path:
    """An artifact folder of steps of one kind, true and untrue by turns, a question a pair, with scores of `prm`.

    In `right` pairs the score ranks the true step first, in `wrong` ones last; the log-probability ties. `judged` are
    the artifact folders that it came from.
    """
    rows = []
    for number in range(right + wrong):
        for valid in (True, False):
            scores = dict.fromkeys(BASELINES, 0.0) | {"prm": 1.0 if valid == (number < right) else -1.0}
            rows.append({"id": f"q{number}", "kind": "query", "valid": valid, "scores": scores})
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "data" / "step_ranking.json").write_text("{}")
    inputs = {name: {"artifact": name} for name in judged}
    (folder / "manifest.json").write_text(json.dumps({"commit": "c", "versions": {"torch": "2"}, "inputs": inputs}))
    return folder


def run(runs: Path, name: str, ems: Sequence[float], *, seed: int = 0, first: int = 0, stage: str = "eval") -> str:
    """A finished experiment of one evaluation; `ems[i]` is the EM of question `first + i`."""
    predictions = [answered(first + i, em, searches=2) for i, em in enumerate(ems)]
    artifact = evaluation(runs / "store" / f"{stage}-{name}-{seed}", predictions)
    return report.write(runs, name, seed, {stage: artifact})
