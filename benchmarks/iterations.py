"""Iterations of GRPO as a run has them, on episodes of equal work: seconds and peak memory of their parts."""

from __future__ import annotations

import logging
import resource
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from benchmarks.equal_turns import Work, equal_turns, variety
from benchmarks.measures import Stopwatch
from callbacks.rollout import RolloutCallback
from common.seeds import stable_hash
from datamodules.question_data import QuestionData
from envs.interfaces import RewardContext, Sampler
from envs.retrieval import RetrievalEnvironment
from envs.rollout import independent_groups
from envs.sampling import Greedy
from envs.types import Document, Episode, Question
from modules.functional.credit import Credit, grpo_credit
from modules.grpo import GRPO
from modules.optimizer import AdamW
from modules.policy import Policy
from modules.rewards.terms import Term

Row = dict[str, Any]


class Iterations(Callback):
    """Figures of each iteration; stands before the rollout callback.

    Args:
        reward: of the episodes.
        greedy_first: sample the first iteration greedily, to compare its episodes.

    Attributes:
        rows: for each iteration a row for each part, `rollout`, `scoring` and `update`, whose memory on a GPU is the
            most that was allocated in that part, what was there before included, and on a CPU the process's so far.
        episodes: of each iteration.
    """

    def __init__(self, reward: Any = variety, *, greedy_first: bool = False) -> None:
        self.rows: list[list[Row]] = []
        self.episodes: list[Sequence[Episode]] = []
        self._reward, self._greedy_first = reward, greedy_first

    def sampling(
        self, environment: RetrievalEnvironment, sampler: Sampler, *arguments: Any, **settings: Any
    ) -> list[Episode]:
        """`independent_groups`, and the end of the rollout."""
        asked = Greedy(sampler) if self._greedy_first and not self.episodes else sampler
        episodes = independent_groups(environment, asked, *arguments, **settings)
        self.episodes.append(episodes)
        self._end("rollout")
        return episodes

    def reward(self, episodes: Sequence[Episode], context: RewardContext) -> Any:
        """The reward, and the end of scoring."""
        scores = self._reward(episodes, context)
        self._end("scoring")
        return scores

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.rows.append([])
        self._begin()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        self._end("update")

    def _begin(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()  # of what is reserved too
        self._watch = Stopwatch()

    def _end(self, part: str) -> None:
        self.rows[-1].append({"part": part} | self._watch.read() | peaks())
        self._begin()


@dataclass(frozen=True, slots=True)
class Given:
    """Questions that are there already, as a source."""

    questions: Sequence[Question] = field(default_factory=list)

    def __iter__(self) -> Iterator[Question]:
        return iter(self.questions)

    def documents(self) -> Iterator[Document]:
        return iter(())


def train(
    policy: Policy,
    work: Work,
    sampler: Sampler,
    watched: Iterations,
    *,
    iterations: int,
    credit: Credit = grpo_credit,
    level: Any = "outcome",
    micro_batch: int | None = None,
    learner: Mapping[str, Any] | None = None,
    **trainer: Any,
) -> None:
    """Train the policy for some iterations of this work.

    Args:
        watched: has the reward, and the figures afterwards.
        level: of the reward.
        micro_batch: episodes of a backward pass; None takes all at once.
        learner: more arguments of `GRPO`.
        trainer: more arguments of the Trainer.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    rollout = RolloutCallback(
        equal_turns(policy.tokenizer, work),
        sampler,
        rewards={"reward": Term(watched.reward, level=level)},
        sampling=partial(watched.sampling, pool=min(work.episodes, 64)),
    )
    data = QuestionData(
        Given(questions_of(work, iterations)),
        questions_per_iteration=work.questions,
        group_size=work.group,
        micro_batch=micro_batch,
    )
    with tempfile.TemporaryDirectory() as folder:
        fitting = Trainer(
            max_epochs=iterations,
            accelerator="cpu" if policy.model.device.type == "cpu" else "gpu",
            devices=1,
            gradient_clip_val=1.0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            callbacks=[watched, rollout],
            **trainer,
        )
        fitting.fit(GRPO(policy, AdamW(1e-6, floor=1.0), credit=credit, **(learner or {})), datamodule=data)


def questions_of(work: Work, iterations: int) -> list[Question]:
    """Questions of so many iterations, in the order in which `QuestionData` asks them."""
    questions = [Question(f"q{n}", f"w{n + 2}", ("",)) for n in range(work.questions * iterations)]
    return sorted(questions, key=lambda question: stable_hash(0, "questions", 0, question.id))


def peaks() -> dict[str, float]:
    """Gigabytes that were allocated and reserved at most; of a CPU the process's peak, twice."""
    if not torch.cuda.is_available():
        peak = reserved = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    else:
        peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return {"peak_gb": peak / 1e9, "reserved_gb": reserved / 1e9}
