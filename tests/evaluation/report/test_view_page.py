"""The page of a run: its numbers are those of the files, every link leads somewhere, whatever the run's state."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from evaluation.report.view_list import listed
from evaluation.report.view_page import write_episode
from evaluation.report.view_parts import tensorboard_links
from evaluation.report.view_run import read_answers, read_run
from tests.evaluation.fake import answered, evaluation, run
from tests.evaluation.report.view_fakes import Page, arm, experiment, judged, page
from tests.evaluation.report.view_stages import every_stage, fitted, two_policies

BEFORE = [judged(0, 1, True, True), judged(1, 0, False, False), judged(2, 0, True, False), judged(3, 1, True, True)]
AFTER = [judged(0, 0, True, False), judged(1, 1, False, True, flawed=1.0), judged(2, 1, True, True), judged(3, 1)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    stages = {"eval_sft": arm(tmp_path, "eval_sft", BEFORE), "eval_rl": arm(tmp_path, "eval_rl", AFTER)}
    return experiment(tmp_path, stages, question="Does <RL> help?")


@pytest.fixture
def shown(folder: Path) -> Page:
    return page(folder)


def test_it_opens_with_the_question_and_what_differs(shown: Page) -> None:
    start = shown.html[shown.html.index("<h1>") : shown.html.index("<nav")]
    assert "exp, seed 0" in start
    assert "Does &lt;RL&gt; help?" in start
    assert "rl.module.lr=2" in start
    assert "Not finished" not in start


def test_every_link_leads_to_one_place(shown: Page) -> None:
    assert len(shown.ids) == len(set(shown.ids))
    assert set(shown.links) <= set(shown.ids)
    assert {"list-0-wrong", "list-1-flawed", "e0", "p0", "episodes"} <= set(shown.links)


def test_wrong_and_flawed_episodes_are_counted_by_their_first_untrue_step(shown: Page) -> None:
    header, *lines = shown.tables["Wrong and flawed episodes by the kind of their first untrue step"]
    assert header[2:] == ["answer", "query", "no untrue step"]
    assert [line[2:] for line in lines] == [["1", "1", "0"], ["1", "1", "0"]]


def test_two_arms_stand_side_by_side_and_their_differences_are_listed(shown: Page) -> None:
    _, *lines = shown.tables["Where they differ, the largest difference first"]
    assert [(line[0], line[1]) for line in lines] == [
        ("Question 1?", "+100"),
        ("Question 0?", "-100"),
        ("Question 2?", "+100"),
    ]
    question = shown.html[shown.html.index('id="q1"') : shown.html.index('id="q2"')]
    assert question.index("eval_sft</h4>") < question.index("eval_rl</h4>")


def test_an_episode_has_what_was_written_found_and_known(shown: Page) -> None:
    text = shown.text["e1"]
    for part in ("1. query", "who is 1?", "2 passages, 1 gold", "true ✗", "EM 0.0", "step_budget"):
        assert part in text
    assert "Who wrote it? Ann" in shown.text["q1"]
    assert "Text of d1." in shown.text[f"p{shown.html.split('Title d1')[0].rpartition('#p')[2].partition(chr(34))[0]}"]
    told = shown.attributes["e1"]
    assert (told["data-outcome"], told["data-mistakes"], told["data-status"]) == ("wrong", "wrong cut", "step_budget")


def test_a_tree_unfolds_with_its_figures_its_chosen_path_and_what_was_judged(tmp_path: Path) -> None:
    shown = page(experiment(tmp_path, every_stage(tmp_path, reason="it <asks> for the hop")))
    trees = shown.html[shown.html.index('id="trees"') : shown.html.index('id="training"')]
    assert "1 of 1 trees: where least was decided." in trees
    assert trees.count("★</b> <b>") == 3, "the question, the good branch, its end"
    good = trees[trees.index("<b>query</b>") :]
    assert good.startswith('<b>query</b> <i class="c good">N 3, Q 0.80, P 0.75</i> <i class="c">1 judgement</i>')
    assert "judged better than “<bdi>bad</bdi>”: <bdi>it &lt;asks&gt; for the hop</bdi>" in good
    bad = trees[trees.index("says bad") - 200 :]
    assert '<details><summary><b>query</b> <i class="c bad">N 1, Q 0.10, P 0.25</i>' in bad
    assert "judged worse than “<bdi>good Who?</bdi>”" in bad
    assert '<li><b>query</b> <i class="c ">N 0, Q –, P 0.10</i> <bdi>says idle</bdi></li>' in trees, "nothing to unfold"
    assert "<b>answer</b>" in trees
    assert "answered, value 1.00" in trees


def test_curves_and_step_rankings_are_figures_with_their_values_as_tables(tmp_path: Path) -> None:
    shown = page(experiment(tmp_path, every_stage(tmp_path)))
    for caption in ("Learning curves of exp/seed0", "AUC by kind of step", "Reliability by kind of step"):
        assert f'<figure class="w" tabindex="0" aria-label="{caption}"><svg' in shown.html
    curve = dict(zip(*shown.tables["Learning curves of exp/seed0, the values"], strict=True))
    assert curve == {
        "tag": "reward", "stage": "rl", "updates": "0 to 2",
        "first": "0.250", "last": "0.500", "least": "0.250", "most": "0.750",
    }  # fmt: skip
    _, *ranked = shown.tables["AUC by kind of step, the values"]
    # true steps score 1, 1, 1, -1 and untrue ones -1, -1, -1, 1: (3 * 3.5 + 1.5) of 16 pairs
    assert [line[2][:6] for line in ranked if line[:2] == ["query", "prm"]] == ["0.750 "]
    assert len(shown.tables["Reliability by kind of step, the values"]) > 2


def test_without_truth_and_passages_there_are_dashes(tmp_path: Path) -> None:
    stages = {"eval": evaluation(tmp_path / "store" / "eval-1", [answered(0, 1), answered(1, 0)])}
    shown = page(experiment(tmp_path, stages))
    assert "true –" in shown.text["e0"]
    assert "First untrue" not in shown.html.replace("first untrue", "")
    assert "– No stage searched." in shown.html
    assert "d1" in shown.text["e1"], "a passage without a text is shown by its id"


def test_a_run_half_done_says_what_is_missing(tmp_path: Path) -> None:
    begun = tmp_path / "store" / "rl-1"
    begun.mkdir(parents=True)
    stages = {"eval_sft": arm(tmp_path, "eval_sft", BEFORE), "rl": begun, "eval_rl": tmp_path / "store" / "eval_rl-1"}
    shown = page(experiment(tmp_path, stages))
    assert "Not finished: rl, eval_rl." in shown.html
    states = {row[0]: row[1] for row in shown.tables["All stages of exp/seed0"]}
    assert states == {"stage": "state", "eval_sft": "finished", "rl": "not finished", "eval_rl": "not begun"}
    assert shown.counts()["eval_sft"][1] == "4"


def test_a_stage_that_failed_says_why(tmp_path: Path) -> None:
    failed = tmp_path / "store" / "rl-1"
    failed.mkdir(parents=True)
    (failed / "failed.txt").write_text("dev.jsonl:3: <not> JSON\n")
    shown = page(experiment(tmp_path, {"rl": failed, "eval_rl": tmp_path / "store" / "eval_rl-1"}))
    assert "Not finished: rl (failed: dev.jsonl:3: &lt;not&gt; JSON), eval_rl." in shown.html
    states = {row[0]: row[1] for row in shown.tables["All stages of exp/seed0"]}
    assert states == {"stage": "state", "rl": "failed: dev.jsonl:3: <not> JSON", "eval_rl": "not begun"}


def test_of_many_unfinished_stages_their_number_is_told_and_those_that_failed(tmp_path: Path) -> None:
    failed = tmp_path / "store" / "rl-1"
    failed.mkdir(parents=True)
    (failed / "failed.txt").write_text("out of memory\n")
    waiting = {f"eval_{number}": tmp_path / "store" / f"eval_{number}-1" for number in range(6)}
    stages = {"eval_sft": arm(tmp_path, "eval_sft", BEFORE), "rl": failed, **waiting}
    start = page(experiment(tmp_path, stages)).html.partition("<nav")[0]
    strong = start[start.index("<strong>Not") : start.index("</strong> The")]
    assert strong == "<strong>Not finished: 7 of 8 stages, among them rl (failed: out of memory)."
    folded = start[start.index("<details>") : start.index("</details>")]
    assert "rl (failed: out of memory), eval_0, eval_1, eval_2, eval_3, eval_4, eval_5" in folded
    assert "</code>. <strong>" in " ".join(start.split()), "a space before it"


def test_links_to_tensorboard_show_every_curve_that_is_drawn_and_no_name_is_a_pattern(tmp_path: Path) -> None:
    stages = {"rl": fitted(tmp_path, "rl", [0.0, 1.0], tag="prm/pair_accuracy")}
    shown = page(experiment(tmp_path, stages | {"eval": arm(tmp_path, "eval", BEFORE)}))
    links = [parse_qs(urlsplit(link).query) for link in re.findall(r'href="(http[^"]*)"', unescape(shown.html))]
    assert links[0]["tagFilter"] == ["^prm/"]
    named = replace(read_run(tmp_path / "exp" / "seed0"), folder=Path("/runs/a+b(c)/seed0"))
    ((tag, link), *_) = tensorboard_links([named], ["step_reward"])
    chosen = parse_qs(urlsplit(link).query)
    assert tag == "step_reward"
    assert re.search(chosen["runFilter"][0], "a+b(c)/seed0/rl")
    assert re.search(chosen["tagFilter"][0], "step_reward")


def test_what_is_not_known_of_a_question_is_a_dash_and_its_type_is_set_apart(tmp_path: Path) -> None:
    rows = [judged(0, 1, True) | {"answers": [], "em": None, "f1": None, "type": "bridge"}]
    shown = page(experiment(tmp_path, {"eval": arm(tmp_path, "eval", [*rows, judged(1, 1)])}))
    assert "Accepted: – · 1 hop · <bdi>bridge</bdi> · <code><bdi>q0</bdi></code>" in shown.html


def test_a_run_that_has_made_nothing_yet_has_a_page_of_dashes(tmp_path: Path) -> None:
    shown = page(experiment(tmp_path, {"sft": tmp_path / "store" / "sft-1"}))
    for dash in ("No evaluation is finished", "No stage has drawn a curve", "No stage ranked steps", "None were kept"):
        assert f"– {dash}" in shown.html


def test_what_a_stage_changed_is_told_and_its_policies_are_the_two_that_are_compared(folder: Path) -> None:
    two_policies(folder)
    shown = page(folder)
    header, before, after = shown.tables["Change by stage: exp/seed0"]
    assert dict(zip(header, before, strict=True))["EM"] == "–"
    assert after[:3] == ["eval_rl", "eval_sft", "toy/dev"]
    assert after[3].startswith("+25.0 [")
    assert "eval_sft against eval_rl" in shown.html


@pytest.mark.parametrize("damaged", ["manifest.json", "data/results.json", "data/predictions-toy-dev.jsonl"])
def test_a_damaged_file_is_named_and_the_rest_is_shown(folder: Path, damaged: str) -> None:
    two_policies(folder)
    (folder.parents[1] / "store" / "eval_rl-1" / damaged).write_text("{")
    shown = page(folder)
    assert "Could not be read:" in shown.html
    assert Path(damaged).name in shown.html
    assert shown.counts()["eval_sft"][1] == "4"


def test_a_step_ranking_of_an_earlier_version_is_left_out_and_named(folder: Path) -> None:
    data = folder.parents[1] / "store" / "eval_rl-1" / "data"
    (data / "step_ranking.json").write_text("{}")
    (data / "steps.jsonl").write_text('{"id": "q", "kind": "query", "valid": true, "scores": {"prm": 1.0}}\n')
    shown = page(folder)
    assert "a step ranking lacks" in shown.html
    assert "– No stage ranked steps." in shown.html


def test_the_same_run_gives_the_same_bytes(folder: Path, shown: Page) -> None:
    assert page(folder).html == shown.html


def test_the_same_id_in_two_worlds_is_not_the_same_question(tmp_path: Path) -> None:
    first = arm(tmp_path, "eval_a", [judged(0, 1)])
    second = arm(tmp_path, "eval_b", [judged(0, 0, question="Another?")])
    answers = list(read_answers(read_run(experiment(tmp_path, {"a": first, "b": second}))))
    assert [question.shown["text"] for question in listed(answers).questions] == ["Question 0?", "Another?"]


def test_several_runs_are_compared_on_one_page(tmp_path: Path) -> None:
    folders = [
        experiment(tmp_path, {"eval": arm(tmp_path, f"eval_{name}", rows)}, name=name)
        for name, rows in (("base", BEFORE), ("new", AFTER))
    ]
    shown = page(*folders)
    assert "<title>Comparison</title>" in shown.html
    assert set(shown.counts()) == {"arm", "base/seed0:eval", "new/seed0:eval"}
    assert "base/seed0:eval against new/seed0:eval" in shown.html
    assert len(shown.tables["Where they differ, the largest difference first"]) == 4


def test_the_same_seed_of_two_experiments_is_compared_and_not_two_seeds(tmp_path: Path) -> None:
    folders = [
        experiment(tmp_path, {"eval": arm(tmp_path, f"eval_{name}{seed}", rows)}, name=name, seed=seed)
        for name, rows in (("base", BEFORE), ("new", AFTER))
        for seed in (0, 1)
    ]
    assert "base/seed0:eval against new/seed0:eval" in page(*folders).html


def test_arms_that_do_equally_well_are_said_to(tmp_path: Path) -> None:
    stages = {name: arm(tmp_path, name, BEFORE) for name in ("eval_a", "eval_b")}
    assert "No two arms answered the same question differently well." in page(experiment(tmp_path, stages)).html


def test_the_report_writes_it_too(tmp_path: Path) -> None:
    run(tmp_path, "exp", [1, 0])
    assert Page((tmp_path / "exp" / "seed0" / "report.html").read_text()).counts()["eval"][1:3] == ["2", "1"]
    assert "[report.html](report.html)" in (tmp_path / "exp" / "seed0" / "report.md").read_text()


def test_one_question_has_a_page_of_its_own_and_is_not_scored_where_no_answer_is_known(tmp_path: Path) -> None:
    row = judged(0, 1, True, None) | {"answers": [], "em": None, "f1": None}
    found = {"d0": {"title": "Zero", "text": "What d0 says."}}
    write_episode(tmp_path / "one.html", "eval_rl", row, found)
    shown = Page((tmp_path / "one.html").read_text())
    for part in ("Question 0?", "eval_rl", "true ✓", "true –", "unscored –", "EM –, F1 –"):
        assert part in shown.html
    assert "What d0 says." in shown.text["p0"]


def test_an_older_run_is_known_by_its_results(tmp_path: Path) -> None:
    run(tmp_path, "exp", [1, 0])
    told = read_run(tmp_path / "exp" / "seed0")
    assert (list(told.stages), told.changes) == (["eval"], "")
    results = json.loads((tmp_path / "exp" / "seed0" / "results.json").read_text())
    assert results["artifacts"] == {"eval": "../../store/eval-exp-0"}
