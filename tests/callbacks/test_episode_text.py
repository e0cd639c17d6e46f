"""What is shown of an iteration, and that TensorBoard gets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from callbacks.episode_text import EpisodeText, episode_text, texts
from callbacks.rollout import Iteration
from common.errors import ConfigError
from envs.types import Action, Document, Episode, Hit, Question, Step, Turn
from evaluation.results import read_json
from modules.rewards.terms import Scores
from pipeline.fitting import fit
from pipeline.schema import Experiment, TrainerSettings
from tests.toy_rl import learn
from tests.toy_training import Line, Slope


def episode(sample: int) -> Episode:
    hits = (Hit(Document("d1", "Emma", "By Jane Austen.")),)
    turns = [
        Turn("policy", (), (1,), (0.0,), "stop", f"a{sample}", text="I look.\n\n Who wrote Emma?", hits=hits),
        Turn("policy", (), (2,), (0.0,), "stop", f"b{sample}", text="``` </pre> x", action=Action("answer", "Jane")),
    ]
    steps = (
        Step("query", True, ((0, 0, 1),), query="Who wrote Emma?", said=turns[0].text, hits=hits),
        Step("answer", False, ((1, 0, 1),), claim="Jane", said=turns[1].text),
    )
    question = Question(f"q{sample // 2}", "Who wrote Emma?", ("Jane Austen", "J. Austen"))
    return Episode(question, (0,), turns, "answered", "Jane", steps, sample=sample)


def iteration(group_size: int = 2) -> Iteration:
    prm = torch.tensor([[0.5, -1.0], [0.25, 0.0], [0.0, 0.0], [0.0, 0.0]])
    outcome = torch.tensor([0.6, 0.8, float("nan"), 0.1])
    scores = Scores(prm * 2, torch.ones(4, 2, dtype=torch.bool), outcome, {"prm": prm, "f1": outcome / 2})
    advantages = torch.tensor([[1.0, -0.5], [0.1, 0.2], [0, 0], [0, 0]])
    return Iteration([episode(i) for i in range(4)], group_size, scores, advantages)


EXPECTED = """\
    Question: Who wrote Emma?
    Accepted: Jane Austen / J. Austen

    1. query: Who wrote Emma?
       said: I look. Who wrote Emma?
       passages: Emma
       reward 1.000, prm 0.500, advantage +1.000
    2. answer (invalid): Jane
       said: ``` </pre> x
       reward -2.000, prm -1.000, advantage -0.500

    Answer:   Jane [answered]
              reward 0.600, f1 0.300"""


def test_every_step_stands_there_with_its_rewards_and_its_advantage() -> None:
    assert episode_text(iteration(), 0) == EXPECTED


def test_the_best_and_the_worst_of_a_question_are_shown_and_what_is_unscored_is_worst() -> None:
    written = list(texts(iteration(), questions=2))
    assert [text.splitlines()[0] for text in written] == ["**best of 2**", "**worst of 2**"] * 2
    outcomes = [text.splitlines()[-1].split()[1] for text in written]
    assert outcomes == ["0.800,", "0.600,", "0.100,", "nan,"]
    assert len(list(texts(iteration(), questions=1))) == 2


def gathered() -> Episode:
    """One agent searches, another keeps one passage of two, the first stops, a third answers."""
    hits = tuple(Hit(Document(name, f"Title {name}", "text")) for name in ("d1", "d2"))
    agents = ("decider", "selector", "decider", "reader")
    turns = [Turn(agent, (), (1,), (0.0,), "stop", agent, text=agent) for agent in agents]
    steps = (
        Step("query", True, ((0, 0, 1),), query="who?", said="I ask", hits=hits),
        Step("keep", True, ((1, 0, 1),), said="2", hits=hits, kept=("d2",)),
        Step("stop", True, ((2, 0, 1),), said="enough"),
        Step("answer", True, ((3, 0, 1),), claim="Jane", said="Jane"),
    )
    return Episode(Question("q", "Who?", ("Jane",)), (0,), turns, "answered", "Jane", steps)


GATHERED = """\
    Question: Who?
    Accepted: Jane

    1. decider, query: who?
       evidence: none
       said: I ask
       passages: Title d1, Title d2
    2. selector, keep:
       said: 2
       passages: Title d1, Title d2
       kept: Title d2
       dropped: Title d1
    3. decider, stop:
       evidence: Title d2
       said: enough
    4. reader, answer: Jane
       evidence: Title d2
       said: Jane

    Answer:   Jane [answered]
              reward 1.000"""


def test_of_several_agents_each_is_named_with_what_it_saw_kept_and_dropped() -> None:
    nothing = torch.zeros(1, 4)
    scores = Scores(nothing, nothing.bool(), torch.ones(1), {})
    assert episode_text(Iteration([gathered()], 1, scores, nothing), 0) == GATHERED


def test_tensorboard_gets_them_every_nth_iteration(tmp_path: Path) -> None:
    class Logged(Callback):
        def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
            trainer.loggers = [TensorBoardLogger(tmp_path, name="events", version="")]

    learn(tmp_path, iterations=3, callbacks=[Logged(), EpisodeText(every=2, questions=1)])
    events = EventAccumulator(str(tmp_path / "events"), {"tensors": 0}).Reload()
    points = events.Tensors("episodes/text_summary")
    assert [point.step for point in points] == [1, 3]
    first, second = map(read_json, sorted((tmp_path / "data" / "iterations").glob("*.json")))
    assert [(point["iteration"], point["update"]) for point in (first, second)] == [(0, 1), (2, 3)]
    shown_as = [row["shown_as"] for row in first["episodes"]]
    assert shown_as in (["best of 4", "worst of 4"], ["one of 4 alike"])
    assert {"reward", "letters"} == set(first["episodes"][0]["outcome"])
    text = points[0].tensor_proto.string_val[0].decode()
    assert text.count("**best of 4**") == text.count("**worst of 4**") == 1
    assert "letters" in text
    assert "advantage" in text


def test_without_a_rollout_there_is_nothing_to_show(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="EpisodeText needs a callback"):
        fit(
            Slope(),
            Line(),
            [EpisodeText()],
            trainer=TrainerSettings(max_epochs=1),
            strategy="auto",
            experiment=Experiment("toy", {}, accelerator="cpu"),
            folder=tmp_path,
            events=tmp_path / "tensorboard" / "fit" / "0123",
        )
