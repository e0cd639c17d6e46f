from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.pages.ranking_tables import ranking_parts
from evaluation.steps.rankings import arm_label, by_seed, rankings
from tests.evaluation.fake import step_ranking


def label(folder: Path, judged: int | None) -> Path:
    """The artifact of a stage that had steps judged, and one before it."""
    costs = {"updates": 0} if judged is None else {"updates": 0, "judged_steps": judged}
    for name, needs in ((f"search-{folder.name}", []), (folder.name, [f"search-{folder.name}"])):
        (folder.parent / name).mkdir(parents=True, exist_ok=True)
        inputs = {need: {"artifact": need} for need in needs}
        own = costs if name == folder.name else {}
        (folder.parent / name / "manifest.json").write_text(json.dumps({"costs": own, "inputs": inputs}))
    return folder


def entries(
    folder: Path, experiment: str, seed: int, judged: int | None, **pairs: int
) -> list[tuple[str, int, str, Path]]:
    name = f"{experiment}-{seed}"
    labels = label(folder / f"label-{name}", judged)
    ranked = step_ranking(folder / f"rank-{name}", judged=[labels.name], **pairs)
    stages = {"search": folder / f"search-{labels.name}", "label": labels, "rank": ranked}
    return [(experiment, seed, stage, path) for stage, path in stages.items()]


@pytest.fixture
def measured(tmp_path: Path) -> list[dict[str, Any]]:
    one = [*entries(tmp_path, "one", 0, 300, right=4), *entries(tmp_path, "one", 1, 320, right=2, wrong=2)]
    two = [*entries(tmp_path, "two", 0, None, right=1, wrong=3), *entries(tmp_path, "two", 1, None, wrong=4, right=0)]
    return rankings([*one, *two, *[("again", *entry[1:]) for entry in one]])


def test_every_arm_is_measured_over_its_seeds_and_a_shared_ranking_once(measured: list[dict[str, Any]]) -> None:
    assert [(entry["experiment"], entry["stage"], entry["seeds"]) for entry in measured] == [
        ("one", "rank", [0, 1]), ("two", "rank", [0, 1]),
    ]  # fmt: skip
    assert [entry["judged_steps"] for entry in measured] == [[300, 320], [None, None]]
    assert measured[0]["scorers"] == ["prm"]
    macro = {group["group"]: group for group in measured[0]["groups"]}["macro"]
    # seed 1: true steps score 1, 1, -1, -1 and untrue ones -1, -1, 1, 1: half of the pairs are ranked rightly
    assert macro["scorers"]["prm"]["auc_seeds"] == [1.0, 0.5]
    assert macro["n"] == 16
    assert [len(seed) for seed in measured[0]["calibration"]["prm"]] == [2, 2], "by seed: query and pooled"


def test_aucs_are_told_by_seed_and_other_scorers_by_their_names(measured: list[dict[str, Any]]) -> None:
    assert by_seed(measured[0], "macro", "prm") == {0: 1.0, 1: 0.5}
    assert by_seed(measured[0], "answer", "prm") == {}
    assert (arm_label(measured[0], "prm"), arm_label(measured[0], "truth")) == ("one", "one: truth")


def cells(text: str, first: str) -> list[str]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return next(line for line in lines if line[0] == first)


def test_the_tables_show_both_intervals_the_gain_and_what_was_judged(measured: list[dict[str, Any]]) -> None:
    parts = "\n\n".join(ranking_parts(measured))
    auc, gain = parts[: parts.index("### Gain")], parts[parts.index("### Gain") : parts.index("### Against")]
    # mean .75, standard error .25 over two seeds; Student's t is 12.706
    shown = cells(auc, "one")
    assert shown[:3] == ["one", "310", "0, 1"]
    assert shown[3].startswith("0.750 [")
    assert shown[3].endswith("[-2.427, 3.927]")
    assert cells(auc, "two")[1] == "–"
    assert cells(gain, "one")[1].startswith("+0.250 [")
    # against the first on the same seeds: .25 - 1 and 0 - .5
    against = cells(gain[gain.index("against one") :], "two")
    assert against[1:] == ["0, 1", "-0.625 [-2.213, +0.963]", "0.126", "0.126"]


def test_the_tables_show_what_costs_nothing_and_the_calibration(measured: list[dict[str, Any]]) -> None:
    parts = "\n\n".join(ranking_parts(measured))
    beside = cells(parts[parts.index("### Against") : parts.index("### Calibration")], "one")
    assert beside[1] == "0.750"
    assert beside[3:5] == ["0.500", "0.500"]
    # scores of 1 and -1 say .731 and .269: always right is .269 off; half right is .231 off
    assert cells(parts[parts.index("### Calibration") :], "one")[1:] == ["0.250", "0.250", "0.750"]


def test_one_seed_has_one_interval_and_no_tests(tmp_path: Path) -> None:
    parts = "\n\n".join(ranking_parts(rankings(entries(tmp_path, "one", 0, 300, right=3, wrong=1))))
    assert cells(parts, "one")[3].count("[") == 1
    assert "against one" not in parts
