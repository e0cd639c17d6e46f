from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from common.costs import tokens_of
from common.errors import ConfigError, DataError, RetrievalError
from envs.protocols.prorag import ProRAG
from envs.requests import Request
from envs.retrieval import RetrievalEnvironment
from envs.types import Document, Episode, Gold, Hit, Limits, Question, Turn
from evaluation.evaluate import Benchmark, Evaluation
from modules.samplers.in_process import InProcessSampler
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer, tiny_policy

PROTOCOL = ProRAG(byte_tokenizer())
ENVIRONMENT = RetrievalEnvironment(PROTOCOL)


class Listed:
    """A source that is a list."""

    def __init__(self, count: int) -> None:
        self.count, self.skipped = count, Counter[str]()

    def __iter__(self) -> Iterator[Question]:
        for n in range(self.count):
            yield Question(f"q{n}", f"Question {n}?", (f"answer {n % 2}",), Gold(hops=n % 2 + 1, documents=("d",)))

    def documents(self) -> Iterator[Document]:
        return iter(())


class Counted(Scripted):
    """Searches once, then always answers "answer 0"; counts the turns it is asked for."""

    def __init__(self) -> None:
        super().__init__(PROTOCOL.codec.control, self.say)
        self.turns = 0

    def say(self, episode: Episode) -> str:
        tag, text = (("subquery", "where"), ("subanswer", "there"), ("answer", "answer 0"))[min(len(episode.turns), 2)]
        return f"thought</step><{tag}>{text}</{tag}>"

    def submit(self, requests: Sequence[Request]) -> None:
        self.turns += len(requests)
        super().submit(requests)


class Down:
    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        raise RetrievalError("http://x: connection refused after 4 retries")


def evaluation(count: int = 10, **more) -> tuple[Evaluation, Counted]:
    sampler = Counted()
    retriever = more.pop("retriever", FixedRetriever([Document("d", "T", "x")]))
    benchmark = Benchmark(Listed(count), "test", retriever)
    environment = ENVIRONMENT.variant(limits=more.pop("limits", None))
    return Evaluation({"toy": benchmark}, environment, sampler, unit=4, **more), sampler


def run(folder: Path, world_size: int = 1, **more) -> tuple[dict[str, float], int]:
    turns = 0
    for rank in range(world_size):
        maker, sampler = evaluation(**more)
        maker.make(folder, seed=0, rank=rank, world_size=world_size)
        turns += sampler.turns
    return maker.merge(folder, seed=0, world_size=world_size), turns


def contents(folder: Path) -> bytes:
    return (folder / "data" / "predictions-toy-test.jsonl").read_bytes()


def test_results_rows_groups_and_predictions(tmp_path: Path) -> None:
    headline, _ = run(tmp_path)
    assert headline == {"eval/toy/test/em": 0.5, "eval/toy/test/f1": 0.75}
    results = json.loads((tmp_path / "data" / "results.json").read_text())
    [row] = results["rows"]
    assert (row["dataset"], row["split"], row["n"], row["em"], row["searches"], row["recall"]) == (
        "toy", "test", 10, 0.5, 1.0, 1.0,
    )  # fmt: skip
    assert row["valid_episodes"] == 1.0
    assert row["seconds"] > 0
    assert {g["group"]: g["em"] for g in results["groups"]} == {"hops=1": 1.0, "hops=2": 0.0}
    assert results["notes"]["toy/test"]["stop"] == {"answered": 10}
    lines = [json.loads(line) for line in contents(tmp_path).splitlines()]
    assert [line["id"] for line in lines] == [f"q{n}" for n in range(10)]
    assert [step["kind"] for step in lines[0]["steps"]] == ["query", "subanswer", "answer"]
    [passage] = (tmp_path / "data" / "passages-toy-test.jsonl").read_text().splitlines()
    assert json.loads(passage) == {"id": "d", "title": "T", "text": "x"}


