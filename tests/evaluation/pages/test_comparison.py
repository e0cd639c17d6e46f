"""A comparison of four systems over two seeds, small enough to reckon by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from common.errors import DataError
from evaluation.pages.comparison import freeze_seed, write_frozen
from evaluation.pages.comparison import main as freeze_main
from evaluation.pages.comparison_page import render as parts_of
from evaluation.pages.comparison_rows import comparison_results
from evaluation.pages.page import main as page_main
from evaluation.pages.page import render
from evaluation.report import report
from tests.evaluation.fake import answered, evaluation

ROOT = Path(__file__).parents[3]
ASKED = {"baseline": "prorag_rl", "benchmark": "toy/dev", "title": "Systems", "question": "Which?", "command": "run"}
# By stage: the kind, what it needs, tokens, updates, judge calls; an evaluation samples tokens too.
STAGES = {
    "world": ("make", [], 0, 0, 0), "sft": ("fit", ["world"], 0, 150, 0), "search": ("make", ["sft"], 600, 0, 0),
    "prm": ("fit", ["search"], 0, 20, 40), "prorag_rl": ("fit", ["sft", "prm"], 400, 16, 0),
    "other_rl": ("fit", ["sft"], 1090, 30, 0), "hiprag_rl": ("fit", ["sft"], 1110, 30, 77),
}  # fmt: skip
SYSTEMS = {"sft": "sft", "prorag_rl": "prorag_rl", "other_rl": "other_rl", "hiprag_rl": "hiprag_rl"}
EM = {  # by system and seed, of four questions
    "sft": ([1, 0, 0, 0], [0, 0, 0, 0]), "prorag_rl": ([1, 1, 0, 0], [1, 0, 0, 0]),
    "other_rl": ([1, 1, 1, 0], [1, 1, 0, 0]), "hiprag_rl": ([1, 0, 0, 0],),
}  # fmt: skip


def manifest(
    folder: Path, kind: str, needs: Sequence[str], tokens: int, updates: int, judged: int, **more: Any
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    accounts = {"tokens": {"policy": tokens} if tokens else {}, "updates": updates, "judge_calls": judged}
    content = {"kind": kind, "source": "aaa", "commit": "c", "versions": {"torch": "2"}, "metrics": {}}
    content |= {"accounts": accounts | {"cpu_seconds": 10.0}}
    inputs = {need: {"artifact": f"{need}-{folder.name.rpartition('-')[2]}"} for need in needs}
    (folder / "manifest.json").write_text(json.dumps(content | {"inputs": inputs} | more))


def experiment(runs: Path, seed: int, **changes: dict[str, Any]) -> str:
    """A finished seed; `changes` to manifests, by stage."""
    artifacts = {stage: runs / "store" / f"{stage}-{seed}" for stage in STAGES}
    for stage, settings in STAGES.items():
        manifest(artifacts[stage], *settings, **changes.get(stage, {}))
    for system, policy in SYSTEMS.items():
        if seed < len(EM[system]):
            # seed 0: two searches a question, one of them needless in the first; seed 1: nothing to judge
            judged = [{"judged_searches": 2, "needless_searches": int(i == 0)} if seed == 0 else {} for i in range(4)]
            rows = [answered(10 * seed + i, em, searches=2, **judged[i]) for i, em in enumerate(EM[system][seed])]
            artifacts[f"eval_{system}"] = evaluation(runs / "store" / f"eval_{system}-{seed}", rows)
            settings = ("make", [policy], 9999, 0, 0)
            manifest(artifacts[f"eval_{system}"], *settings, **changes.get(f"eval_{system}", {}))
    report.write(runs, "compare", seed, artifacts)
    return str(runs / "compare" / f"seed{seed}")


def frozen(folder: Path, **changes: dict[str, Any]) -> Path:
    """The folder of two frozen seeds."""
    for seed in (0, 1):
        run = experiment(folder / "runs", seed, **(changes if seed else {}))
        write_frozen(folder / "kept" / "systems" / f"seed{seed}.json", freeze_seed([run], **ASKED))
    return folder / "kept" / "systems"


def rows(text: str, first: str) -> list[list[str]]:
    """The cells of the table's rows whose first cell begins so."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [cells for cells in lines if re.sub(" †", "", cells[0]) == first]


