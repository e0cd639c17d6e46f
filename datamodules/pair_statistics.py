"""Statistics of a set of preferences, in the form of the published table of RAG-ProGuide (arXiv 2505.14069)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean, median

from envs.pairs import Pair


@dataclass(slots=True)
class PairStatistics:
    """Counts over pairs.

    Attributes:
        kinds: pairs by the kind of the chosen turn's action.
        crossing: pairs whose two turns are of different kinds, such as an answer against one more query.
        questions: ids of their questions.
        iterations: of every pair, which turn of its episode it is about, 1 for the first.
        tokens: of every pair, the sampled tokens of the chosen turn.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    crossing: int = 0
    questions: set[str] = field(default_factory=set)
    iterations: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> PairStatistics:
        """Of these pairs, streamed."""
        statistics = cls()
        for pair in pairs:
            chosen, rejected = pair.chosen.turns[-1], pair.rejected.turns[-1]
            statistics.kinds[chosen.action.kind] += 1
            statistics.crossing += chosen.action.kind != rejected.action.kind
            statistics.questions.add(pair.chosen.question.id)
            statistics.iterations.append(len(pair.chosen.turns))
            statistics.tokens.append(len(chosen.action_ids))
        return statistics

    def figures(self) -> dict[str, float]:
        """All of them by name; there must be a pair."""
        counts = {f"pairs/{kind}": float(count) for kind, count in sorted(self.kinds.items())}
        counts = {"pairs": float(len(self.tokens)), **counts, "pairs/crossing": float(self.crossing)}
        spreads = {"iterations": self.iterations, "response_tokens": self.tokens}
        return counts | {
            f"{name}/{measure}": value
            for name, values in spreads.items()
            for measure, value in zip(("average", "min", "median", "max"), _spread(values), strict=True)
        }

    def table(self) -> str:
        """The table as Markdown; there must be a pair."""
        kinds = [f"| {kind} | {count} |" for kind, count in sorted(self.kinds.items())]
        rows = [("iteration of the turn", self.iterations), ("tokens of the chosen turn", self.tokens)]
        spreads = [f"| {name} | {' | '.join(f'{value:g}' for value in _spread(values))} |" for name, values in rows]
        parts = [["| chosen turn | pairs |", "|---|--:|", *kinds, f"| all | {len(self.tokens)} |"]]
        parts.append(["| | average | least | median | most |", "|---|--:|--:|--:|--:|", *spreads])
        return "\n\n".join("\n".join(part) for part in parts)


def _spread(values: list[int]) -> tuple[float, float, float, float]:
    """Average (two digits), least, median and most."""
    return round(fmean(values), 2), float(min(values)), float(median(values)), float(max(values))
