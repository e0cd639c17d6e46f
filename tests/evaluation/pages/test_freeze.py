from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluation.pages.freeze import freeze, main
from evaluation.report.report import write
from tests.evaluation.fake import answered, evaluation, run
from tests.evaluation.pages.systems import ASKED, experiment, sweep
from tests.evaluation.pages.test_training_curves import fit

TITLE = {"title": "T", "command": "c"}


def test_a_frozen_run_holds_what_it_takes_to_repeat_it(tmp_path: Path) -> None:
    run(tmp_path, "exp", [1, 0], seed=0)
    run(tmp_path, "exp", [1, 1], seed=1)
    kept = freeze([str(tmp_path / "exp")], title="T", command="make it", question="Why?", machine="an abacus")
    assert [(row["arm"], row["experiment"], row["stage"], row["seed"], row["em"]) for row in kept["rows"]] == [
        ("eval", "exp", "eval", 0, 0.5),
        ("eval", "exp", "eval", 1, 1.0),
    ]
    assert kept["rows"][0]["values"] == {"em": [1, 0], "f1": [1, 0], "searches": [2, 2]}
    assert [(asked["seed"], len(set(asked["hashes"]))) for asked in kept["questions"]] == [(0, 2), (1, 2)]
    place = {"arm": "eval", "experiment": "exp", "stage": "eval"}
    unknown = {"sources": ["unknown"], "warm_up": None, "costs": None}
    stage = {"experiment": "exp", "stage": "eval", "seconds": None, "costs": {}}
    assert {name: value for name, value in kept.items() if name not in ("rows", "questions")} == {
        "title": "T",
        "question": "Why?",
        "command": "make it",
        "machine": "an abacus",
        "versions": {"torch": "2.13.0"},
        "commits": ["abc123"],
        "figures": [],
        "baseline": "eval",
        "names": {},
        "arms": [place | {"seed": 0} | unknown, place | {"seed": 1} | unknown],
        "stopping": [],
        "types": [],
        "curves": [],
        "rankings": [],
        "stages": [stage | {"seed": 0, "metrics": {"em": 0.5}}, stage | {"seed": 1, "metrics": {"em": 1.0}}],
        "notes": {"eval": {"top_k": 3}},
    }


def test_opinions_and_abstentions_are_kept_where_there_are_any(tmp_path: Path) -> None:
    asked = [
        {"judged": 1.0, "coverage": 1.0, "selective_em": 1.0},
        {"judged": None, "coverage": 0.0, "selective_em": None},
    ]
    rows = [answered(number, em, **more) for number, (em, more) in enumerate(zip([1, 0], asked, strict=True))]
    folder = evaluation(tmp_path / "store" / "eval-1", rows)
    write(tmp_path, "exp", 0, {"eval": folder})
    [row] = freeze([str(tmp_path / "exp")], **TITLE)["rows"]
    kept = {name: row["values"][name] for name in ("judged", "coverage", "selective_em")}
    assert kept == {"judged": [1, None], "coverage": [1, 0], "selective_em": [1, None]}


def test_a_frozen_seed_has_every_question_and_what_each_policy_cost(tmp_path: Path) -> None:
    kept = freeze([experiment(tmp_path, 0)], **ASKED)
    arms, rows = ({entry["arm"]: entry for entry in kept[part]} for part in ("arms", "rows"))
    assert list(arms) == ["sft", "prorag_rl", "other_rl", "hiprag_rl"]
    assert rows["prorag_rl"]["values"]["em"] == [1, 1, 0, 0]
    assert rows["prorag_rl"]["values"]["needless_searches"] == [1, 0, 0, 0]
    assert arms["prorag_rl"]["costs"] == {
        "last_tokens": 400, "tokens": {"policy": 1000}, "updates": 186, "judge_calls": 40, "cpu_seconds": 50.0,
    }  # fmt: skip
    assert [arm["warm_up"] for arm in arms.values()] == [None, "sft", "sft", "sft"]
    assert [len(set(asked["hashes"])) for asked in kept["questions"]] == [4]


