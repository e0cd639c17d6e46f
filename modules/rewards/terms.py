"""Weighted sums of step rewards and of outcome rewards, with the value of each reward (ProRAG Eqs 5 and 6).

What could not be scored is NaN and never a number: an episode that ended in an error, or every episode where a reward
fails because a service that it needs is down.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from common.errors import ConfigError, DataError, EngineError, UserError
from common.html_table import html_table
from envs.interfaces import RewardContext
from envs.types import Episode

log = logging.getLogger(__name__)

Level = Literal["step", "outcome"]
Reward = Callable[[Sequence[Episode], RewardContext], Sequence[Tensor] | Tensor]
Total = Callable[[Tensor], Tensor]
NAN = float("nan")


class IterationReward:
    """Base of an outcome reward that needs a statistic over all ranks' episodes of an iteration."""

    def __call__(self, episodes: Sequence[Episode], context: RewardContext) -> Tensor:
        """`[B]`: the reward of each episode, as far as this rank can tell."""
        raise NotImplementedError

    def settle(
        self, episodes: Sequence[Episode], values_B: Tensor, logged: Mapping[str, Tensor], total: Total
    ) -> Tensor:
        """The final values `[B]` of what the reward gave these episodes before, `values_B`, and `logged` then.

        `total` adds a tensor up over all ranks. Every rank calls it equally often.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Term:
    """One reward and its weight; with weight 0 it is only logged.

    `reward(episodes, context)` returns one `[S]` for each episode at level `step`, one `[B]` at level `outcome`.

    Raises:
        ConfigError: a setting is out of range.
    """

    reward: Reward
    weight: float = 1.0
    level: Level = "outcome"

    def __post_init__(self) -> None:
        if self.level not in get_args(Level):
            raise ConfigError(f"level {self.level!r} of a reward: it is 'step' or 'outcome'")
        if not callable(self.reward):
            raise ConfigError(f'a reward must be a component, {{target: "package.module:name"}}, not {self.reward!r}')
        if not math.isfinite(self.weight):
            raise ConfigError(f"weight {self.weight} of a reward: it must be finite")


@dataclass(slots=True)
class Scores:
    """Rewards of B episodes of up to S steps.

    Attributes:
        step_BS: `[B, S]` float32, the weighted sum of step rewards, NaN where unscored, 0 outside the mask.
        step_mask_BS: `[B, S]` bool, true where an episode has a step that the policy sampled.
        outcome_B: `[B]` float32, the weighted sum of outcome rewards, NaN where unscored.
        breakdown: each reward's values before its weight, by name: `[B, S]` or `[B]`.
        outcome_weights: by name the weights of the outcome rewards that count.
        failures: why a reward failed for all episodes, by name.
        logged: what rewards logged, by the name of the reward and the one it gave.
    """

    step_BS: Tensor
    step_mask_BS: Tensor
    outcome_B: Tensor
    breakdown: dict[str, Tensor]
    outcome_weights: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    logged: dict[str, Tensor] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        """A row an episode: its sums and each reward, a value for every step that the policy sampled."""
        columns = {"outcome": self.outcome_B, "steps": self.step_BS, **self.breakdown}
        rows = [
            (row, *(_figures(values[row] if values.ndim == 1 else values[row][mask_S]) for values in columns.values()))
            for row, mask_S in enumerate(self.step_mask_BS)
        ]
        failed = "".join(f"; {name} failed: {reason}" for name, reason in self.failures.items())
        return html_table(f"{len(rows)} episodes{failed}", ("", *columns), rows)


def _figures(values: Tensor) -> str:
    return " ".join("–" if math.isnan(value) else f"{value:.2f}" for value in values.flatten().tolist())


def read_terms(rewards: Mapping[str, Term | Mapping[str, Any]]) -> dict[str, Term]:
    """The terms of a config's map: `{answer_f1: {weight: 1.0, level: outcome, reward: {target: ...}}}`.

    Raises:
        ConfigError: the map is empty, or a term has a setting that is wrong or unknown.
    """
    if not rewards:
        raise ConfigError("rewards is empty: nothing would be learnt")
    known = [setting.name for setting in fields(Term)]
    terms: dict[str, Term] = {}
    for name, settings in rewards.items():
        if not isinstance(settings, Term):
            if wrong := set(settings) - set(known):
                raise ConfigError(f"rewards.{name} has an unknown key '{min(wrong)}'; it takes {', '.join(known)}")
            if "reward" not in settings:
                raise ConfigError(f"rewards.{name} has no 'reward'")
            settings = Term(**settings)
        terms[name] = settings
    return terms


def combine(terms: Mapping[str, Term], episodes: Sequence[Episode], context: RewardContext) -> Scores:
    """Score finished episodes with every term and add the terms up, steps and outcomes separately.

    Raises:
        ConfigError: the values of a reward do not have the shape of its term's level.
        EngineError: what a reward samples with is gone.
    """
    scored = [i for i, episode in enumerate(episodes) if episode.status != "error"]
    S = max((len(episode.steps) for episode in episodes), default=0)
    step_mask_BS = torch.zeros((len(episodes), S), dtype=torch.bool)
    for row, episode in enumerate(episodes):
        for column, step in enumerate(episode.steps):
            step_mask_BS[row, column] = bool(step.spans)
    unscored_B = torch.full((len(episodes),), NAN).index_fill(0, torch.tensor(scored, dtype=torch.long), 0.0)
    scores = Scores(
        step_BS=unscored_B[:, None].expand(-1, S).masked_fill(~step_mask_BS, 0.0),
        step_mask_BS=step_mask_BS,
        outcome_B=unscored_B,
        breakdown={},
        outcome_weights={n: term.weight for n, term in terms.items() if term.level == "outcome" and term.weight},
    )
    for name, term in terms.items():
        shape = step_mask_BS.shape if term.level == "step" else unscored_B.shape
        values, own = torch.full(shape, NAN), replace(context, logged={})
        try:
            returned = term.reward([episodes[i] for i in scored], own) if scored else []
        except (ConfigError, DataError, EngineError):  # an engine that is gone for good will not come back
            raise
        except (UserError, ConnectionError, TimeoutError) as error:
            log.warning("reward %s: %s", name, error)
            scores.failures[name] = str(error)
        else:
            if scored:
                values[scored] = _table(name, term, returned, [len(episodes[i].steps) for i in scored], S)
        values = values.masked_fill(~values.isfinite(), NAN)
        if term.level == "step":
            values = values.masked_fill(~step_mask_BS, 0.0)
        scores.breakdown[name] = values
        scores.logged |= {f"{name}/{key}": values_N for key, values_N in own.logged.items()}
        if term.weight:
            if term.level == "step":
                scores.step_BS = scores.step_BS + term.weight * values
            else:
                scores.outcome_B = scores.outcome_B + term.weight * values
    return scores


def settled(terms: Mapping[str, Term], scores: Scores, episodes: Sequence[Episode], total: Total) -> Scores:
    """The scores of an iteration once all of it is scored, on all ranks: see `IterationReward`."""
    breakdown, outcome_B = dict(scores.breakdown), scores.outcome_B
    for name, term in terms.items():
        if isinstance(term.reward, IterationReward):
            logged = {key.removeprefix(f"{name}/"): value_N for key, value_N in scores.logged.items()}
            before_B = breakdown[name]
            breakdown[name] = term.reward.settle(episodes, before_B, logged, total)
            outcome_B = outcome_B + term.weight * (breakdown[name] - before_B) if term.weight else outcome_B
    return replace(scores, breakdown=breakdown, outcome_B=outcome_B)


def replaced(scores: Scores, rows: Sequence[int], fresh: Scores) -> Scores:
    """Scores in which some rows are those of other episodes, scored with the same terms; S is the larger of the two."""
    S = max(scores.step_mask_BS.shape[1], fresh.step_mask_BS.shape[1])
    index = torch.tensor(rows, dtype=torch.long)

    def mixed(old: Tensor, new: Tensor) -> Tensor:
        if old.dim() == 2:
            old, new = (torch.nn.functional.pad(values, (0, S - values.shape[1])) for values in (old, new))
        return old.index_copy(0, index, new)

    return Scores(
        step_BS=mixed(scores.step_BS, fresh.step_BS),
        step_mask_BS=mixed(scores.step_mask_BS, fresh.step_mask_BS),
        outcome_B=mixed(scores.outcome_B, fresh.outcome_B),
        breakdown={name: mixed(values, fresh.breakdown[name]) for name, values in scores.breakdown.items()},
        outcome_weights=scores.outcome_weights,
        failures=scores.failures | fresh.failures,
        logged={name: _joined(name, scores, fresh) for name in scores.logged | fresh.logged},
    )


def _joined(name: str, *scores: Scores) -> Tensor:
    """Values that a reward logged for all scored episodes, the replaced ones included."""
    return torch.cat([each.logged[name] for each in scores if name in each.logged])


def _table(name: str, term: Term, returned: Sequence[Tensor] | Tensor, steps: list[int], S: int) -> Tensor:
    """A reward's values as one tensor, `[B, S]` or `[B]`, on the CPU."""
    if term.level == "outcome":
        if not isinstance(returned, Tensor) or returned.shape != (len(steps),):
            raise ConfigError(f"reward {name} has level outcome, but did not return a tensor of {len(steps)} values")
        return returned.detach().float().cpu()
    if isinstance(returned, Tensor) or [tuple(row.shape) for row in returned] != [(count,) for count in steps]:
        raise ConfigError(f"reward {name} has level step, but did not return a list of one value a step per episode")
    padded = pad_sequence([row.detach().float().cpu() for row in returned], batch_first=True)
    return torch.nn.functional.pad(padded, (0, S - padded.shape[1]))
