from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from common.costs import tokens_of
from common.errors import ConfigError, DataError, RetrievalError
from datamodules.episode_sampling import EpisodeSampling
from datamodules.records import episode_from_row, numbered_rows
from datamodules.tree_search import TreeSearch
from envs.protocols.prorag import ProRAG
from envs.requests import Request
from envs.retrieval import RetrievalEnvironment
from envs.types import Document, Episode, Hit, Limits, Question
from modules.samplers.in_process import InProcessSampler
from tests.making import check_shares_and_resumes
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer, tiny_policy

PROTOCOL = ProRAG(byte_tokenizer())


class Listed:
    """A source of `count` questions, of which every second is answered by "answer 0"."""

    def __init__(self, count: int) -> None:
        self.count, self.skipped = count, Counter[str]()

    def __iter__(self) -> Iterator[Question]:
        for n in range(self.count):
            yield Question(f"q{n}", f"Question {n}?", (f"answer {n % 2}",))

    def documents(self) -> Iterator[Document]:
        return iter(())


class Searcher(Scripted):
    """Searches for the question's id, reads, and answers "answer 0"; unable to answer the questions it is told."""

    def __init__(self, unable: Mapping[str, str] | None = None) -> None:
        super().__init__(PROTOCOL.codec.control, self.say)
        self.no, self.turns = unable or {}, 0

    def unable(self, questions: Sequence[Question]) -> Mapping[str, str]:
        return {question.id: self.no[question.id] for question in questions if question.id in self.no}

    def say(self, episode: Episode) -> str:
        query = f"{episode.question.id} of sample {episode.sample}"
        tag, text = (("subquery", query), ("subanswer", "there"), ("answer", "answer 0"))[min(len(episode.turns), 2)]
        return f"thought</step><{tag}>{text}</{tag}>"

    def submit(self, requests: Sequence[Request]) -> None:
        self.turns += len(requests)
        super().submit(requests)


class Down(FixedRetriever):
    """Fails on queries that name one of `ids`; counts what it is asked."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__([Document("d", "T", "x")])
        self.ids, self.counts = ids, Counter[str]()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.counts["asked"] += len(queries)
        if any(query.split()[0] in self.ids for query in queries):
            raise RetrievalError("http://x: 500")
        return super().search(queries, k)


def run(folder: Path, world_size: int = 1, count: int = 10, **settings) -> tuple[dict[str, float], int]:
    """Headline metrics, and the turns that were generated."""
    turns = 0
    settings = {"samples": 2, "unit": 4} | settings
    retriever = settings.pop("retriever", FixedRetriever([Document("d", "T", "x")]))
    environment = RetrievalEnvironment(PROTOCOL, retriever, limits=settings.pop("limits", None))
    unable = settings.pop("unable", None)
    kind = settings.pop("sampler", Searcher)
    for rank in range(world_size):
        sampler = kind(unable)
        maker = EpisodeSampling(Listed(count), environment, sampler, **settings)
        maker.make(folder, seed=0, rank=rank, world_size=world_size)
        turns += sampler.turns
    return maker.merge(folder, seed=0, world_size=world_size), turns


def episodes(folder: Path) -> list[Episode]:
    return [episode_from_row(row, where) for where, row in numbered_rows(folder / "data" / "episodes.jsonl")]


def contents(folder: Path) -> bytes:
    return (folder / "data" / "episodes.jsonl").read_bytes() + (folder / "data" / "sampling.json").read_bytes()


def test_every_question_is_sampled_and_the_headline_says_how_well(tmp_path: Path) -> None:
    headline, turns = run(tmp_path)
    assert turns == 60
    assert [(e.question.id, e.sample) for e in episodes(tmp_path)] == [(f"q{n}", s) for n in range(10) for s in (0, 1)]
    assert headline == {
        "questions": 10.0, "sampled": 20.0, "episodes": 20.0, "wrong": 0.0, "malformed": 0.0, "ungrounded": 0.0,
        "skipped": 0.0, "failed": 0.0, "em": 0.5, "f1": 0.75, "valid_episodes": 1.0, "valid_steps": 1.0,
        "searches": 1.0, "answered": 1.0, "cut": 0.0,
    }  # fmt: skip


def test_wrong_episodes_are_left_out_and_counted_if_asked(tmp_path: Path) -> None:
    headline, _ = run(tmp_path, keep="correct")
    assert (headline["episodes"], headline["wrong"], headline["em"]) == (10.0, 10.0, 0.5)
    assert {e.answer for e in episodes(tmp_path)} == {"answer 0"}
    assert {e.question.answers for e in episodes(tmp_path)} == {("answer 0",)}


class Hasty(Searcher):
    """Answers two questions at once, which ProRAG's format does not allow."""

    def say(self, episode: Episode) -> str:
        hasty = episode.question.id in ("q0", "q4")
        return "thought</step><answer>answer 0</answer>" if hasty else super().say(episode)


