"""Decision processes small enough to enumerate: the exact gradient of their return, and what an estimator expects.

All have one parameter. An action is one token and ends one step.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from modules.functional.credit import Credit
from modules.functional.credit_inputs import CreditInputs
from tests.credits import credit_inputs_of

Actions = tuple[int, ...]
Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of logps_BT, old_logps_BT, advantages_BT, mask_BT


@dataclass(frozen=True)
class Trajectory:
    """One way through a process.

    Attributes:
        logps_S: log-probs of its actions, with a gradient.
        scores_S: the derivatives of these by the parameter.
        values_S: what is still to come on the average before each action, outcome included.
        kinds_S, states_S: of its steps; a state is named by the actions before it.
    """

    actions: Actions
    logps_S: Tensor
    scores_S: Tensor
    rewards_S: Tensor
    values_S: Tensor
    outcome: float
    kinds_S: tuple[str, ...]
    states_S: tuple[str, ...]

    @cached_property
    def probability(self) -> float:
        return float(self.logps_S.detach().sum().exp())


@dataclass(frozen=True)
class Process:
    """A process by the actions so far.

    Attributes:
        logits: of the next action, from the parameter and the actions; None where the episode is over.
        reward: of the step that the last action ended.
        outcome: of finished episodes.
        kind: of the step that the last action ended.
    """

    logits: Callable[[Tensor, Actions], Tensor | None]
    reward: Callable[[Actions], float]
    outcome: Callable[[Actions], float]
    theta: Tensor
    kind: Callable[[Actions], str] = lambda _: "step"

    @cached_property
    def trajectories(self) -> list[Trajectory]:
        """All of them."""
        return list(self._from(()))

    @cached_property
    def exact_gradient(self) -> float:
        """The derivative of the expected sum of all rewards."""
        [gradient] = torch.autograd.grad(self._value(()), self.theta)
        return float(gradient)

    def _value(self, actions: Actions) -> Tensor:
        """The expected sum of the rewards that come after these actions."""
        logits = self.logits(self.theta, actions)
        if logits is None:
            return torch.tensor(self.outcome(actions), dtype=torch.float64)
        after = [self.reward((*actions, a)) + self._value((*actions, a)) for a in range(len(logits))]
        return (torch.softmax(logits, dim=0) * torch.stack(after)).sum()

    def _from(self, actions: Actions) -> Iterator[Trajectory]:
        logits = self.logits(self.theta, actions)
        if logits is not None:
            for action in range(len(logits)):
                yield from self._from((*actions, action))
            return
        places = range(len(actions))
        chances = [torch.log_softmax(self.logits(self.theta, actions[:s]), dim=0)[actions[s]] for s in places]  # pyright: ignore
        scores = [torch.autograd.grad(chance, self.theta, retain_graph=True)[0] for chance in chances]
        yield Trajectory(
            actions=actions,
            logps_S=torch.stack(chances),
            scores_S=torch.stack(scores),
            rewards_S=torch.tensor([self.reward(actions[: s + 1]) for s in places], dtype=torch.float64),
            values_S=torch.stack([self._value(actions[:s]).detach() for s in places]),
            outcome=self.outcome(actions),
            kinds_S=tuple(self.kind(actions[: s + 1]) for s in places),
            states_S=tuple(str(actions[:s]) for s in places),
        )


def expected_gradient(process: Process, credit: Credit, *, group_size: int) -> float:
    """The expectation, over all groups of episodes, of the mean over episodes of the sum of advantage times score."""
    total = 0.0
    for group in itertools.product(process.trajectories, repeat=group_size):
        advantages_BS = credit(inputs(group))
        scores_BS = _padded([one.scores_S for one in group])
        total += _chance(group) * float((advantages_BS * scores_BS).sum()) / group_size
    return total


def expected_advantages(process: Process, credit: Credit, event: Callable[[Actions], str]) -> dict[str, float]:
    """By what a step does, the mean advantage of such steps over all groups of two."""
    sums, chances = Counter[str](), Counter[str]()
    for group in itertools.product(process.trajectories, repeat=2):
        for row_S, one in zip(credit(inputs(group)).tolist(), group, strict=True):
            for s in range(len(one.actions)):
                name = event(one.actions[: s + 1])
                sums[name] += _chance(group) * row_S[s]
                chances[name] += _chance(group)
    return {name: sums[name] / chances[name] for name in sums}


def expected_loss_gradient(process: Process, credit: Credit, loss: Loss, *, group_size: int) -> float:
    """The same of a loss, downhill, whose policy is the one that sampled."""
    total = 0.0
    for group in itertools.product(process.trajectories, repeat=group_size):
        given = inputs(group)
        logps_BT = _padded([one.logps_S for one in group])
        value = loss(logps_BT, logps_BT.detach(), credit(given), given.step_mask_BS)
        [gradient] = torch.autograd.grad(value, process.theta, retain_graph=True)
        total -= _chance(group) * float(gradient)
    return total


def inputs(group: tuple[Trajectory, ...]) -> CreditInputs:
    """What a credit function reads of a group; its values are the exact ones."""
    lengths_B = torch.tensor([len(one.rewards_S) for one in group])
    mask_BS = torch.arange(int(lengths_B.max())) < lengths_B[:, None]
    return credit_inputs_of(
        step_rewards_BS=_padded([one.rewards_S for one in group]),
        step_mask_BS=mask_BS,
        outcome_B=torch.tensor([one.outcome for one in group], dtype=torch.float64),
        group_size=len(group),
        step_lengths_BS=mask_BS.long(),
        trained_BT=mask_BS,
        values_BT=_padded([one.values_S for one in group]),
        step_kinds_BS=_names([one.kinds_S for one in group]),
        step_states_BS=_names([one.states_S for one in group]),
    )


def _chance(group: tuple[Trajectory, ...]) -> float:
    chance = 1.0
    for one in group:
        chance *= one.probability
    return chance


def _padded(rows: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def _names(rows: list[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    longest = max(map(len, rows))
    return tuple(row + ("",) * (longest - len(row)) for row in rows)


def parameter(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def _go_on(theta: Tensor, actions: Actions) -> Tensor | None:
    """Stop (0) or go on (1, with the sigmoid of theta) after steps 1 and 2; the third step is the last."""
    if len(actions) == 3 or actions[-1:] == (0,):
        return None
    return torch.stack([torch.zeros_like(theta), theta]) if len(actions) < 2 else 0 * theta[None]


def _twice(theta: Tensor, actions: Actions) -> Tensor | None:
    """Wrong (0) or right (1, with the sigmoid of theta), in two steps."""
    return torch.stack([torch.zeros_like(theta), theta]) if len(actions) < 2 else None


def stop_or_go(theta: float = 0.0) -> Process:
    """Every step is worth 1."""
    return Process(_go_on, lambda _: 1.0, lambda _: 0.0, parameter(theta))


def right_twice(theta: float = 0.0) -> Process:
    """Only the outcome is worth something: 1 where both steps are right."""
    return Process(_twice, lambda _: 0.0, lambda actions: float(actions == (1, 1)), parameter(theta))


def costly_search(theta: float = 0.0) -> Process:
    """Every step costs 0.2, and only who went on to the third has an outcome of 1."""
    return Process(_go_on, lambda _: -0.2, lambda actions: float(len(actions) == 3), parameter(theta))


def answer_or_search(theta: float = 0.0, *, decides_after: int, knows_the_truth: bool) -> Process:
    """After each search an answer or one more search, three at most; an answer is right after two.

    Whether to search on after `decides_after` searches has the sigmoid of theta, elsewhere one half. The score of a
    step is its truth: of a search whether it was needed, of an answer whether it is right. Or it knows the kind alone.
    """

    def logits(at: Tensor, actions: Actions) -> Tensor | None:
        if len(actions) > 1 and actions[-1] == 0:
            return None
        if len(actions) in (0, 3):  # nothing but a search, nothing but an answer
            return 0 * at[None]
        return torch.stack([torch.zeros_like(at), at if len(actions) == decides_after else 0 * at])

    def kind(actions: Actions) -> str:
        return "answer" if len(actions) > 1 and actions[-1] == 0 else "search"

    def right(actions: Actions) -> float:
        return float(len(actions) > 2)

    def score(actions: Actions) -> float:
        if not knows_the_truth:
            return {"search": 0.84, "answer": 0.60}[kind(actions)]
        return right(actions) if kind(actions) == "answer" else float(len(actions) <= 2)

    return Process(logits, score, right, parameter(theta), kind)


ANSWER, SETTLE, DETOUR = 0, 1, 2


def chain(theta: float = 0.0, *, moves: str, kept: bool = True) -> Process:
    """A question of two hops: answer, settle the next hop or say something true off the chain, all alike at first.

    After three moves without an answer, or as soon as all is settled, there is nothing but to answer, or the end.
    theta is the logit of `moves`: `answer` or `detour`. An answer is right if both hops are settled. A step that
    settles a hop is worth 1/2, of another kind nothing; unless `kept`, the end without an answer costs as much.
    """

    def logits(at: Tensor, actions: Actions) -> Tensor | None:
        if actions[-1:] == (ANSWER,) or (len(actions) == 3 and actions.count(SETTLE) < 2):
            return None
        if actions.count(SETTLE) == 2:
            return 0 * at[None]
        none = torch.zeros_like(at)
        return torch.stack([at, none, none] if moves == "answer" else [none, none, at])

    def outcome(actions: Actions) -> float:
        if actions[-1] == ANSWER:
            return float(actions.count(SETTLE) == 2)
        return 0.0 if kept else -0.5 * actions.count(SETTLE)

    return Process(
        logits,
        lambda actions: 0.5 * (actions[-1] == SETTLE),
        outcome,
        parameter(theta),
        lambda actions: "answer" if actions[-1] == ANSWER else "claim",
    )


def event(actions: Actions) -> str:
    """What the last of these actions does, in `chain`."""
    if actions[-1] == DETOUR:
        return "true, off the chain"
    if actions[-1] == ANSWER:
        return "answers" if actions.count(SETTLE) == 2 else "answers too early"
    return "settles after a detour" if DETOUR in actions[:-1] else "settles a hop"
