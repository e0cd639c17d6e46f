from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from common.errors import DataError
from evaluation.pages import conditions
from evaluation.pages.conditions import Cell
from evaluation.pages.page import render
from tests.evaluation.pages.systems import kept

SETTINGS = {
    "schema": "conditions/1", "title": "When?", "question": "Does it pay?", "baseline": "prorag_rl", "start": "sft",
    "budget": 1000, "pages": {"easy": "Easy questions", "hard": "Hard questions"}, "shown": "easy",
    "curves": ["prorag_rl", "other_rl"],
}  # fmt: skip
EVENTS = ("answers_too_early", "settles_a_hop")


def study(folder: Path, **changes: object) -> Path:
    """Two conditions of the same results, the second without the second seed; both with learning curves."""
    source = kept(folder)
    results = folder / "results"
    for page in ("easy", "hard"):
        shutil.copytree(source, results / page)
        (results / f"{page}.md").write_text("It is.\n")
    (results / "hard" / "seed1.json").unlink()
    for path in results.glob("*/*.json"):
        content = json.loads(path.read_text())
        for arm in content["arms"]:
            early = {f"event/{event}/adv": 0.5 - arm["seed"] for event in EVENTS} | {"credit/signal_to_noise": 0.25}
            place = {key: arm[key] for key in ("arm", "experiment", "seed", "stage")} | {
                "dataset": "toy",
                "split": "dev",
            }
            middle = 1.0 if (arm["arm"], arm["seed"]) == ("other_rl", 1) else 0.5
            curve = {"tokens": [0, 500, 1000], "em": [0.0, middle, 1.0], "flawed": [0, 0, 0], "early": early}
            content["curves"].append(place | curve)
        path.write_text(json.dumps(content))
    (results / "pays.json").write_text(json.dumps(SETTINGS | changes))
    (results / "pays.md").write_text("It pays here.\n\n## A rule\n\nUse it.\n")
    (results / "index.md").write_text("Lead.\n")
    return results


def test_an_arm_is_compared_with_the_baseline_of_its_condition(tmp_path: Path) -> None:
    cells = conditions.read(study(tmp_path) / "pays.json").cells
    assert list(cells) == [
        *((arm, "Easy questions") for arm in ("other_rl", "hiprag_rl")),
        *((arm, "Hard questions") for arm in ("other_rl", "hiprag_rl")),
    ]
    easy, late = cells["other_rl", "Easy questions"], cells["hiprag_rl", "Hard questions"]
    assert (easy.em, easy.difference, easy.stuck, easy.seeds) == (0.625, 0.25, 0, 2)
    assert (late.em, late.difference, late.stuck, late.seeds) == (0.25, -0.25, 1, 1), "it ends where the start was"
    assert math.isnan(late.p)


def test_what_was_not_trained_is_no_arm(tmp_path: Path) -> None:
    folder = study(tmp_path)
    for path in folder.glob("*/*.json"):
        content = json.loads(path.read_text())
        content["curves"] = [row for row in content["curves"] if row["arm"] != "other_rl"]
        path.write_text(json.dumps(content))
    assert {arm for arm, _ in conditions.read(folder / "pays.json").cells} == {"hiprag_rl"}


