"""Four systems over two seeds, small enough to reckon by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.pages.freeze import freeze
from evaluation.pages.frozen import write
from evaluation.report import report
from tests.evaluation.fake import answered, evaluation

ASKED = {"title": "Systems", "question": "Which?", "command": "run", "baseline": "prorag_rl"}
# By stage: the kind, what it needs, tokens, updates, judge calls; an evaluation samples tokens too.
STAGES = {
    "world": ("make", [], 0, 0, 0), "sft": ("fit", ["world"], 0, 150, 0), "search": ("make", ["sft"], 600, 0, 0),
    "prm": ("fit", ["search"], 0, 20, 40), "prorag_rl": ("fit", ["sft", "prm"], 400, 16, 0),
    "other_rl": ("fit", ["sft"], 1090, 30, 0), "hiprag_rl": ("fit", ["sft"], 1110, 30, 77),
}  # fmt: skip
SYSTEMS = ("sft", "prorag_rl", "other_rl", "hiprag_rl")
EM = {  # by system and seed, of four questions
    "sft": ([1, 0, 0, 0], [0, 0, 0, 0]), "prorag_rl": ([1, 1, 0, 0], [1, 0, 0, 0]),
    "other_rl": ([1, 1, 1, 0], [1, 1, 0, 0]), "hiprag_rl": ([1, 0, 0, 0],),
}  # fmt: skip


def manifest(
    folder: Path, kind: str, needs: Sequence[str], tokens: int, updates: int, judged: int, **more: Any
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    costs = {"tokens": {"policy": tokens} if tokens else {}, "updates": updates, "judge_calls": judged}
    content = {"kind": kind, "source": "aaa", "commit": "c", "versions": {"torch": "2"}, "metrics": {}}
    content |= {"costs": costs | {"cpu_seconds": 10.0}}
    inputs = {need: {"artifact": f"{need}-{folder.name.rpartition('-')[2]}"} for need in needs}
    (folder / "manifest.json").write_text(json.dumps(content | {"inputs": inputs} | more))


def experiment(runs: Path, seed: int, **changes: dict[str, Any]) -> str:
    """A finished seed; `changes` to manifests, by stage."""
    artifacts = {stage: runs / "store" / f"{stage}-{seed}" for stage in STAGES}
    for stage, settings in STAGES.items():
        manifest(artifacts[stage], *settings, **changes.get(stage, {}))
    for system in SYSTEMS:
        if seed < len(EM[system]):
            # seed 0: two searches a question, one of them needless in the first; seed 1: nothing to judge
            judged = [{"judged_searches": 2, "needless_searches": int(i == 0)} if seed == 0 else {} for i in range(4)]
            rows = [answered(10 * seed + i, em, searches=2, **judged[i]) for i, em in enumerate(EM[system][seed])]
            artifacts[f"eval_{system}"] = evaluation(runs / "store" / f"eval_{system}-{seed}", rows)
            settings = ("make", [system], 9999, 0, 0)
            manifest(artifacts[f"eval_{system}"], *settings, **changes.get(f"eval_{system}", {}))
    report.write(runs, "compare", seed, artifacts)
    return str(runs / "compare" / f"seed{seed}")


def sweep(runs: Path, seed: int, beta: str, em: Sequence[float]) -> str:
    """A finished seed of another experiment, which shares world and warm-up with `experiment`."""
    store = runs / "store"
    artifacts = {stage: store / f"{stage}-{seed}" for stage in ("world", "sft")}
    artifacts |= {"eval_sft": store / f"eval_sft-{seed}", "rl": store / f"rl{beta}-{seed}"}
    manifest(artifacts["rl"], "fit", ["sft"], 300, 9, 0)
    groups = [{"group": "hops=2", "dataset": "toy", "split": "dev", "n": 4, "em": sum(em) / 4, "searches": 2.5}]
    by_type = {"group": "type=bridge", "dataset": "toy", "split": "dev", "n": 4, "em": sum(em) / 4}
    groups.append(by_type | {"em_low": 0.25, "em_high": 1.0, "recall": 0.5, "late": 0.25})
    answers = [answered(10 * seed + i, right, searches=2) for i, right in enumerate(em)]
    artifacts["eval_rl"] = evaluation(store / f"eval_rl{beta}-{seed}", answers, groups=groups)
    manifest(artifacts["eval_rl"], "make", [f"rl{beta}"], 9999, 0, 0)
    report.write(runs, f"beta_{beta}", seed, artifacts)
    return str(runs / f"beta_{beta}" / f"seed{seed}")


def kept(folder: Path, **changes: dict[str, Any]) -> Path:
    """The folder of two frozen seeds; `changes` as in `experiment`, to the second."""
    for seed in (0, 1):
        run = experiment(folder / "runs", seed, **(changes if seed else {}))
        write(folder / "kept" / "systems" / f"seed{seed}.json", freeze([run], **ASKED, figures=["arms"]))
    return folder / "kept" / "systems"