def test_a_frozen_seed_has_every_question_and_what_each_policy_cost(tmp_path: Path) -> None:
    kept = freeze_seed([experiment(tmp_path, 0)], **ASKED)
    systems = {system["name"]: system for system in kept["systems"]}
    assert list(systems) == ["sft", "prorag_rl", "other_rl", "hiprag_rl"]
    assert systems["prorag_rl"]["values"]["em"] == [1, 1, 0, 0]
    assert systems["prorag_rl"]["values"]["needless_searches"] == [1, 0, 0, 0]
    assert systems["prorag_rl"]["accounts"] == {
        "tokens": {"policy": 1000}, "updates": 186, "judge_calls": 40, "cpu_seconds": 50.0,
    }  # fmt: skip
    assert [systems[name]["warm_up"] for name in systems] == [None, "sft", "sft", "sft"]
    assert len(set(kept["questions"])) == 4


def sweep(runs: Path, seed: int, beta: str, em: Sequence[float]) -> str:
    """A finished seed of another experiment, which shares world and warm-up with `experiment`."""
    store = runs / "store"
    artifacts = {stage: store / f"{stage}-{seed}" for stage in ("world", "sft")}
    artifacts |= {"eval_sft": store / f"eval_sft-{seed}", "rl": store / f"rl{beta}-{seed}"}
    manifest(artifacts["rl"], "fit", ["sft"], 300, 9, 0)
    groups = [{"group": "hops=2", "dataset": "toy", "split": "dev", "n": 4, "em": sum(em) / 4, "searches": 2.5}]
    answers = [answered(10 * seed + i, right, searches=2) for i, right in enumerate(em)]
    artifacts["eval_rl"] = evaluation(store / f"eval_rl{beta}-{seed}", answers, groups=groups)
    manifest(artifacts["eval_rl"], "make", [f"rl{beta}"], 9999, 0, 0)
    report.write(runs, f"beta_{beta}", seed, artifacts)
    return str(runs / f"beta_{beta}" / f"seed{seed}")


def test_runs_of_several_experiments_are_one_comparison(tmp_path: Path) -> None:
    folder = tmp_path / "kept" / "sweep"
    for seed in (0, 1):
        first = experiment(tmp_path / "runs", seed)
        little = sweep(tmp_path / "runs", seed, "0", [1, 1, 0, 0])
        much = sweep(tmp_path / "runs", seed, "0.5", [1, 1, 1, 1])
        runs = [f"{first}:eval_sft", little, f"{much}:eval_rl"]  # the warm-up, which all three share, once
        kept = freeze_seed(runs, **ASKED | {"baseline": "beta_0:rl"}, figures=["sweep", "hops"])
        write_frozen(folder / f"seed{seed}.json", kept)
    systems = {system["name"]: system for system in kept["systems"]}
    assert list(systems) == ["compare:sft", "beta_0:rl", "beta_0.5:rl"]
    assert [system["warm_up"] for system in systems.values()] == [None, "compare:sft", "compare:sft"]
    assert systems["beta_0.5:rl"]["accounts"]["tokens"] == {"policy": 300}
    assert systems["beta_0.5:rl"]["accounts"]["updates"] == 159
    stopped = {"n": 4, "em": 1, "searches": 2.5, "premature": None, "late": None}
    assert systems["beta_0.5:rl"]["stopping"] == [{"dataset": "toy", "split": "dev", "hops": "2"} | stopped]
    text = "\n".join(parts_of(folder))
    assert next(cells for cells in rows(text, "beta_0.5:rl") if cells[2].startswith("+"))[2].startswith("+50.0 [")
    by_hops = text[text.index("## When policies stop") :]
    assert rows(by_hops, "beta_0:rl") == [["beta_0:rl", "2", "2", "50.0 ± 0.0", "2.50 ± 0.00"]]
    pages = render(folder.parent)
    page = pages[folder.parent / "pages" / "sweep.md"]
    assert page.index("sweep-sweep.svg") < page.index("sweep-hops.svg")
    assert ">β</text>" in pages[folder.parent / "figures" / "sweep-sweep.svg"]
    assert "searches a question" in pages[folder.parent / "figures" / "sweep-hops.svg"]


def test_a_figure_that_has_nothing_to_show_is_refused_when_a_seed_is_frozen(tmp_path: Path) -> None:
    run = experiment(tmp_path, 0)
    with pytest.raises(DataError, match="nothing for the figure 'auc'"):
        freeze_seed([run], **ASKED, figures=["arms", "auc"])
    with pytest.raises(DataError, match="no figure is called 'swep'"):
        freeze_seed([run], **ASKED, figures=["swep"])


