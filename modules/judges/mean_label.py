"""One label of several judges, such as an opinion of the step together with what the policy makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from common.accounts import counted
from common.errors import ConfigError
from envs.interfaces import StepJudge
from envs.siblings import Candidate


class MeanLabel:
    """A `StepJudge` whose label is the mean of other judges' labels; one that has none does not count.

    Raises:
        ConfigError: there is no judge.
    """

    def __init__(self, judges: list[StepJudge]) -> None:
        if not judges:
            raise ConfigError("judges is empty: give at least one")
        self.judges = judges

    @property
    def counts(self) -> Counter[str]:
        """What all of them have counted."""
        return counted(*self.judges)

    def label(self, candidates: Sequence[Candidate]) -> list[float | None]:
        """The mean of the labels of each step; None where no judge has one."""
        of_judges = [judge.label(candidates) for judge in self.judges]
        known = [[label for label in of_step if label is not None] for of_step in zip(*of_judges, strict=True)]
        return [fmean(labels) if labels else None for labels in known]
