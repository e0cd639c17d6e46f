"""What the rollout callback needs of the training module and of its data."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence

from torch import Tensor

from envs.packing import PackedSequence
from envs.types import Episode, Question
from modules.functional.credit import Credit, CreditInputs, Estimates
from modules.policy import Policy


@typing.runtime_checkable
class Learner(typing.Protocol):
    """What the callback needs of the training module, which is the algorithm (`modules.grpo:GRPO`).

    `smallest_group` is how many episodes of a question its credit needs, `resample_rounds` how often at most groups
    whose advantages are all 0 are replaced by groups of other questions. `policy` is what samplers load: one policy, or
    several by agent (`envs.sampling:ByAgent`). `corrects` says whether the loss allows for a sampler whose log-probs
    are not the trainer's.
    """

    @property
    def policy(self) -> Policy | Mapping[str, Policy]: ...

    @property
    def corrects(self) -> bool: ...

    temperature: float
    credit: Credit
    smallest_group: int
    resample_rounds: int

    def estimate(self, episodes: Sequence[Episode]) -> Estimates:
        """What a critic, a reference or the policy itself says of the sampled tokens; without any collective call."""
        ...

    def trained_episodes(self, inputs: CreditInputs, advantages_BT: Tensor) -> Tensor:
        """Which episodes train, `[B]` bool."""
        ...

    def token_channels(self, inputs: CreditInputs, advantages_BT: Tensor, kept_B: Tensor) -> dict[str, Tensor]:
        """What the loss reads of every sampled token, `[B, T]` by name; here ranks may share their statistics."""
        ...

    def rows(
        self, episodes: Sequence[Episode], inputs: CreditInputs, kept_B: Tensor, channels: Mapping[str, Tensor]
    ) -> list[list[PackedSequence]]:
        """The training sequences of each episode with those channels."""
        ...


@typing.runtime_checkable
class IterationData(typing.Protocol):
    """What the callback needs of the datamodule (`datamodules.question_data:QuestionData`)."""

    group_size: int
    seed: int

    def share(self, iteration: int) -> list[Question]:
        """This rank's questions of an iteration."""
        ...

    def spares(self, iteration: int, round: int) -> list[Question]:
        """As many others, to replace some of them by in a round that samples again."""
        ...

    def fill(self, episodes: Sequence[Sequence[PackedSequence]]) -> None:
        """Replace the buffer by the training sequences of each episode."""
        ...

    @property
    def mid_iteration(self) -> bool:
        """Whether a part of the buffer was served and a part was not."""
        ...
