from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from common.errors import DataError
from evaluation.pages import frozen
from evaluation.pages.freeze import freeze
from evaluation.pages.page import page_parts
from evaluation.report.report import write
from tests.evaluation.fake import answered, evaluation, run
from tests.evaluation.pages.systems import ASKED, experiment, kept, sweep


def rows(text: str, first: str) -> list[list[str]]:
    """The cells of the table's rows whose first cell begins so."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [cells for cells in lines if re.sub(" †", "", cells[0]) == first]


def page(results: Any) -> str:
    return "\n\n".join(page_parts(frozen.read(results) if isinstance(results, Path) else results))


def section(text: str, title: str) -> str:
    """What stands below a heading of the second level."""
    return f"\n\n{text}".partition(f"\n\n## {title}\n\n")[2].partition("\n\n## ")[0]


def test_the_page_has_figures_costs_tests_and_gains(tmp_path: Path) -> None:
    text = page(kept(tmp_path))
    figures, cost, *tests = rows(text, "other_rl")
    # eight questions, of which five are right; one of eight judged searches was needless
    assert figures[:3] == ["other_rl", "0, 1", "4"]
    assert figures[3].startswith("62.5 [")
    assert "12.5 [" in " ".join(figures)
    assert cost == ["other_rl", "0, 1", "1,090", "109 %", "1,090", "180", "0", "30"], "9 % more is not marked"
    # +25 points in both seeds: no spread over them, so no test; two of eight questions differ
    assert tests[0][:2] == ["other_rl", "0, 1"]
    assert tests[0][2].startswith("+25.0 [")
    assert tests[0][5:] == ["–", "–", "+25.0, +25.0"]
    gain = next(cells for cells in rows(text, "other_rl") if cells[1] == "sft")
    assert gain == ["other_rl", "sft", "12.5", "62.5", "+50.0", "–", "+50.0, +50.0"]


def test_a_row_beyond_a_tenth_of_the_baseline_s_tokens_is_marked(tmp_path: Path) -> None:
    text = page(kept(tmp_path))
    assert "| other_rl  " in text
    assert text.count("hiprag_rl † ") == 2, "1110 against 1000 tokens"
    assert text.count("sft † ") == 2
    assert "prorag_rl †" not in text


def test_an_arm_with_fewer_seeds_is_compared_on_those(tmp_path: Path) -> None:
    text = page(kept(tmp_path))
    test = next(cells for cells in rows(text, "hiprag_rl") if cells[1] == "0" and cells[2].startswith("-25.0"))
    assert test[5:] == ["–", "–", "-25.0"], "one seed has no test over seeds"


def test_runs_of_several_experiments_are_one_page(tmp_path: Path) -> None:
    runs, folder = tmp_path / "runs", tmp_path / "kept"
    for seed in (0, 1):
        first = experiment(runs, seed)
        arms = [f"{first}:eval_sft", sweep(runs, seed, "0", [1, 1, 0, 0]), sweep(runs, seed, "0.5", [1, 1, 1, 1])]
        frozen.write(folder / f"seed{seed}.json", freeze(arms, **ASKED | {"baseline": "beta_0:rl"}))
    text = page(folder)
    assert rows(section(text, "Against the baseline"), "beta_0.5:rl")[0][2].startswith("+50.0 [")
    by_hops = section(text, "When policies stop, by number of hops")
    assert rows(by_hops, "beta_0:rl") == [["beta_0:rl", "2", "2", "50.0 ± 0.0", "2.50 ± 0.00"]]
    by_type = section(text, "By type of question")
    assert rows(by_type, "beta_0:rl") == [["beta_0:rl", "bridge", "2", "50.0 ± 0.0", "50.0 ± 0.0"]]


def test_types_of_one_seed_have_their_intervals_and_older_results_have_no_table(tmp_path: Path) -> None:
    runs = [f"{experiment(tmp_path, 0)}:eval_sft", sweep(tmp_path, 0, "0", [1, 1, 0, 0])]
    results = freeze(runs, **ASKED | {"baseline": "compare:sft"})
    by_type = section(page(results), "By type of question")
    assert rows(by_type, "beta_0:rl") == [["beta_0:rl", "bridge", "4", "50.0 [25.0, 100.0]", "50.0"]]
    del results["types"]
    assert "By type of question" not in page(results)


def test_the_page_says_how_many_questions_a_seed_has(tmp_path: Path) -> None:
    folder = kept(tmp_path)
    other = json.loads((folder / "seed1.json").read_text())
    other["questions"][0]["hashes"].pop()
    for row in other["rows"]:
        row |= {"n": 3, "values": {measure: values[:-1] for measure, values in row["values"].items()}}
    frozen.write(folder / "seed1.json", other)
    assert rows(page(folder), "other_rl")[0][2] == "4 or 3"


def test_a_rate_that_cannot_be_compared_has_no_table_of_tests(tmp_path: Path) -> None:
    folder = kept(tmp_path)
    assert re.findall("### [OU]SR", page(folder)) == ["### OSR"]
    for seed in (0, 1):
        other = json.loads((folder / f"seed{seed}.json").read_text())
        for row in other["rows"]:
            if row["arm"] != "other_rl":  # the one arm that has the rate, so all cells of its test would be dashes
                row["values"]["judged_searches"] = row["values"]["needless_searches"] = [0] * 4
        frozen.write(folder / f"seed{seed}.json", other)
    assert "12.5 [" in " ".join(rows(page(folder), "other_rl")[0]), "its rate still stands among the figures"
    assert "### OSR" not in page(folder)


def test_several_datasets_have_a_table_each_and_are_adjusted_together(tmp_path: Path) -> None:
    for name, right in (("base", [0.0] * 12), ("new", [1.0, 1.0, 1.0, *[0.0] * 9])):
        place = evaluation(tmp_path / "store" / name, [answered(i, em) for i, em in enumerate(right)])
        results = json.loads((place / "data" / "results.json").read_text())
        results["rows"] += [results["rows"][0] | {"dataset": "other"}]
        (place / "data" / "results.json").write_text(json.dumps(results))
        same = (place / "data" / "predictions-toy-dev.jsonl").read_text()
        (place / "data" / "predictions-other-dev.jsonl").write_text(same)
        write(tmp_path, name, 0, {"eval": place})
    text = page(freeze([str(tmp_path / "base"), str(tmp_path / "new")], title="T", command="c"))
    tests = section(text, "Against the baseline")
    assert "### toy/dev" in section(text, "Results")
    assert re.findall("### EM.*", tests) == ["### EM, toy/dev", "### EM, other/dev"]
    p, adjusted = map(float, rows(tests, "new:eval")[0][3:5])
    assert adjusted == pytest.approx(2 * p, abs=0.002)


def test_rows_without_values_show_their_own_interval_or_the_spread_over_seeds(tmp_path: Path) -> None:
    for seed, ems in ((0, [1, 0]), (1, [1, 1])):
        run(tmp_path, "exp", ems, seed=seed)
    results = freeze([str(tmp_path / "exp")], title="T", command="c")
    for row in results["rows"]:
        row |= {"values": {}, "em_low": 0.25}
    assert rows(page(results), "eval")[0][:4] == ["eval", "0, 1", "2", "75.0 ± 35.4"]
    assert rows(page(results | {"rows": results["rows"][:1]}), "eval")[0][3] == "50.0 [25.0, 50.0]"


def test_seeds_may_have_different_measures(tmp_path: Path) -> None:
    for seed, more in enumerate([{"recall": 0.5}, {}]):
        row = {"dataset": "toy", "split": "dev", "n": 1, "em": 1.0, **more}
        write(tmp_path, "exp", seed, {"eval": evaluation(tmp_path / f"store{seed}", [answered(0, 1)], rows=[row])})
    text = page(freeze([str(tmp_path / "exp")], title="T", command="c"))
    shown = dict(zip(rows(text, "arm")[0], rows(text, "eval")[0], strict=True))
    assert (shown["EM"], shown["recall"]) == ("100.0", "50.0")


def test_arms_of_other_questions_are_never_paired(tmp_path: Path) -> None:
    run(tmp_path, "a", [1, 0], seed=0)
    run(tmp_path, "b", [1, 0], seed=1, first=7)
    with pytest.raises(DataError, match="cannot pair b:eval with a:eval: 4 questions differ"):
        freeze([str(tmp_path / "a"), str(tmp_path / "b")], title="T", command="c")
