from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from common.costs import tokens_of
from common.errors import ConfigError, DataError, RetrievalError
from datamodules.records import episode_from_row, read_rows
from datamodules.tree.selection import AllAtOnce, Puct
from datamodules.tree.values import AnswerScore, DiscountedMean, Leaf
from datamodules.tree_search import TreeSearch, read_trees
from envs.protocols.prorag import ProRAG
from envs.requests import Request
from envs.retrieval import RetrievalEnvironment
from envs.types import Document, Episode, Hit, Limits, Question, Turn
from tests import making
from tests.making import files
from tests.tiny import FixedRetriever, Scripted

run = partial(making.run, seed=3)
DOCUMENTS = [Document("d1", "Ada", "Ada wrote it."), Document("d2", "Bob", "Bob did not.")]
LINES = (
    "look </step>\n<subquery>\nwho </subquery>",
    "read </step>\n<subanswer>\nAda </subanswer>",
    "know </step>\n<answer>\nAda </answer>",
    "guess </step>\n<answer>\nAda Bob </answer>",
)


class Questions:
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Question]:
        return (Question(f"q{i}", f"Who wrote book {i}?", ("Ada",)) for i in range(self.count))

    def documents(self) -> Iterator[Document]:
        return iter(())


class Unequal(Scripted):
    """Finds longer lines less likely, token by token."""

    def take(self, request: Request) -> Turn:
        turn = super().take(request)
        turn.action_logps = (-len(turn.text) / 20,) * len(turn.action_ids)
        return turn