def test_the_curve_of_a_policy_is_kept_with_its_arm(tmp_path: Path) -> None:
    run_folder = experiment(tmp_path, 0)
    fit(tmp_path / "store" / "prorag_rl-0")
    [curve] = freeze([run_folder], **ASKED)["curves"]
    assert (curve["arm"], curve["stage"], curve["seed"]) == ("prorag_rl", "eval_prorag_rl", 0)
    assert (curve["tokens"], curve["em"]) == ([0, 250, 380], [0.25, 0.5, 0.75])


def test_what_several_experiments_share_is_an_arm_and_a_stage_once(tmp_path: Path) -> None:
    little, much = (sweep(tmp_path, 0, beta, em) for beta, em in (("0", [1, 1, 0, 0]), ("0.5", [1, 1, 1, 1])))
    first = experiment(tmp_path, 0)
    kept = freeze([f"{first}:eval_sft", little, f"{much}:eval_rl"], **ASKED | {"baseline": "beta_0:rl"})
    arms = {arm["arm"]: arm for arm in kept["arms"]}
    assert list(arms) == ["compare:sft", "beta_0:rl", "beta_0.5:rl"]
    assert [arm["warm_up"] for arm in arms.values()] == [None, "compare:sft", "compare:sft"]
    assert arms["beta_0.5:rl"]["costs"]["tokens"] == {"policy": 300}
    assert arms["beta_0.5:rl"]["costs"]["updates"] == 159
    stopped = {"n": 4, "em": 1, "searches": 2.5, "premature": None, "late": None}
    assert [row for row in kept["stopping"] if row["arm"] == "beta_0.5:rl"] == [
        {"arm": "beta_0.5:rl", "experiment": "beta_0.5", "seed": 0, "stage": "eval_rl"}
        | {"dataset": "toy", "split": "dev", "hops": "2"}
        | stopped
    ]
    typed = {"n": 4, "em": 1, "em_low": 0.25, "em_high": 1.0, "f1": None, "recall": 0.5, "searches": None}
    assert [row for row in kept["types"] if row["arm"] == "beta_0.5:rl"] == [
        {"arm": "beta_0.5:rl", "experiment": "beta_0.5", "seed": 0, "stage": "eval_rl"}
        | {"dataset": "toy", "split": "dev", "type": "bridge"}
        | typed
    ]
    stages = [(stage["experiment"], stage["stage"]) for stage in kept["stages"]]
    assert stages.count(("compare", "sft")) == 1
    assert ("beta_0", "sft") not in stages


def test_results_of_different_commits_name_them_all(tmp_path: Path) -> None:
    artifacts = {c: evaluation(tmp_path / "store" / c, [answered(0, 1)], commit=c) for c in ("new", "old")}
    write(tmp_path, "exp", 0, artifacts)
    assert freeze([str(tmp_path / "exp")], **TITLE)["commits"] == ["new", "old"]
    assert freeze([f"{tmp_path / 'exp'}:old"], **TITLE)["commits"] == ["old"]


def test_every_measure_is_kept_with_its_interval(tmp_path: Path) -> None:
    row = {"dataset": "toy", "split": "dev", "n": 2, "em": 0.5, "em_low": 0.25, "em_high": 0.75, "recall": 0.3}
    write(tmp_path, "exp", 0, {"eval": evaluation(tmp_path / "store" / "a", [answered(0, 1)], rows=[row])})
    (kept,) = freeze([str(tmp_path / "exp")], **TITLE)["rows"]
    assert {name: kept[name] for name in row} == row


def test_nothing_is_written_where_a_figure_has_nothing_to_show(tmp_path: Path) -> None:
    run(tmp_path, "exp", [1, 0])
    asked = ["--title", "T", "--command", "c", "--figure", "auc"]
    with pytest.raises(SystemExit, match=r"^error: the results hold nothing for the figure 'auc'[^\n]*$"):
        main([str(tmp_path / "exp"), "--out", str(tmp_path / "a.json"), *asked])
    assert not (tmp_path / "a.json").exists()


def test_the_command_writes_what_freezing_gives(tmp_path: Path) -> None:
    made = experiment(tmp_path, 0)
    more = ["--baseline", "prorag_rl", "--title", "Systems", "--command", "run", "--question", "Which?"]
    main([made, "--out", str(tmp_path / "a.json"), *more])
    assert json.loads((tmp_path / "a.json").read_text()) == {"schema": "frozen/1"} | freeze([made], **ASKED)
