"""Learning curves inside a fit: when they are measured, what they say, and that training does not notice."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from callbacks.validation import Validation, _values
from common.errors import ConfigError, RetrievalError
from envs.retrieval import RetrievalEnvironment
from envs.types import Document, Episode, Hit, Question
from evaluation.evaluate import Benchmark
from evaluation.results import read_json
from modules.policy import Policy
from modules.samplers.in_process import InProcessSampler
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer, tiny_policy
from tests.toy_rl import LIMITS, Asked, learn, prorag, retriever, small_policy


class Counted(Asked):
    """Counts how often it was asked for its questions."""

    times = 0

    def __iter__(self) -> Iterator[Question]:
        self.times += 1
        return super().__iter__()


def validation(policy: Policy, questions: Asked, every: int = 1) -> Validation:
    environment = RetrievalEnvironment(prorag(policy), retriever(), limits=LIMITS)
    return Validation({"toy": Benchmark(questions, "dev")}, environment, InProcessSampler(), every=every)


class Modes(Callback):
    """Notes the model's mode where training begins."""

    def __init__(self) -> None:
        self.training: set[bool] = set()

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.training.add(pl_module.model.training)


def test_training_goes_on_as_if_nothing_had_been_asked(tmp_path: Path) -> None:
    policy, modes = small_policy(), Modes()
    watched, _, metrics = learn(tmp_path, policy=policy, callbacks=[validation(policy, Asked(5)), modes], lr=1e-2)
    alone, _, without = learn(tmp_path, lr=1e-2)
    assert all(torch.equal(a, b) for a, b in zip(watched.parameters(), alone.parameters(), strict=True))
    assert modes.training == {True}
    assert watched.model.training
    assert {name: metrics[name] for name in without} == pytest.approx(without, nan_ok=True, abs=0, rel=0)
    assert sorted(metrics.keys() - without.keys()) == [
        f"eval/toy/dev/{measure}" for measure in ("em", "f1", "failed", "searches", "valid_steps")
    ]


class Names(Asked):
    """Five questions; Ann is the answer to all of them."""

    def __iter__(self) -> Iterator[Question]:
        return (Question(text, text, ("Ann",)) for text in ("Ann", "Bob", "Cyd", "Ann?", "Dan"))