def test_right_episodes_out_of_format_teach_nothing(tmp_path: Path) -> None:
    headline, _ = run(tmp_path, sampler=Hasty, keep="correct")
    assert (headline["episodes"], headline["wrong"], headline["malformed"]) == (6.0, 10.0, 4.0)
    assert {e.question.id for e in episodes(tmp_path)} == {"q2", "q6", "q8"}


def test_episodes_that_say_what_was_cut_away_are_left_out_and_counted_if_asked(tmp_path: Path) -> None:
    settings = {"keep": "grounded", "limits": Limits(observation_tokens=30)}
    passage = [Document("d", "T", "is " * 20 + "there")]  # Searcher's sub-answer
    with pytest.raises(DataError, match=r"no episode .*'wrong answer': 10, 'said what was cut away': 10"):
        run(tmp_path / "cut", retriever=FixedRetriever(passage), **settings)
    headline, _ = run(
        tmp_path / "kept", retriever=FixedRetriever([Document("d", "T", "there" + " is" * 20)]), **settings
    )
    assert (headline["episodes"], headline["ungrounded"], headline["cut"]) == (10.0, 0.0, 1.0)
    headline, _ = run(tmp_path / "unknown", keep="grounded")  # no passage holds it: that is not the limit's doing
    assert (headline["episodes"], headline["ungrounded"], headline["cut"]) == (10.0, 0.0, 0.0)


def test_ranks_share_the_questions_and_a_killed_run_goes_on(tmp_path: Path) -> None:
    environment = RetrievalEnvironment(PROTOCOL, FixedRetriever([Document("d", "T", "x")]))
    check_shares_and_resumes(EpisodeSampling(Listed(10), environment, Searcher(), samples=2, unit=4), tmp_path)


def test_failed_episodes_are_left_out_and_counted(tmp_path: Path) -> None:
    retriever = Down(["q1"])
    headline, _ = run(tmp_path, retriever=retriever, samples=1, pool=1)
    assert (headline["failed"], headline["episodes"], headline["sampled"]) == (1.0, 9.0, 10.0)
    assert headline["em"] == pytest.approx(5 / 9)
    assert "q1" not in {e.question.id for e in episodes(tmp_path)}
    assert headline["asked"] == 11.0  # the failed one twice; what a component counts is reported too
    assert json.loads((tmp_path / "data" / "sampling.json").read_text())["errors"] == {"http://x: 500": 1}


