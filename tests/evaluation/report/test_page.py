"""The file of a page: its tables are those of the run's files, every link leads somewhere, text of others is text."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from evaluation.kept_episodes import keep
from evaluation.report.page import render, tensorboard_links, write_episode
from evaluation.report.run import read_run
from tests.evaluation.fake import run
from tests.evaluation.report.fakes import Page, arm, collected, experiment, judged, page
from tests.evaluation.report.stages import fitted, searched, tree, two_policies

BEFORE = [judged(0, 1, True, True), judged(1, 0, False, False), judged(2, 0, True, False), judged(3, 1, True, True)]
AFTER = [judged(0, 0, True, False), judged(1, 1, False, True, flawed=1.0), judged(2, 1, True, True), judged(3, 1)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    stages = {"eval_sft": arm(tmp_path, "eval_sft", BEFORE), "eval_rl": arm(tmp_path, "eval_rl", AFTER)}
    return experiment(tmp_path, stages, question="Does <RL> help?")


def test_it_opens_with_the_question_and_what_differs(folder: Path) -> None:
    html = page(folder).html
    start = html[html.index("<h1>") : html.index("<nav")]
    for told in ("exp, seed 0", "Does &lt;RL&gt; help?", "rl.module.lr=2"):
        assert told in start
    assert "Not finished" not in start


def test_stages_have_the_names_of_their_experiment_with_a_legend(tmp_path: Path) -> None:
    stages = {stage: arm(tmp_path, stage, rows) for stage, rows in (("eval_sft", BEFORE), ("eval_rl", AFTER))}
    shown = page(experiment(tmp_path, stages, names={"eval_rl": "All stages", "rank": "of no stage"}))
    assert [row[0] for row in shown.tables["Results: toy/dev"]] == ["stage", "eval_sft", "All stages"]
    assert shown.data["arms"] == ["eval_sft", "All stages"]
    assert (shown.data["pair"]["first"], shown.data["pair"]["second"]) == ("eval_sft", "All stages")
    assert list(shown.data["figures"]["arms"]["panels"]["toy/dev"]) == ["exp:eval_sft", "All stages"]
    assert "Stages by name: All stages <code>eval_rl</code>." in shown.html


def test_every_link_within_it_leads_to_one_place(folder: Path) -> None:
    shown = page(folder)
    assert len(shown.ids) == len({*shown.ids})
    assert {link[1:] for link in shown.hrefs if link.startswith("#")} <= {*shown.ids}


def test_its_data_can_neither_close_their_element_nor_be_read_as_markup(folder: Path) -> None:
    data = collected(folder)
    data["questions"][0]["text"] = "</script><!-- <script>\u2028 & \u202e"
    html = render(data)
    assert html.count("<script") == html.count("</script>") == 2
    assert Page(html).data["questions"][0]["text"] == "</script><!-- <script>\u2028 & \u202e"


def test_a_run_half_done_says_what_is_missing_and_what_failed_and_why(tmp_path: Path) -> None:
    failed = tmp_path / "store" / "rl-1"
    failed.mkdir(parents=True)
    (failed / "failed.txt").write_text("dev.jsonl:3: <not> JSON\n")
    stages = {"eval_sft": arm(tmp_path, "eval_sft", BEFORE), "rl": failed, "eval_rl": tmp_path / "store" / "eval_rl-1"}
    shown = page(experiment(tmp_path, stages))
    assert "Not finished: rl (failed: dev.jsonl:3: &lt;not&gt; JSON), eval_rl." in shown.html
    states = {row[0]: row[1] for row in shown.tables["All stages of exp/seed0"][1:]}
    assert states == {"eval_sft": "finished", "rl": "failed: dev.jsonl:3: <not> JSON", "eval_rl": "not begun"}


def test_of_many_unfinished_stages_their_number_is_told_and_those_that_failed(tmp_path: Path) -> None:
    failed = tmp_path / "store" / "rl-1"
    failed.mkdir(parents=True)
    (failed / "failed.txt").write_text("out of memory\n")
    waiting = {f"eval_{number}": tmp_path / "store" / f"eval_{number}-1" for number in range(6)}
    stages = {"eval_sft": arm(tmp_path, "eval_sft", BEFORE), "rl": failed, **waiting}
    start = page(experiment(tmp_path, stages)).html.partition("<nav")[0]
    assert "<strong>Not finished: 7 of 8 stages, among them rl (failed: out of memory).</strong> The" in start
    assert "rl (failed: out of memory), eval_0, eval_1, eval_2, eval_3, eval_4, eval_5</p></details>" in start


def test_stages_tell_what_they_made_how_long_they_took_and_where_their_own_page_is(tmp_path: Path) -> None:
    label = tmp_path / "store" / "label-1"
    label.mkdir(parents=True)
    metrics = {"pairs": 1856.0, "loss": 0.12345, "guess_em": 0.234, "none": None, "note": "as <it> was", "many": [1, 2]}
    (label / "manifest.json").write_text(json.dumps({"kind": "make", "seconds": 61.4, "metrics": metrics}))
    (label / "report.md").write_text("# Pairs")
    folder = experiment(tmp_path, {"label": label, "eval": arm(tmp_path, "eval", BEFORE)})
    shown = page(folder)
    told = "pairs 1856, loss 0.1235, guess_em 0.234, none –, note as <it> was, many [1, 2]"
    assert shown.tables["All stages of exp/seed0"][1] == ["label", "finished", "label-1", "make", "report", "61", told]
    (link,) = [link for link in shown.hrefs if link.endswith("report.md")]
    assert (folder / link).read_text() == "# Pairs"
    assert "would score, in percent: label guess_em 23.4." in shown.html


def test_results_have_all_measures_with_intervals_and_groups_in_order(tmp_path: Path) -> None:
    bare = {"dataset": "toy", "split": "dev", "n": 1, "em": 1.0}
    row = bare | {"true_steps": 0.5, "flawed": 0.25, "flawed_low": 0.125, "flawed_high": 0.5}
    groups = [{**bare, "group": group} for group in ("hops=10", "hops=2", "type=<b>")]
    notes = {"stops": {"answered": 7, "cut": 2}, "limits": {"turns": {"max": 4}}, "top_k": 3, "datasets": ["a", "b"]}
    shown = page(experiment(tmp_path, {"eval": arm(tmp_path, "eval", BEFORE, rows=[row], groups=groups, notes=notes)}))
    assert shown.tables["Results: toy/dev"] == [["stage", "EM", "flawed", "n"], ["eval", "100.0", "25.0", "1"]]
    assert shown.tables["toy/dev, all questions"][1] == ["eval", "100.0", "25.0 [12.5, 50.0]", "50.0", "1"]
    assert shown.tables["toy/dev, all questions"][0] == ["stage", "EM", "flawed", "true steps", "n"]
    assert [line[0] for line in shown.tables["toy/dev, by hops"]] == ["hops", "2", "10"]
    assert shown.tables["toy/dev, by type"][1][0] == "<b>"
    listed = "<li>stops: answered 7, cut 2</li><li>limits: <ul><li>turns: max 4</li></ul></li><li>top_k: 3</li>"
    assert f"{listed}<li>datasets: a, b</li>" in shown.html


def test_links_to_tensorboard_show_every_curve_that_is_drawn_and_no_name_is_a_pattern(tmp_path: Path) -> None:
    stages = {"rl": fitted(tmp_path, "rl", [0.0, 1.0], tag="prm/pair_accuracy")}
    shown = page(experiment(tmp_path, stages | {"eval": arm(tmp_path, "eval", BEFORE)}))
    links = [parse_qs(urlsplit(link).query) for link in shown.hrefs if link.startswith("http")]
    assert links[0]["tagFilter"] == ["^prm/"]
    named = replace(read_run(tmp_path / "exp" / "seed0"), folder=Path("/runs/a+b(c)/seed0"))
    ((tag, link), *_) = tensorboard_links([named], ["step_reward"])
    chosen = parse_qs(urlsplit(link).query)
    assert tag == "step_reward"
    assert re.search(chosen["runFilter"][0], "a+b(c)/seed0/rl")
    assert re.search(chosen["tagFilter"][0], "step_reward")


def test_a_run_that_has_made_nothing_yet_has_a_page_of_dashes(tmp_path: Path) -> None:
    html = page(experiment(tmp_path, {"sft": tmp_path / "store" / "sft-1"})).html
    for dash in ("No evaluation is finished", "No stage has drawn a curve", "No stage ranked steps"):
        assert f"– {dash}" in html


def test_what_a_stage_changed_is_told_and_its_policies_are_the_two_that_are_compared(folder: Path) -> None:
    two_policies(folder)
    shown = page(folder)
    header, before, after = shown.tables["Change by stage: exp/seed0"]
    assert dict(zip(header, before, strict=True))["EM"] == "–"
    assert after[:3] == ["eval_rl", "eval_sft", "toy/dev"]
    assert after[3].startswith("+25.0 [")
    assert (shown.data["pair"]["first"], shown.data["pair"]["second"]) == ("eval_sft", "eval_rl")


def test_of_several_runs_everything_says_whose_it_is(tmp_path: Path) -> None:
    folders = []
    for name, rows in (("base", BEFORE), ("new", AFTER)):
        store = tmp_path / name / "store"
        stages = {"eval": arm(tmp_path / name, "eval", rows), "search": searched(store, tree()), "rl": store / "rl-1"}
        data = stages["rl"] / "data"
        keep(data / "validation" / "0.json", rows, {}, dataset="toy", split="dev", update=0)
        rewarded = rows[0] | {"shown_as": "best of 2", "outcome": {"reward": 1.0}}
        keep(data / "iterations" / "0.json", [rewarded], {}, iteration=0, update=0)
        folders.append(experiment(tmp_path / name, stages, name=name))
    shown = page(*folders)
    names = ["base/seed0", "new/seed0"]
    assert "<title>Comparison</title>" in shown.html
    assert [*shown.counts()] == shown.data["arms"] == [f"{name}:eval" for name in names]
    for part, stage in (("trees", "search"), ("iterations", "rl"), ("minds", "rl")):
        assert [each["stage"] for each in shown.data[part]] == [f"{name}:{stage}" for name in names]
    for pattern in (r"<h3>(.*?)</h3>", r"<caption>(.*?)</caption>", r'role="region" aria-label="(.*?)"'):
        assert {1} >= {*Counter(re.findall(pattern, shown.html)).values()}


def test_the_report_writes_it_too(tmp_path: Path) -> None:
    run(tmp_path, "exp", [1, 0])
    told = Page((tmp_path / "exp" / "seed0" / "report.html").read_text()).counts()["eval"]
    assert (told["n"], told["mistakes"]["wrong"]) == (2, 1)
    assert "[report.html](report.html)" in (tmp_path / "exp" / "seed0" / "report.md").read_text()


def test_one_question_has_a_page_of_its_own_and_is_not_scored_where_no_answer_is_known(tmp_path: Path) -> None:
    row = judged(0, 1, True, None) | {"answers": [], "em": None, "f1": None}
    write_episode(tmp_path / "one.html", "eval_rl", row, {"d0": {"title": "Zero", "text": "What d0 says."}})
    shown = Page((tmp_path / "one.html").read_text())
    one = shown.data["one"]
    assert (one["name"], one["question"]["text"]) == ("eval_rl", "Question 0?")
    assert (one["episode"]["outcome"], one["episode"]["scores"]) == ("unscored", "EM –, F1 –")
    assert [step["chips"][1][0] for step in one["episode"]["steps"]] == ["true ✓", "true –"]
    assert shown.data["passages"] == [["d0", "Zero", "What d0 says."]]
