"""Answer gain: the change of the gold answer's probability by each search (IGPO; options of IG-Search and TIPS)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from common.costs import costs_in, counted
from common.errors import ConfigError
from common.seeds import stable_hash
from envs.interfaces import RewardContext, Sampler
from envs.requests import Request
from envs.search_steps import searches
from envs.token_ids import require_same
from envs.types import Episode, Move, Turn

Difference = Literal["prob", "log"]
Aliases = Literal["first", "max", "logsumexp"]
_MARK = "\ue002"  # stands for the answer in the protocol's form
_HEAVY = 3  # the first tokens of an answer, which `first_weight` is of


def gains(scores_N1: Tensor | Sequence[float], *, difference: Difference = "prob") -> Tensor:
    """`[N]`: what each of N steps adds to the score of the gold answer; unknown (NaN) beside an unknown score.

    Args:
        scores_N1: `[N + 1]`, mean log-probs of the answer's tokens before the first step and after each.
        difference: of probabilities, exp(score), or of log-probs.
    """
    return torch.diff(_values(torch.as_tensor(scores_N1), difference))


def answer_score(logps_T: Tensor | Sequence[float], *, first_weight: float = 1.0) -> float:
    """Mean log-prob of an answer's tokens; the first three weigh `first_weight` times as much (IG-Search: 3)."""
    logps_T = torch.as_tensor(logps_T)
    weights_T = torch.where(torch.arange(len(logps_T)) < _HEAVY, first_weight, 1.0)
    return float((weights_T * logps_T).sum() / weights_T.sum())


def answer_gain(
    episodes: Sequence[Episode],
    context: RewardContext,
    *,
    difference: Difference = "prob",
    baseline: Literal["previous", "random"] = "previous",
    aliases: Aliases = "first",
    scale: float = 1.0,
    after: Literal["observation", "step"] = "observation",
    thought: str = "",
    first_weight: float = 1.0,
    draws: int = 3,
    scorer: Sampler | None = None,
) -> list[Tensor]:
    """`[S]` for each episode: what a search adds to the score of the gold answer; 0 for any other step.

    The answer stands in the protocol's own form, after the context that the search left. It reads the gold answers of
    training questions, so it is a reward and no scorer. A step whose context does not fit the model is unknown (NaN).

    Sources: IGPO, arXiv 2510.14967; IG-Search, arXiv 2604.15148 (`difference: log`, `baseline: random`,
    `first_weight: 3`); TIPS, arXiv 2603.22293 (`difference: log`, `aliases: logsumexp`, `scale: 0.02`).

    Args:
        baseline: the score before the search, or the mean score with the passages of `draws` other searches of the
            batch, on other questions, in place of its own.
        aliases: which of several gold answers counts: the first, the one with the highest score, or all.
        after: score where the passages end, or where the step ends that reads them.
        thought: what is thought before the answer, in the protocol's form.
        scorer: a frozen model with the protocol's tokenizer; None: the current policy.

    Raises:
        ConfigError: there is no policy to ask, or it gives no log-probs of tokens that it did not sample; `draws` < 1.
    """
    if draws < 1:
        raise ConfigError(f"draws {draws}: answer_gain compares a search with at least 1 other")
    sampler = scorer or context.sampler
    if sampler is None:
        raise ConfigError("answer_gain asks the current policy, so it works in training alone: give it a `scorer`")
    if scorer is not None and getattr(scorer, "policy", None) is not None:
        require_same(scorer.policy.tokenizer, context.protocol.codec.tokenizer, "`scorer` and the rollout")  # pyright: ignore
    before = costs_in(counted(scorer)) if scorer is not None else {}
    found = [(episode, _searched(episode, after)) for episode in episodes]
    if baseline == "previous":
        contexts = [[_begun(episode), *(_cut(episode, end) for _, _, end in own)] for episode, own in found]
    else:
        others = [(episode, episode.turns[turn]) for episode, own in found for _, turn, _ in own]
        contexts = [
            [one for place in own for one in _exchanged(episode, place, others, draws)] for episode, own in found
        ]
    scores = iter(_scores([one for row in contexts for one in row], sampler, context, aliases, thought, first_weight))
    rewards: list[Tensor] = []
    for (episode, own), row in zip(found, contexts, strict=True):
        scores_N = torch.tensor([next(scores) for _ in row])
        if baseline == "previous":
            gained_N = gains(scores_N, difference=difference)
        else:
            values_ND = _values(scores_N, difference).reshape(len(own), draws + 1)
            gained_N = values_ND[:, 0] - values_ND[:, 1:].mean(dim=1)
        rewards_S = torch.zeros(len(episode.steps))
        rewards_S[[step for step, _, _ in own]] = scale * gained_N
        rewards.append(rewards_S)
    if scorer is not None:
        context.counts.update(costs_in(counted(scorer)) - before)  # pyright: ignore
    return rewards