class DownOnce(Down):
    """Fails on the first call alone."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        if self.counts["asked"]:
            self.ids = ()
        return super().search(queries, k)


def test_what_one_failed_call_took_is_asked_again(tmp_path: Path) -> None:
    """It fails all episodes of a pool: most of a unit."""
    run(tmp_path / "whole", retriever=Down([]), samples=2)
    headline, turns = run(tmp_path / "flaky", retriever=DownOnce(["q0", "q1"]), samples=2, pool=6)
    assert (headline["failed"], headline["episodes"]) == (0.0, 20.0)
    assert turns == 60 + 6, "the turns that failed, and the three questions of the pool anew: as many as of the others"
    kept = [folder / "data" / "episodes.jsonl" for folder in (tmp_path / "whole", tmp_path / "flaky")]
    assert kept[0].read_bytes() == kept[1].read_bytes()


@pytest.mark.parametrize("pool", [1, 2])
def test_failures_that_stay_are_no_outage(tmp_path: Path, pool: int) -> None:
    """Asked again, nothing between them succeeds."""
    headline, _ = run(tmp_path, retriever=Down(["q1", "q4", "q7"]), samples=1, pool=pool, unit=10)
    assert headline["episodes"] == 10 - headline["failed"]
    assert headline["failed"] == {1: 3, 2: 6}[pool]


def test_a_unit_in_which_all_failed_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RetrievalError, match=r"all 8 episodes failed, run again; the first: http://x: 500"):
        run(tmp_path, retriever=Down(["q0", "q1", "q2", "q3"]))
    assert not list(tmp_path.rglob("*.jsonl"))


def test_questions_that_the_sampler_is_unable_to_answer_are_skipped_and_counted(tmp_path: Path) -> None:
    headline, turns = run(tmp_path, unable={"q2": "no gold reasoning", "q9": "no gold reasoning"})
    assert (headline["skipped"], headline["questions"], turns) == (2.0, 10.0, 48)
    assert json.loads((tmp_path / "data" / "sampling.json").read_text())["skipped"] == {"no gold reasoning": 2}


def test_nothing_left_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no episode of 2 questions is left: {'no plan': 2}"):
        run(tmp_path, count=2, unable={"q0": "no plan", "q1": "no plan"})
    with pytest.raises(DataError, match="no questions to sample sft episodes on"):
        run(tmp_path / "none", count=0)


@pytest.mark.parametrize("setting", ["samples", "pool", "unit"])
def test_nothing_to_do_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="each must be at least 1"):
        EpisodeSampling(Listed(1), RetrievalEnvironment(PROTOCOL), Searcher(), **{setting: 0})


def test_a_sampler_that_cannot_write_the_format_is_refused_before_any_work() -> None:
    environment, sampler = (
        RetrievalEnvironment(PROTOCOL),
        InProcessSampler(tiny_policy(byte_tokenizer(tags=("<other>",)))),
    )
    with pytest.raises(ConfigError, match="different tokenizers"):
        EpisodeSampling(Listed(1), environment, sampler)
    with pytest.raises(ConfigError, match="different tokenizers"):
        TreeSearch(Listed(1), environment, Searcher(), simulator=sampler)


class Policy(Searcher):
    """A searcher that counts what it samples, as a policy's sampler does: a hundred tokens a turn."""

    def __init__(self, unable: Mapping[str, str] | None = None) -> None:
        super().__init__(unable)
        self.counts = Counter[str]()

    def submit(self, requests: Sequence[Request]) -> None:
        self.counts[tokens_of("policy")] += 100 * len(requests)
        super().submit(requests)


def test_a_policy_s_tokens_are_in_the_account_and_a_teacher_s_are_not(tmp_path: Path) -> None:
    headline, _ = run(tmp_path / "policy", sampler=Policy)
    assert headline["cost/tokens/policy"] == 6000  # ten questions, two samples, three turns
    headline, _ = run(tmp_path / "teacher")
    assert not [name for name in headline if name.startswith("cost/")]


def test_sampling_stops_after_the_unit_that_spends_the_budget(tmp_path: Path) -> None:
    """A unit of four questions samples 2400 tokens, the last one of two 1200."""
    questions = {2400: 4, 2401: 8, 4800: 8, 4801: 10, 9000: 10}
    for budget, made in questions.items():
        headline, _ = run(tmp_path / str(budget), sampler=Policy, max_tokens=budget)
        assert (headline["questions"], headline["cost/tokens/policy"]) == (made, 600 * made)
    headline, _ = run(tmp_path / "two", world_size=2, sampler=Policy, max_tokens=4000)  # a share is 2000 tokens
    assert headline["cost/tokens/policy"] == 4800


def test_a_budget_that_a_kill_interrupts_is_spent_as_without_it(tmp_path: Path) -> None:
    run(tmp_path / "whole", sampler=Policy, max_tokens=4000)
    run(tmp_path / "cut", sampler=Policy, max_tokens=2000)
    run(tmp_path / "cut", sampler=Policy, max_tokens=4000)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