def test_seeds_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    kept = freeze_seed([experiment(tmp_path / "runs", 0)], **ASKED)
    for seed in (10, 2):
        kept |= {"seed": seed}
        write_frozen(tmp_path / "kept" / f"seed{seed}.json", kept)
    assert list(dict.fromkeys(row["seed"] for row in comparison_results(tmp_path / "kept")["rows"])) == [2, 10]
    assert "seed 2: " in "\n".join(parts_of(tmp_path / "kept")).partition("seed 10: ")[0]


def test_a_file_and_a_folder_of_one_name_are_not_one_page(tmp_path: Path) -> None:
    folder = frozen(tmp_path)
    folder.with_suffix(".json").write_text("{}")
    with pytest.raises(DataError, match="would have one page"):
        render(folder.parent)


def test_a_list_of_figures_is_one_line(tmp_path: Path) -> None:
    write_frozen(tmp_path / "a.json", {"values": {"em": [1, 0.5, None], "f1": []}, "systems": [{"name": "a [b\\n] c"}]})
    text = (tmp_path / "a.json").read_text()
    assert '"em": [1, 0.5, null]' in text
    assert json.loads(text)["systems"] == [{"name": "a [b\\n] c"}]


def test_the_page_has_figures_costs_tests_and_gains(tmp_path: Path) -> None:
    text = "\n\n".join(parts_of(frozen(tmp_path)))
    figures, cost, *tests = rows(text, "other_rl")
    # eight questions, of which five are right; one of eight judged searches was needless
    assert figures[:3] == ["other_rl", "0, 1", figures[2]]
    assert figures[2].startswith("62.5 [")
    assert "12.5 [" in " ".join(figures)
    assert cost == ["other_rl", "1,090", "109 %", "180", "0", "30"], "9 % more is not marked"
    # +25 points in both seeds: no spread over them, so no test; two of eight questions differ
    assert tests[0][:2] == ["other_rl", "0, 1"]
    assert tests[0][2].startswith("+25.0 [")
    assert tests[0][5:] == ["–", "–"]
    gain = next(cells for cells in rows(text, "other_rl") if cells[1] == "sft")
    assert gain == ["other_rl", "sft", "12.5", "62.5", "+50.0", "–", "+50.0, +50.0"]


def test_a_row_beyond_a_tenth_of_the_baseline_s_tokens_is_marked(tmp_path: Path) -> None:
    text = "\n\n".join(parts_of(frozen(tmp_path)))
    assert "| other_rl  " in text
    assert text.count("hiprag_rl † ") == 2, "1110 against 1000 tokens"
    assert text.count("sft † ") == 2
    assert "prorag_rl †" not in text


def test_a_system_with_fewer_seeds_is_compared_on_those(tmp_path: Path) -> None:
    text = "\n\n".join(parts_of(frozen(tmp_path)))
    test = next(cells for cells in rows(text, "hiprag_rl") if cells[1] == "0" and cells[2].startswith("-25.0"))
    assert test[5:] == ["–", "–"], "one seed has no test over seeds"


def test_the_page_says_how_many_questions_a_seed_has(tmp_path: Path) -> None:
    folder = frozen(tmp_path)
    text = "\n".join(parts_of(folder))
    assert " made all rows. Means over seeds, 4 questions a seed. Percent, except searches" in text
    assert "n: questions scored" not in text, "there is no such column"
    shorter = json.loads((folder / "seed1.json").read_text())
    shorter["questions"].pop()
    for system in shorter["systems"]:
        system["values"] = {measure: values[:-1] for measure, values in system["values"].items()}
    write_frozen(folder / "seed1.json", shorter)
    assert "Means over seeds, 4 or 3 questions a seed. " in "\n".join(parts_of(folder))


def test_a_rate_that_cannot_be_compared_has_no_table_of_tests(tmp_path: Path) -> None:
    folder = frozen(tmp_path)
    assert [part for part in parts_of(folder) if part in ("### OSR", "### USR")] == ["### OSR"]
    for seed in (0, 1):
        kept = json.loads((folder / f"seed{seed}.json").read_text())
        for system in kept["systems"]:
            if system["name"] != "other_rl":  # the one system that has the rate, so all its cells would be dashes
                system["values"]["judged_searches"] = system["values"]["needless_searches"] = [0] * 4
        write_frozen(folder / f"seed{seed}.json", kept)
    parts = parts_of(folder)
    assert "12.5 [" in rows("\n".join(parts), "other_rl")[0][7], "its rate still stands among the figures"
    assert "### OSR" not in parts


