"""Costs of work: tokens that policies sampled, tokens that scorers read, optimiser updates, calls of judges and tools.

A component counts in `counts: Counter[str]`, under the names of this file; a record stage's headline and a fit's
metrics carry the same names. The pipeline moves them into `costs` of the stage's manifest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

PREFIX = "cost/"
UPDATES = f"{PREFIX}updates"
JUDGE_CALLS = f"{PREFIX}judge_calls"
JUDGED_STEPS = (
    f"{PREFIX}judged_steps"  # different steps that a reward model learns from; a step judged twice counts once
)
_TOKENS = f"{PREFIX}tokens/"
_READ = f"{PREFIX}read_tokens/"
_TOOL_CALLS = f"{PREFIX}tool_calls/"
_TOOL_FAILURES = f"{PREFIX}tool_failures/"


def tokens_of(agent: str) -> str:
    """The name under which the tokens sampled for an agent are counted."""
    return _TOKENS + agent


def read_by(agent: str) -> str:
    """The name under which tokens that are read without sampling are counted: by a scorer, an encoder, a compressor."""
    return _READ + agent


def tool_calls(tool: str) -> str:
    """The name under which the calls of a tool are counted, failed ones too."""
    return _TOOL_CALLS + tool


def tool_failures(tool: str) -> str:
    """The name under which the calls of a tool that failed are counted."""
    return _TOOL_FAILURES + tool


def counted(*parts: object) -> Counter[str]:
    """Sum of the components' `counts`, each component once: a wrapper has the counts of the component `behind` it."""
    different = {id(source): source for source in map(_source, parts)}
    total: Counter[str] = Counter()
    for part in different.values():
        total += Counter(getattr(part, "counts", {}))
    return total


def _source(part: object) -> object:
    """The component whose `counts` hold the work of this one."""
    while (behind := getattr(part, "behind", None)) is not None:
        part = behind
    return part


def costs_in(counts: Mapping[str, int]) -> Counter[str]:
    """The counts that are costs: their names begin with `cost/`."""
    return Counter({name: count for name, count in counts.items() if name.startswith(PREFIX)})


def tokens_in(counts: Mapping[str, int]) -> int:
    """All tokens among some counts, whichever agent they were sampled for."""
    return sum(count for name, count in counts.items() if name.startswith(_TOKENS))


def read_in(counts: Mapping[str, int]) -> int:
    """All tokens among some counts that were read without sampling."""
    return sum(count for name, count in counts.items() if name.startswith(_READ))


def split(metrics: Mapping[str, float]) -> tuple[dict[str, float], dict[str, Any]]:
    """Metrics without costs, and the costs: `{tokens: {agent: n}, updates: n, judge_calls: n}`.

    Where steps were judged for a reward model, `judged_steps: n` too; `read_tokens: {agent: n}`,
    `tool_calls: {tool: n}` and `tool_failures: {tool: n}` where there are any.
    """
    rest = {name: value for name, value in metrics.items() if not name.startswith(PREFIX)}
    tokens, *others = (
        {name.removeprefix(kind): int(n) for name, n in sorted(metrics.items()) if name.startswith(kind)}
        for kind in (_TOKENS, _READ, _TOOL_CALLS, _TOOL_FAILURES)
    )
    spent: dict[str, Any] = {"updates": int(metrics.get(UPDATES, 0)), "judge_calls": int(metrics.get(JUDGE_CALLS, 0))}
    if JUDGED_STEPS in metrics:
        spent["judged_steps"] = int(metrics[JUDGED_STEPS])
    named = zip(("read_tokens", "tool_calls", "tool_failures"), others, strict=True)
    return rest, {"tokens": tokens} | spent | {name: counts for name, counts in named if counts}
