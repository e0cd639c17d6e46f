"""Iterations of reinforcement learning as a run has them, without what a run writes."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from lightning.pytorch import Callback, Trainer

from benchmarks.equal_turns import Work
from callbacks.rollout import RolloutCallback
from datamodules.question_data import QuestionData
from envs.types import Document, Question
from modules.grpo import GRPO


class Given:
    """Questions that are there already, as a source."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self._questions = questions

    def __iter__(self) -> Iterator[Question]:
        return iter(self._questions)

    def documents(self) -> Iterator[Document]:
        return iter(())


def train(
    learner: GRPO,
    rollout: RolloutCallback,
    first: Callback,
    questions: Sequence[Question],
    work: Work,
    *,
    iterations: int,
    micro_batch: int | None = None,
    **trainer: Any,
) -> None:
    """Train for some iterations of this work.

    Args:
        first: stands before the rollout callback, so an iteration begins with it.
        micro_batch: episodes of a backward pass; None takes all at once.
        trainer: more arguments of the Trainer.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    data = QuestionData(
        Given(questions), questions_per_iteration=work.questions, group_size=work.group, micro_batch=micro_batch
    )
    with tempfile.TemporaryDirectory() as folder:
        fitting = Trainer(
            max_epochs=iterations,
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            callbacks=[first, rollout],
            **trainer,
        )
        fitting.fit(learner, datamodule=data)
