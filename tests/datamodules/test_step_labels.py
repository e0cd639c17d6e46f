from __future__ import annotations

from pathlib import Path

import pytest

from common.costs import JUDGED_STEPS
from common.errors import ConfigError, DataError
from datamodules.records import labelled_from_row, read_rows
from datamodules.step_labels import StepLabels
from datamodules.step_paths import Use
from envs.labelled_steps import LabelledEpisode
from envs.protocols.prorag import TAGS, ProRAG
from envs.token_ids import fingerprint
from tests.labelled import Branches, Knows, path, tree, write_search
from tests.making import check_shares_and_resumes, run
from tests.tiny import byte_tokenizer

# Two searches say the same and two claims differ, one of them followed by two answers.
BRANCHES: Branches = {
    "query Who?": {"subanswer Ada": {"answer Ada": {}, "answer Bob": {}}, "subanswer Bob": {}},
    "query Which?": {},
}


@pytest.fixture
def search(protocol: ProRAG, tmp_path: Path) -> Path:
    """Five trees; beside them what was played out on the first and the last."""
    trees = [tree(protocol, BRANCHES, f"q{number}") for number in range(5)]
    episodes = [path(protocol, "query Which?", "subanswer Ada", f"answer {name}", identity=f"q{number}")
                for number, name in ((0, "Ada"), (4, "Eve"))]  # fmt: skip
    return write_search(tmp_path / "search", trees, episodes)


def labelled(folder: Path) -> list[LabelledEpisode]:
    return [labelled_from_row(row) for row in read_rows(folder / "data" / "labels.jsonl", "labelled/1")]


def by_step(folder: Path) -> dict[str, float]:
    """Labels by the uid of their step; each step once."""
    found = [
        (one.episode.turns[place].uid, label)
        for one in labelled(folder)
        for place, label in enumerate(one.labels)
        if label is not None
    ]
    assert len(dict(found)) == len(found), "a step is learnt once"
    return dict(found)


def test_every_node_is_judged_once_whatever_its_siblings(protocol: ProRAG, search: Path, tmp_path: Path) -> None:
    judge = Knows()
    metrics = run(StepLabels(search, protocol, judge), tmp_path)
    assert len(judge.asked) == len(set(judge.asked)) == 5 * 6
    labels = by_step(tmp_path)
    own = {uid.removeprefix("q0/"): label for uid, label in labels.items() if uid.startswith("q0/")}
    assert own == {
        "query Who?": 0, "query Which?": 0, "query Who?/subanswer Ada": 1, "query Who?/subanswer Bob": 0,
        "query Who?/subanswer Ada/answer Ada": 1, "query Who?/subanswer Ada/answer Bob": 0,
    }  # fmt: skip
    assert metrics == {
        "steps": 30, "unlabelled": 0, "questions": 5, "judge/calls": 30, JUDGED_STEPS: 30,
        "steps/query": 10, "label/query": 0, "steps/subanswer": 10, "label/subanswer": 0.5,
        "steps/answer": 10, "label/answer": 0.5,
    }  # fmt: skip
    assert "30 labelled steps of 5 questions" in (tmp_path / "report.md").read_text()


def test_what_was_played_out_is_judged_too_and_shares_the_steps_of_the_tree(
    protocol: ProRAG, search: Path, tmp_path: Path
) -> None:
    metrics = run(StepLabels(search, protocol, Knows(), use="both"), tmp_path / "both")
    assert metrics["steps"] == 30 + 2 * 2, "of each of the two episodes the claim and the answer are new"
    assert by_step(tmp_path / "both")["q4/query Which?/subanswer Ada/answer Eve"] == 0.5
    alone = run(StepLabels(search, protocol, Knows(), use="rollouts"), tmp_path / "alone")
    assert (alone["steps"], alone["questions"]) == (6, 2)


def test_a_budget_is_spent_on_many_questions_and_a_smaller_one_is_part_of_a_larger(
    protocol: ProRAG, search: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    taken = {}
    for most in (4, 7, 12):
        judge = Knows()
        metrics = run(StepLabels(search, protocol, judge, most=most), tmp_path / str(most))
        assert metrics[JUDGED_STEPS] == most == len(judge.asked)
        taken[most] = by_step(tmp_path / str(most))
    assert taken[4].items() < taken[7].items() < taken[12].items()
    assert len({uid[:2] for uid in taken[12]}) == 5, "a path of every question comes before the second of any"
    assert not caplog.text
    run(StepLabels(search, protocol, Knows(), most=1000), tmp_path / "1000")
    assert "steps to judge, not the 1000 of `most`" in caplog.text


def test_steps_out_of_format_and_searches_without_hits_are_not_judged(protocol: ProRAG, tmp_path: Path) -> None:
    grown = tree(protocol, {"query Who?": {"!subanswer Ada": {}}, "query What?": {}})
    for node in grown.root.children[1:]:
        assert node.turn is not None
        node.turn.hits = ()
    judge = Knows()
    run(StepLabels(write_search(tmp_path / "search", [grown]), protocol, judge), tmp_path)
    assert judge.asked == ["q0/query Who?"]


def test_a_step_without_a_label_is_counted_and_not_learnt(protocol: ProRAG, tmp_path: Path) -> None:
    grown = tree(protocol, {"query Who?": {}, "query unknown": {}})
    metrics = run(StepLabels(write_search(tmp_path / "search", [grown]), protocol, Knows()), tmp_path)
    assert (metrics["steps"], metrics["unlabelled"], metrics[JUDGED_STEPS]) == (1, 1, 2)
    assert list(by_step(tmp_path)) == ["q0/query Who?"]
    silent = write_search(tmp_path / "silent", [tree(protocol, {"query unknown": {}})])
    with pytest.raises(DataError, match="the judge labelled none of 1 steps"):
        run(StepLabels(silent, protocol, Knows()), tmp_path / "none")


def test_ranks_share_the_questions_and_a_killed_run_goes_on(protocol: ProRAG, search: Path, tmp_path: Path) -> None:
    maker = StepLabels(search, protocol, Knows(), unit=2, use="both", most=20)
    check_shares_and_resumes(maker, tmp_path)


@pytest.mark.parametrize("use", ["tree", "rollouts", "both"])
def test_a_protocol_with_another_tokenizer_reads_no_steps(protocol: ProRAG, tmp_path: Path, use: Use) -> None:
    other = fingerprint(byte_tokenizer(TAGS[::-1]))
    found, played = tree(protocol, {"query Who?": {}}), path(protocol, "query Who?")
    found.tokenizer = played.tokenizer = other
    search = write_search(tmp_path / "search", [found], [played])
    with pytest.raises(DataError, match=r"jsonl:1: its token ids are those of another tokenizer"):
        run(StepLabels(search, protocol, Knows(), use=use), tmp_path)


def test_no_steps_at_all_and_numbers_out_of_range_are_one_clear_line(protocol: ProRAG, tmp_path: Path) -> None:
    search = write_search(tmp_path / "search", [tree(protocol, {})])
    with pytest.raises(DataError, match="no steps to judge"):
        run(StepLabels(search, protocol, Knows()), tmp_path)
    for settings in ({"unit": 0}, {"most": 0}):
        with pytest.raises(ConfigError, match="must be at least 1"):
            StepLabels(search, protocol, Knows(), **settings)
