"""Noise on a judge: a known share of its verdicts is made wrong, to learn how good a judge must be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from common.costs import counted
from common.errors import ConfigError
from common.seeds import stable_hash
from envs.interfaces import Judge, StepJudge
from envs.pairs import Candidate, Verdict


class NoisyJudge:
    """Passes on another judge's verdicts, flipped for a share of the steps: a label l becomes 1 - l.

    Which steps is decided by a hash of `seed` and the step, so a step that is judged twice is judged alike. Verdicts of
    comparisons are flipped too, by a hash of both steps, whatever their order.

    Args:
        judge: a `StepJudge` or a `Judge`, whichever the record stage asks for.
        rate: the share that is flipped, in [0, 1].
        seed: of the hash.

    Raises:
        ConfigError: the rate is out of range; on asking, the judge cannot answer such a question.
    """

    def __init__(self, judge: StepJudge | Judge, *, rate: float, seed: int = 0) -> None:
        if not 0 <= rate <= 1:
            raise ConfigError(f"rate {rate}: the share of wrong answers must be in [0, 1]")
        self.judge, self.rate, self.seed = judge, rate, seed
        self._flipped = 0

    @property
    def counts(self) -> Counter[str]:
        """The judge's counts, and how many verdicts were flipped."""
        flipped = Counter({"judge_flipped": self._flipped}) if self._flipped else Counter[str]()
        return counted(self.judge) + flipped

    def label(self, candidates: Sequence[Candidate]) -> list[float | None]:
        """The judge's labels, a share of them flipped."""
        ask = getattr(self.judge, "label", None)
        if ask is None:
            raise ConfigError(f"{type(self.judge).__name__} compares steps and cannot label single ones")
        return [
            1 - label if label is not None and self._wrong(_name(candidate)) else label
            for candidate, label in zip(candidates, ask(candidates), strict=True)
        ]

    def compare(self, groups: Sequence[Sequence[Candidate]]) -> list[tuple[Verdict, ...] | None]:
        """The judge's verdicts, a share of them flipped."""
        ask = getattr(self.judge, "compare", None)
        if ask is None:
            raise ConfigError(f"{type(self.judge).__name__} labels single steps and cannot compare them")
        return [
            None if verdicts is None else tuple(self._verdict(group, verdict) for verdict in verdicts)
            for group, verdicts in zip(groups, ask(groups), strict=True)
        ]

    def _verdict(self, group: Sequence[Candidate], verdict: Verdict) -> Verdict:
        names = sorted(_name(group[index]) for index in (verdict.chosen, verdict.rejected))
        if not self._wrong(*names):
            return verdict
        return Verdict(verdict.rejected, verdict.chosen, f"turned round: {verdict.reason}")

    def _wrong(self, *names: str) -> bool:
        wrong = stable_hash(self.seed, "noise", *names) / 2**63 < self.rate
        self._flipped += wrong
        return wrong


def _name(candidate: Candidate) -> str:
    return candidate.episode.turns[-1].uid