class Flaky(FixedRetriever):
    """Fails for one question, for good."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        if "Dan" in queries:
            raise RetrievalError("down")
        return super().search(queries, k)


def test_means_are_over_the_questions_that_could_be_scored(tmp_path: Path) -> None:
    policy = tiny_policy(byte_tokenizer())

    def say(episode: Episode) -> str:
        """Looks the question up and repeats it."""
        if not episode.turns:
            return f"\nx </step>\n<subquery>\n{episode.question.text} </subquery>"
        return f"\nx </step>\n<answer>\n{episode.question.text} </answer>"

    class Repeats(Scripted):
        def load(self, policy: Policy) -> None:
            """The script stays."""

    environment = RetrievalEnvironment(prorag(policy), Flaky([Document("d", "t", "x")]), top_k=1)
    sampler = Repeats(environment.protocol.codec.control, say)
    checked = Validation({"toy": Benchmark(Names(), "dev")}, environment, sampler, pool=1)
    _, _, metrics = learn(tmp_path, policy=policy, callbacks=[checked], iterations=1)
    means = {name.rpartition("/")[2]: value for name, value in metrics.items() if name.startswith("eval/toy/dev/")}
    assert means == pytest.approx({"em": 0.5, "f1": 0.5, "searches": 1.0, "valid_steps": 1.0, "failed": 0.2})


def test_rates_are_over_the_steps_of_all_questions(tmp_path: Path) -> None:
    """Of the first question one search of four was needless, of the second one of one; no statement was made."""

    class Told:
        def judge(self, episode: Episode) -> Any:
            needless = (True, False, False, None, False) if episode.question.text == "Ann" else (True,)
            unknown = (None,) * len(episode.steps)
            return SimpleNamespace(valid=unknown, flawed=None, unresolved=None, needless=needless, unfounded=())

    class Two(Asked):
        def __iter__(self) -> Iterator[Question]:
            return (Question(text, text, ("Ann",)) for text in ("Ann", "Bob"))

    policy = small_policy()
    environment = RetrievalEnvironment(prorag(policy), retriever(), limits=LIMITS)
    asked = {"toy": Benchmark(Two(), "dev", oracle=Told())}  # type: ignore[arg-type]
    _, _, metrics = learn(tmp_path, policy=policy, callbacks=[Validation(asked, environment, InProcessSampler())])
    assert metrics["eval/toy/dev/osr"] == pytest.approx(0.4)
    assert "eval/toy/dev/usr" not in metrics


def test_the_policy_that_is_trained_answers_and_greedily(tmp_path: Path) -> None:
    policy = small_policy()
    checked = validation(policy, Asked(2))
    module, _, _ = learn(tmp_path, policy=policy, callbacks=[checked])
    assert isinstance(checked.sampler, InProcessSampler)
    assert checked.sampler.policy.model is module.model
    assert checked.sampler.temperature == 0


@pytest.mark.parametrize(
    ("every", "updates"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5]), (3, [0, 3, 5]), (9, [0, 5])]
)
def test_it_asks_before_training_every_nth_epoch_and_after_the_last(
    tmp_path: Path, every: int, updates: list[int]
) -> None:
    policy, questions = small_policy(), Counted(2)

    class Logged(Callback):
        def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
            trainer.loggers = [CSVLogger(tmp_path)]

    learn(tmp_path, policy=policy, callbacks=[Logged(), validation(policy, questions, every)], iterations=5)
    assert questions.times == len(updates)
    with open(next(tmp_path.rglob("metrics.csv"))) as f:
        drawn = [int(row["step"]) for row in csv.DictReader(f) if row["eval/toy/dev/em"]]
    assert drawn == updates


def test_it_asks_after_the_last_step_too(tmp_path: Path) -> None:
    """Where `max_steps` alone ends the training."""
    questions = Counted(2)
    asked = [validation(small_policy(), questions, 5)]
    learn(tmp_path, policy=small_policy(), callbacks=asked, iterations=9, trainer={"max_steps": 3})
    assert questions.times == 2, "before training and after it"


def test_a_monitor_of_a_dataset_that_is_not_asked_is_refused(tmp_path: Path) -> None:
    best = ModelCheckpoint(tmp_path, monitor="eval/toi/dev/em", mode="max")
    asked = [validation(small_policy(), Counted(2), 1), best]
    with pytest.raises(
        ConfigError,
        match="monitor: eval/toi/dev/em of a ModelCheckpoint is not logged: give one of eval/toy/dev/",
    ):
        learn(tmp_path, policy=small_policy(), callbacks=asked, checkpoints=True)


def test_ranks_share_the_questions_out(tmp_path: Path) -> None:
    policy = tiny_policy(byte_tokenizer())
    checked = validation(policy, Asked(5))
    checked.sampler.load(policy)
    whole, first, second = (
        checked._ask("toy", checked.datasets["toy"], SimpleNamespace(global_rank=rank, world_size=world))[0]  # type: ignore[arg-type]
        for rank, world in ((0, 1), (0, 2), (1, 2))
    )
    assert [row["id"] for row in first] == ["q0", "q2", "q4"]
    assert sorted([*first, *second], key=lambda row: row["id"]) == whole


def test_searches_do_not_apply_to_a_dataset_without_a_retriever() -> None:
    policy = tiny_policy(byte_tokenizer())
    environment = RetrievalEnvironment(prorag(policy), limits=LIMITS)
    checked = Validation({"toy": Benchmark(Asked(2), "dev")}, environment, InProcessSampler(policy))
    rows, found = checked._ask("toy", checked.datasets["toy"], SimpleNamespace(global_rank=0, world_size=1))  # type: ignore[arg-type]
    values = _values(rows)
    assert (len(values["em"]), values["searches"], found) == (2, [], {})


def test_the_episodes_behind_every_point_of_a_curve_are_kept(tmp_path: Path) -> None:
    policy = small_policy()
    _, _, metrics = learn(tmp_path, policy=policy, callbacks=[validation(policy, Asked(3), every=2)], iterations=2)
    start, end = map(read_json, sorted((tmp_path / "data" / "validation").glob("*.json")))
    assert [(point["dataset"], point["split"], point["update"]) for point in (start, end)] == [
        ("toy", "dev", 0),
        ("toy", "dev", 2),
    ]
    assert [row["id"] for row in end["episodes"]] == ["q0", "q1", "q2"]
    valid = [row["valid_steps"] for row in end["episodes"] if row["valid_steps"] is not None]
    assert sum(valid) / len(valid) == pytest.approx(metrics["eval/toy/dev/valid_steps"])
    searched = any(row["searches"] for row in end["episodes"])
    assert end["passages"] == ({"d": {"title": "ab", "text": "bad cab"}} if searched else {})


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    policy = small_policy()
    with pytest.raises(ConfigError, match="every 0"):
        validation(policy, Asked(1), every=0)
    other = validation(tiny_policy(byte_tokenizer()), Asked(1))
    with pytest.raises(ConfigError, match="different tokenizers"):
        learn(tmp_path, policy=policy, callbacks=[other])
