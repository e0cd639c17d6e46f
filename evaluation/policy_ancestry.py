"""Ancestry of a policy: the stages that an evaluation's policy came from, their cost, and which were evaluated."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import DataError
from evaluation.results import read_manifest


@dataclass(frozen=True)
class PolicyAncestry:
    """The stages of an experiment in order, each after those it depends on, with their manifests.

    `needs` are the stages that each reads, `ancestors` also those that these came from.
    """

    order: list[str]
    manifests: dict[str, dict[str, Any]]
    needs: dict[str, list[str]]
    ancestors: dict[str, set[str]]

    @classmethod
    def of(cls, artifacts: Mapping[str, Path]) -> PolicyAncestry:
        """Read the manifests of artifact folders by stage, in order."""
        stages = {folder.name: stage for stage, folder in artifacts.items()}
        manifests = {stage: read_manifest(folder) for stage, folder in artifacts.items()}
        needs: dict[str, list[str]] = {}
        ancestors: dict[str, set[str]] = {}
        for stage, manifest in manifests.items():
            used = [each["artifact"] for each in manifest.get("inputs", {}).values()]
            needs[stage] = [stages[artifact] for artifact in used if artifact in stages]
            ancestors[stage] = set(needs[stage]).union(*(ancestors[need] for need in needs[stage]))
        return cls(list(artifacts), manifests, needs, ancestors)

    def policy(self, evaluation: str) -> str | None:
        """The stage whose policy an evaluation measures: the last fitted one that it reads; None without one."""
        return max(self.fitted(evaluation), key=self.order.index, default=None)

    def fitted(self, evaluation: str) -> set[str]:
        """The fitted stages that an evaluation reads."""
        return {need for need in self.needs[evaluation] if self.manifests[need].get("kind") == "fit"}

    def before(self, evaluation: str, evaluations: Collection[str]) -> list[str]:
        """Which of some evaluations measured a policy that this one's came from, the first policy first.

        Those with the same other parts, such as a frozen generator, come before those with others.
        """
        own = self.fitted(evaluation)
        replaced = {other: self.fitted(other) - own for other in evaluations}
        earlier = [other for other, policies in replaced.items() if policies and policies <= self.ancestors[evaluation]]

        def order(other: str) -> tuple[int, int]:
            new = [one for one in own - self.fitted(other) if not self.ancestors[one] & replaced[other]]
            return len(new), max(map(self.order.index, replaced[other]))

        return sorted(earlier, key=order)

    def costs(self, evaluation: str) -> dict[str, Any]:
        """Costs of making the policy that an evaluation measures: those of all stages that it came from, added up.

        `tokens` are those that policies sampled, by agent, for training: the evaluation's own are not among them.

        Raises:
            DataError: a stage has no costs, or damaged ones.
        """
        total: dict[str, Any] = {"tokens": {}, "updates": 0, "judge_calls": 0, "cpu_seconds": 0.0}
        for stage in sorted(self.ancestors[evaluation], key=self.order.index):
            costs = self.manifests[stage].get("costs")
            if costs is None:
                raise DataError(
                    f"stage {stage} has no costs, an earlier version made it: --force {stage} runs it again"
                )
            if missing := {*total} - costs.keys():
                raise DataError(f"the manifest of stage {stage} is damaged, its costs have no {min(missing)!r}")
            for agent, count in costs["tokens"].items():
                total["tokens"][agent] = total["tokens"].get(agent, 0) + count
            for name in ("updates", "judge_calls", "cpu_seconds"):
                total[name] += costs[name]
        return total | {"cpu_seconds": round(total["cpu_seconds"], 3)}

    def sources(self, evaluation: str) -> list[str]:
        """The versions of the code that made an evaluation and all that it came from, each once."""
        stages = sorted({evaluation, *self.ancestors[evaluation]}, key=self.order.index)
        return list(dict.fromkeys(str(self.manifests[stage].get("source", "unknown")) for stage in stages))