def test_pages_of_one_name_are_one_condition(tmp_path: Path) -> None:
    folder = study(tmp_path)
    before = {place: repr(cell) for place, cell in conditions.read(folder / "pays.json").cells.items()}
    (folder / "more").mkdir()
    for seed in (0, 1):  # one arm moves to a page of its own, which has the baseline too
        path = folder / "easy" / f"seed{seed}.json"
        content, parts = json.loads(path.read_text()), ("arms", "rows", "stopping", "curves")
        more = {part: [row for row in content[part] if row["arm"] in ("prorag_rl", "other_rl")] for part in parts}
        (folder / "more" / path.name).write_text(json.dumps(content | more))
        rest = {part: [row for row in content[part] if row["arm"] != "other_rl"] for part in parts}
        path.write_text(json.dumps(content | rest))
    assert ("other_rl", "Easy questions") not in conditions.read(folder / "pays.json").cells
    content = json.loads((folder / "pays.json").read_text())
    content["pages"]["more"] = "Easy questions"
    (folder / "pays.json").write_text(json.dumps(content))
    together = conditions.read(folder / "pays.json")
    assert {place: repr(cell) for place, cell in together.cells.items()} == before
    assert [one.page for one in together.conditions] == ["easy", "hard"]
    content = json.loads((folder / "more" / "seed1.json").read_text())
    content["questions"][0]["hashes"] = content["questions"][0]["hashes"][::-1]
    (folder / "more" / "seed1.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"asks other questions than 'Systems' \(seed 1\)"):
        conditions.read(folder / "pays.json")


def test_an_arm_that_lacks_a_seed_is_not_the_best(tmp_path: Path) -> None:
    folder = study(tmp_path)
    path = folder / "easy" / "seed0.json"
    content = json.loads(path.read_text())
    for row in content["rows"]:
        if row["arm"] == "hiprag_rl":
            row["values"]["em"] = [1.0] * 4
    path.write_text(json.dumps(content))
    read = conditions.read(folder / "pays.json")
    assert read.cells["hiprag_rl", "Easy questions"].em == 1
    lines = "\n".join(conditions.difference_parts(read)).splitlines()
    [best] = [line for line in lines if line.startswith("| [Easy questions]")]
    assert best.split("|")[5].strip() == "other_rl"


def test_a_mark_says_whether_a_difference_holds() -> None:
    cell = Cell(0.5, 0.0, 0.2, 0.1, 0.3, 0.01, 0.01, 5, 0, 5)
    assert [cell.mark(p) for p in (0.049, 0.05, math.nan)] == ["●", "○", "○"]
    assert Cell(0.5, 0.0, 0.2, -0.1, 0.5, 0.2, 0.2, 3, 0, 5).mark(0.2) == ""


def test_the_page_has_the_map_then_curves_credit_comments_and_differences(tmp_path: Path) -> None:
    folder = study(tmp_path)
    pages = render(folder)
    text = pages[folder / "pages" / "pays.md"]
    order = ["It pays here.", "pays-heat.svg", "pays-curves.svg", "## Mean advantage", "## A rule", "## Conditions"]
    places = [text.index(part) for part in [*order, "## Differences", "## Area under the curve"]]
    assert places == sorted(places)
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "| other_rl | Easy questions | 62.5 | – | +25.0 | – | 0.842 | 2 | 2 | 0 |" in rows
    assert "| hiprag_rl | Hard questions | 25.0 | – | -25.0 | – | 1.000 | 1 | 0 | 1 |" in rows
    assert "| prorag_rl | 50.0 | 50.0 |" in rows, "the area of a straight line from 0 to 100 %"
    assert "| other_rl | +12.5 | +0.0 |" in rows, "its second seed has 75 %, and hard questions have none"
    assert "| prorag_rl | +0.00 | +0.00 | +0.25 | – |" in rows, "means of 0.5 and -0.5 over seeds"
    heat = pages[folder / "figures" / "pays-heat.svg"]
    assert "+25.0" in heat
    assert "Hard questions" in heat
    assert "other_rl" in pages[folder / "figures" / "pays-curves.svg"]


def test_a_condition_without_the_baseline_and_a_lacking_key_are_named(tmp_path: Path) -> None:
    folder = study(tmp_path, baseline="nobody")
    with pytest.raises(DataError, match=r"pays\.json: easy must hold one dataset and the arm 'nobody' \(baseline\)"):
        conditions.read(folder / "pays.json")
    content = json.loads((folder / "pays.json").read_text())
    del content["budget"]
    (folder / "pays.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"pays\.json lacks 'budget' of conditions/1"):
        conditions.read(folder / "pays.json")