def _values(scores: Tensor, difference: Difference) -> Tensor:
    return scores.exp() if difference == "prob" else scores


def _searched(episode: Episode, after: str) -> list[tuple[int, int, int]]:
    """Of each search of the policy: its step, the turn that asked, and how many turns there are until it is scored."""
    places: list[tuple[int, int, int]] = []
    for search, reader in searches(episode.steps):
        turns = [turn for turn, _, _ in episode.steps[search].spans]
        if turns:
            asked = next((turn for turn in turns if episode.turns[turn].action.kind == "query"), turns[-1])
            read = [turn for turn, _, _ in episode.steps[reader].spans] if reader is not None else []
            places.append((search, asked, 1 + (max([asked, *read]) if after == "step" else asked)))
    return places


def _begun(episode: Episode) -> Episode:
    """The episode before its first sampled turn."""
    return _cut(episode, next((n for n, turn in enumerate(episode.turns) if turn.finish != "scripted"), 0))


def _cut(episode: Episode, turns: int) -> Episode:
    """The episode after some turns."""
    return replace(episode, turns=episode.turns[:turns], status=None, answer="", steps=())


def _exchanged(
    episode: Episode, place: tuple[int, int, int], others: Sequence[tuple[Episode, Turn]], draws: int
) -> list[Episode | None]:
    """The episode after a search, and the same with what other searches found; None where there is no other."""
    _, asked, end = place
    own = _cut(episode, end)
    elsewhere = [turn for other, turn in others if other.question.id != episode.question.id]
    cuts: list[Episode | None] = [own]
    for draw in range(draws):
        turns = list(own.turns)
        if elsewhere:
            number = stable_hash(episode.question.id, episode.iteration, episode.sample, asked, draw) % len(elsewhere)
            passages = elsewhere[number]
            turns[asked] = replace(turns[asked], observation_ids=passages.observation_ids, hits=passages.hits)
        cuts.append(replace(own, turns=turns) if elsewhere else None)
    return cuts


def _scores(
    contexts: Sequence[Episode | None],
    sampler: Sampler,
    context: RewardContext,
    aliases: Aliases,
    thought: str,
    first_weight: float,
) -> list[float]:
    """The score of the gold answer after each context, NaN where it cannot be asked; all are asked at once."""
    named = [
        [] if one is None else one.question.answers[:1] if aliases == "first" else one.question.answers
        for one in contexts
    ]
    asked = [
        [None if one is None else _request(one, answer, context, thought, sampler) for answer in answers]
        for one, answers in zip(contexts, named, strict=True)
    ]
    requests = [request for row in asked for request in row if request is not None]
    logps = iter(sampler.score(requests) if requests else [])
    scores: list[float] = []
    for row in asked:
        own = [answer_score(next(logps), first_weight=first_weight) for request in row if request is not None]
        of_aliases = torch.tensor(own if len(own) == len(row) and own else [float("nan")])
        scores.append(float(of_aliases.logsumexp(0) if aliases == "logsumexp" else of_aliases.max()))
    return scores


def _request(episode: Episode, answer: str, context: RewardContext, thought: str, sampler: Sampler) -> Request | None:
    """A request whose forced ids are the answer's tokens alone; None where it does not fit, or nothing is next."""
    protocol, codec = context.protocol, context.protocol.codec
    upcoming = protocol.next(episode)
    if not isinstance(upcoming, Request):
        return None
    form, written = protocol.say(episode, [Move("conclude", _MARK, thought)]), codec.neutralise(answer)
    ids = codec.control(form.replace(_MARK, written))
    shown, after = codec.decode(ids), form.rpartition(_MARK)[2].strip()
    start = shown.rfind(written, 0, shown.rfind(after) if after else None)  # what comes after may hold it too
    first, last = codec.token_index(ids, [start, start + len(written)]) if start >= 0 else (0, 0)
    if first == last:
        return None
    if upcoming.context is not None:
        upcoming = replace(upcoming, context_ids=codec.encode(upcoming.context))
    request = replace(upcoming, opening_ids=upcoming.opening_ids + ids[:first], forced_ids=ids[first:last])
    most = getattr(getattr(sampler.model, "config", None), "max_position_embeddings", None)
    return None if most is not None and len(request.prefix()) + last - first > most else request