class Counted(Unequal):
    """Counts what it samples, as a policy's sampler does."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.counts: Counter[str] = Counter()

    def take(self, request: Request) -> Turn:
        turn = super().take(request)
        self.counts[tokens_of(request.agent)] += len(turn.action_ids)
        return turn


class Down(FixedRetriever):
    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        raise RetrievalError("the retriever is down")


def stage(protocol: ProRAG, questions: int = 7, **settings: Any) -> TreeSearch:
    """A search whose policy draws its line from what it is asked, as a seeded sampler does."""

    def line(episode: Episode) -> str:
        return LINES[(episode.sample * 7 + len(episode.turns) * 3 + len(episode.question.id)) % 4]

    sampler = Unequal(protocol.codec.control, line)
    retriever = settings.pop("retriever", FixedRetriever(DOCUMENTS))
    environment = RetrievalEnvironment(protocol, retriever, limits=settings.pop("limits", Limits(turn_tokens=99)))
    arguments: dict[str, Any] = {"simulations": 12, "width": AllAtOnce(3), "depth": 4, "chunk": 2} | settings
    return TreeSearch(Questions(questions), environment, sampler, **arguments)


def test_trees_come_in_the_order_of_the_questions_and_the_numbers_agree(protocol: ProRAG, tmp_path: Path) -> None:
    metrics = run(stage(protocol), tmp_path)
    trees = list(read_trees(tmp_path))
    assert [tree.question.id for tree in trees] == [f"q{i}" for i in range(7)]
    assert metrics["search/trees"] == 7
    assert metrics["search/simulations"] + metrics["search/terminal"] == 7 * 12 == sum(t.root.visits for t in trees)
    assert metrics["search/success"] == sum(t.root.value > 0 for t in trees) / 7
    assert metrics["search/value"] == pytest.approx(sum(t.root.value for t in trees) / 7)
    kept = json.loads((tmp_path / "data" / "search.json").read_text())
    assert (kept["role"], kept["depth"]) == ("search", metrics["search/depth"])
    assert kept["simulations"] == metrics["search/simulations"]


def test_the_same_seed_gives_the_same_bytes_and_another_one_other_trees(protocol: ProRAG, tmp_path: Path) -> None:
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        run(stage(protocol), tmp_path / name, seed=seed)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert files(tmp_path / "one")["data/trees.jsonl"] != files(tmp_path / "other")["data/trees.jsonl"]


def test_ranks_share_the_chunks_and_a_killed_search_goes_on(protocol: ProRAG, tmp_path: Path) -> None:
    making.check_shares_and_resumes(stage(protocol), tmp_path, seed=3)


@pytest.mark.parametrize(
    "setting",
    [
        {"prior": "uniform"},
        {"prior": "count"},
        {"selection": Puct(0.1)},
        {"width": AllAtOnce(5)},
        {"leaf_value": AnswerScore("f1")},
        {"backup": DiscountedMean(count_rollout=False)},
    ],
)
def test_settings_reach_the_search(protocol: ProRAG, tmp_path: Path, setting: dict[str, Any]) -> None:
    run(stage(protocol), tmp_path / "default")
    run(stage(protocol, **setting), tmp_path / "other")
    assert files(tmp_path / "default")["data/trees.jsonl"] != files(tmp_path / "other")["data/trees.jsonl"]


def test_depth_takes_the_place_of_the_limit_of_turns(protocol: ProRAG, tmp_path: Path) -> None:
    run(stage(protocol, depth=2, limits=Limits(turns=9, turn_tokens=99)), tmp_path)
    assert max(len(path) - 1 for tree in read_trees(tmp_path) for path in tree.paths()) == 2


def test_the_report_shows_a_tree(protocol: ProRAG, tmp_path: Path) -> None:
    run(stage(protocol), tmp_path)
    report = (tmp_path / "report.md").read_text()
    assert "Question: Who wrote book" in report
    assert "[N 12, Q " in report
    assert "answer: know </step> <answer> Ada </answer> [answered: 1]" in report


def test_an_outage_leaves_no_trees_behind(protocol: ProRAG, tmp_path: Path) -> None:
    maker = stage(protocol, retriever=Down(DOCUMENTS), width=AllAtOnce(1))
    maker.expander = maker.simulator = Scripted(protocol.codec.control, lambda _: LINES[0])
    with pytest.raises(RetrievalError, match="run again"):
        maker.make(tmp_path, seed=0, rank=0, world_size=1)
    assert files(tmp_path) == {}


class Silent:
    """A judge that gives no value to anything."""

    rollouts = 0

    def __call__(self, leaves: Sequence[Leaf]) -> list[float | None]:
        return [None] * len(leaves)


def test_ends_without_a_value_are_no_outage_and_are_shown_as_such(protocol: ProRAG, tmp_path: Path) -> None:
    maker = stage(protocol, width=AllAtOnce(1), leaf_value=Silent())
    maker.expander = maker.simulator = Scripted(protocol.codec.control, lambda _: LINES[2])
    for _ in range(2):  # again over trees that are written
        run(maker, tmp_path)
    assert all(tree.root.children[0].dead for tree in read_trees(tmp_path))
    assert "[answered: no value] [dead]" in (tmp_path / "report.md").read_text()


def test_no_questions_is_one_clear_line(protocol: ProRAG, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no questions to search on"):
        stage(protocol, questions=0).make(tmp_path, seed=0, rank=0, world_size=1)


@pytest.mark.parametrize("setting", ["simulations", "depth", "parallel", "chunk", "pool"])
def test_a_setting_below_one_is_refused_by_name(protocol: ProRAG, setting: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting} is 0"):
        stage(protocol, **{setting: 0})


def counted(protocol: ProRAG, **settings: Any) -> TreeSearch:
    """A search whose children and played-out turns come from different samplers, both of which count."""
    maker = stage(protocol, **settings)
    assert isinstance(maker.expander, Unequal)
    maker.expander = Counted(maker.expander.codec_ids, maker.expander.script)
    maker.simulator = Counted(maker.expander.codec_ids, lambda _: LINES[2])
    return maker


def test_samples_that_repeat_a_child_and_played_out_turns_are_in_the_costs(protocol: ProRAG, tmp_path: Path) -> None:
    maker = counted(protocol, width=AllAtOnce(5))
    cost = run(maker, tmp_path)["cost/tokens/policy"]
    nodes = [path[-1] for tree in read_trees(tmp_path) for path in tree.paths() if path[-1].turn is not None]
    children = sum(node.multiplicity * len(node.turn.action_ids) for node in nodes if node.turn is not None)
    once = len(protocol.codec.control(LINES[2]))
    played_out, rest = divmod(cost - children, once)
    assert rest == 0
    assert played_out >= 7
    assert max(node.multiplicity for node in nodes) > 1
    assert cost == maker.expander.counts.total() + maker.simulator.counts.total()  # type: ignore[attr-defined]


def test_a_search_stops_after_the_chunk_that_spends_its_budget(protocol: ProRAG, tmp_path: Path) -> None:
    whole = run(counted(protocol), tmp_path / "whole")
    spent = [
        json.loads((tmp_path / "whole" / "data" / "units" / f"0000{n}.json").read_text())["counts"][
            "cost/tokens/policy"
        ]
        for n in range(4)
    ]
    assert whole["cost/tokens/policy"] == sum(spent)
    less = run(counted(protocol, max_tokens=spent[0] + spent[1]), tmp_path / "less")
    assert (less["cost/tokens/policy"], less["search/trees"]) == (spent[0] + spent[1], 4)
    more = run(counted(protocol, max_tokens=spent[0] + spent[1] + 1), tmp_path / "more")
    assert (more["cost/tokens/policy"], more["search/trees"]) == (spent[0] + spent[1] + spent[2], 6)
    run(counted(protocol, max_tokens=spent[0] + 1), tmp_path / "killed")  # and then went on with a larger budget:
    run(counted(protocol, max_tokens=spent[0] + spent[1] + 1), tmp_path / "killed")
    assert files(tmp_path / "killed") == files(tmp_path / "more")
    with pytest.raises(ConfigError, match="max_tokens is -1"):
        stage(protocol, max_tokens=-1)


def test_what_was_played_out_is_kept_on_request_in_the_order_of_the_trees(protocol: ProRAG, tmp_path: Path) -> None:
    """A kill between a chunk's two files leaves no chunk, and both are written again."""
    run(stage(protocol), tmp_path / "without")
    metrics = run(stage(protocol, keep_rollouts=True), tmp_path / "with")
    kept = files(tmp_path / "with")
    assert files(tmp_path / "without")["data/trees.jsonl"] == kept["data/trees.jsonl"]
    assert "data/episodes.jsonl" not in files(tmp_path / "without")
    episodes = [episode_from_row(row) for row in read_rows(tmp_path / "with" / "data" / "episodes.jsonl", "episode/1")]
    ids = [episode.question.id for episode in episodes]
    assert ids == sorted(ids)
    assert {*ids} == {f"q{i}" for i in range(7)}
    assert len(episodes) <= metrics["search/simulations"]
    assert all(episode.status in ("answered", "step_budget") and episode.steps for episode in episodes)
    for tree in read_trees(tmp_path / "with"):
        known = {path[1].turn.action_ids for path in tree.paths() if len(path) > 1 and path[1].turn is not None}
        own = [episode for episode in episodes if episode.question.id == tree.question.id]
        assert {episode.turns[0].action_ids for episode in own} <= known, "they begin in the tree"
    (tmp_path / "with" / "data" / "units" / "00001.jsonl").unlink()
    run(stage(protocol, keep_rollouts=True), tmp_path / "with")
    assert files(tmp_path / "with") == kept