def test_the_page_says_whether_one_version_of_the_code_made_it(tmp_path: Path) -> None:
    assert "One version of the code (aaa) made all rows." in "\n".join(parts_of(frozen(tmp_path / "one")))
    text = "\n".join(parts_of(frozen(tmp_path / "two", other_rl={"source": "bbb"})))
    assert "**Not one version of the code made all rows**" in text
    assert "aaa made most of them, bbb made other_rl (seed 1)." in text


def test_verifiers_and_published_figures_stand_beside_them(tmp_path: Path) -> None:
    folder = frozen(tmp_path, prm={"metrics": {"verifier/equality/over_search/kappa": 0.5, "loss": 9}})
    published = {"note": "Theirs.", "tables": [{"title": "T", "columns": ["EM"], "rows": [["X", "arXiv 1", "41.0"]]}]}
    (folder / "published.json").write_text(json.dumps(published))
    text = "\n".join(parts_of(folder))
    assert rows(text, "prm/equality/over_search") == [["prm/equality/over_search", "0.500"]]
    assert "## What the papers report\nTheirs.\n### T" in text
    assert rows(text, "X") == [["X", "arXiv 1", "41.0"]]


def test_one_command_freezes_a_seed_and_one_makes_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    asked = [
        "--baseline",
        "prorag_rl",
        "--benchmark",
        "toy/dev",
        "--title",
        "Systems",
        "--command",
        "train",
        "--question",
        "Which?",
    ]
    freeze_main([experiment(tmp_path / "runs", 0), "--out", str(folder / "systems" / "seed0.json"), *asked])
    (folder / "systems.md").write_text("The other.\n\nWhy: luck.\n")
    page_main([str(folder)])
    assert "## [Systems](kept/pages/systems.md)\n\n*Which?*\n\nThe other.\n" in (tmp_path / "kept.md").read_text()
    page = (folder / "pages" / "systems.md").read_text()
    assert page.startswith("# Systems\n\n*Which?*\n\nThe other.\n\n![Exact match by arm](")
    assert page.index("\n\nWhy: luck.\n\n## Systems\n") < page.index("| sft ")
    assert "```\ntrain\n```" in page
    assert render(folder)[folder / "pages" / "systems.md"] == page


def test_what_cannot_be_compared_is_one_clear_error(tmp_path: Path) -> None:
    run = experiment(tmp_path, 0)
    with pytest.raises(DataError, match="no system 'x' on toy/dev; there are: sft, prorag_rl, other_rl, hiprag_rl"):
        freeze_seed([run], **ASKED | {"baseline": "x"})
    with pytest.raises(DataError, match="there are: none"):
        freeze_seed([run], **ASKED | {"benchmark": "toy/test"})
    experiment(tmp_path, 1)
    with pytest.raises(DataError, match="compare: 2 finished seeds: freeze one at a time"):
        freeze_seed([str(tmp_path / "compare")], **ASKED)
    folder = frozen(tmp_path / "two")
    (folder / "seed2.json").write_text((folder / "seed0.json").read_text())
    with pytest.raises(DataError, match=r"seed2\.json is of seed 0, as another file"):
        parts_of(folder)


def test_the_page_shows_the_systems_in_a_figure(tmp_path: Path) -> None:
    folder = frozen(tmp_path)
    kept = comparison_results(folder)["rows"]
    assert [(row["experiment"], row["seed"], row["em"]) for row in kept if row["experiment"] == "other_rl"] == [
        ("other_rl", 0, 0.75), ("other_rl", 1, 0.5),
    ]  # fmt: skip
    assert kept[0]["em_low"] < kept[0]["em"] < kept[0]["em_high"]
    pages = render(folder.parent)
    assert "(../figures/systems-arms.svg)" in pages[folder.parent / "pages" / "systems.md"]
    drawn = pages[folder.parent / "figures" / "systems-arms.svg"]
    assert [name for name in SYSTEMS if f">{name}</text>" in drawn] == [*SYSTEMS]


def test_the_papers_figures_name_their_sources() -> None:
    published = json.loads((ROOT / "docs" / "results" / "compare" / "published.json").read_text())
    for part in published["tables"]:
        for row in part["rows"]:
            assert re.match(r"arXiv \d{4}\.\d{5}", row[1]), row
            assert len(row) == 2 + len(part["columns"]), row