def test_predictions_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    run(tmp_path / "one")
    _, turns = run(tmp_path / "two", world_size=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert turns == 30  # every question once


def test_a_killed_evaluation_goes_on_with_the_bytes_of_an_unbroken_one(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    maker, _ = evaluation()
    maker.make(tmp_path / "cut", seed=0, rank=0, world_size=1)
    units = tmp_path / "cut" / "data" / "units" / "toy-test"
    (units / "00001.jsonl").unlink()
    _, turns = run(tmp_path / "cut")
    assert turns == 12  # one unit of four questions
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


class DownOnce(FixedRetriever):
    """Refuses its first call."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.queries += queries
        if len(self.queries) == len(queries):
            raise RetrievalError("http://x: answered 400")
        return super().search(queries, k)


def test_a_retriever_that_is_down_is_one_clear_error_and_no_result(tmp_path: Path) -> None:
    with pytest.raises(RetrievalError, match=r"3 of 3 questions failed, .*; the first: http://x: connection refused"):
        run(tmp_path, count=3, retriever=Down())
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_unit_with_a_failed_question_is_made_again_and_the_others_stay(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    with pytest.raises(RetrievalError, match=r"2 of 4 questions failed, run again to resume; .*answered 400"):
        run(tmp_path / "cut", retriever=DownOnce([Document("d", "T", "x")]), pool=2)
    assert not list(tmp_path.glob("cut/data/units/toy-test/*.jsonl"))
    run(tmp_path / "cut")
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_prompts_that_leave_no_room_are_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no prompt leaves room .*raise limits.total_tokens \(20\)"):
        run(tmp_path, limits=Limits(total_tokens=20))


def test_an_empty_dataset_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="dataset toy, split test: no questions"):
        run(tmp_path, count=0)


def test_a_policy_that_speaks_another_tokenizer_is_refused() -> None:
    sampler = InProcessSampler(tiny_policy(byte_tokenizer(tags=("<other>",))))
    with pytest.raises(ConfigError, match="different tokenizers"):
        Evaluation({}, ENVIRONMENT, sampler)


def test_a_budget_longer_than_the_models_context_is_refused() -> None:
    sampler = InProcessSampler(tiny_policy(byte_tokenizer()))
    with pytest.raises(ConfigError, match="total_tokens is 8192, but the model reads only 4096"):
        Evaluation({}, ENVIRONMENT, sampler)


@pytest.mark.parametrize("setting", ["pool", "unit"])
def test_a_pool_or_unit_of_nothing_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="each must be at least 1"):
        Evaluation({}, ENVIRONMENT, Counted(), **{setting: 0})


def test_units_of_all_datasets_are_dealt_out_in_turn(tmp_path: Path) -> None:
    shares = []
    for rank in range(2):
        sampler = Counted()
        datasets = {name: Benchmark(Listed(4), "test", FixedRetriever([])) for name in ("one", "two")}
        maker = Evaluation(datasets, ENVIRONMENT, sampler, unit=4)
        maker.make(tmp_path, seed=0, rank=rank, world_size=2)
        shares.append(sampler.turns)
    assert shares == [12, 12]


def test_a_policy_s_tokens_are_in_the_account_of_the_evaluation(tmp_path: Path) -> None:
    def policy() -> Evaluation:
        maker, sampler = evaluation()
        sampler.counts = Counter[str]()  # type: ignore[attr-defined]
        take = sampler.take

        def counting(request: Request) -> Turn:
            sampler.counts[tokens_of("reader")] += 7  # type: ignore[attr-defined]
            return take(request)

        sampler.take = counting  # type: ignore[method-assign]
        return maker

    for folder, made in (("whole", 3), ("cut", 2)):
        maker = policy()
        maker.make(tmp_path / folder, seed=0, rank=0, world_size=1)
        for unit in sorted((tmp_path / folder / "data" / "units" / "toy-test").glob("*.jsonl"))[made:]:
            unit.unlink()
    maker = policy()
    maker.make(tmp_path / "cut", seed=0, rank=0, world_size=1)
    for folder in ("whole", "cut"):  # ten questions, three turns
        headline = maker.merge(tmp_path / folder, seed=0, world_size=1)
        assert headline["cost/tokens/reader"] == 210


class Opinion:
    """Calls every answer right but the first question's, of which it has no opinion."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def correct(self, episodes: Sequence[Episode]) -> list[bool | None]:
        self.counts["cost/judge_calls"] += len(episodes)
        return [None if one.question.id == "q0" else True for one in episodes]


def test_a_judge_s_verdict_stands_beside_exact_match_and_its_calls_are_costs(tmp_path: Path) -> None:
    headline, _ = run(tmp_path, judge=Opinion(), may_abstain=True)
    [row] = json.loads((tmp_path / "data" / "results.json").read_text())["rows"]
    assert (row["em"], row["judged"], row["coverage"], row["selective_em"]) == (0.5, 1.0, 1.0, 0.5)
    assert [json.loads(line)["judged"] for line in contents(tmp_path).splitlines()] == [None, *[1.0] * 9]
    assert headline["cost/judge_calls"] == 10
