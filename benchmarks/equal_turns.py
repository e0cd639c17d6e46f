"""Episodes of equal work, whatever is sampled: turns of one length or mixed, a made-up observation after each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from common.seeds import stable_hash
from envs.interfaces import RewardContext
from envs.requests import Done, Request
from envs.retrieval import RetrievalEnvironment
from envs.text import Codec
from envs.types import Action, Episode, Hit, Limits, Observation, Question, Step, Turn

WORLD_BASE = Path(__file__).parents[1] / "assets" / "world_base"  # the quickstart's tiny model


@dataclass(frozen=True)
class Work:
    """Questions with a group of episodes each; of an episode the tokens of its prompt, turns and observations.

    With `mixed`, `turns` and `turn_tokens` are the most that an episode has; see `MixedTurns`.
    """

    questions: int = 8
    group: int = 8
    turns: int = 3
    turn_tokens: int = 60
    observation: int = 150
    prompt: int = 64
    mixed: bool = False

    @property
    def episodes(self) -> int:
        """Of all questions."""
        return self.questions * self.group

    @property
    def context(self) -> int:
        """Tokens of the longest episode, with one to spare."""
        return self.prompt + self.turns * (self.turn_tokens + self.observation) + 1

    @property
    def limits(self) -> Limits:
        """Budgets that let an episode do this work and no more."""
        return Limits(self.turns, self.turn_tokens, self.observation, self.context)


class EqualTurns:
    """A protocol whose turns are all of one length, each followed by an observation of one length.

    Only the end-of-message token ends a turn early; the episode continues all the same. The prompt is the question,
    repeated to its length.
    """

    moves = ()

    def __init__(self, tokenizer: PreTrainedTokenizerBase | Path | str, work: Work) -> None:
        self.codec, self.work = Codec(tokenizer), work

    def prompt(self, question: Question) -> tuple[int, ...]:
        return self.codec.data(self._repeated(question.text + " ", self.work.prompt))[: self.work.prompt]

    def next(self, episode: Episode) -> Request | Done:
        return Done("answered") if len(episode.turns) == self.work.turns else Request(episode, (), stop=())

    def parse(self, episode: Episode, turn: Turn) -> Action:
        return Action("write", turn.text)

    def observe(self, episode: Episode, action: Action, hits: Sequence[Hit]) -> Observation:
        return Observation(data=self._repeated("a b c d ", self.work.observation))  # the environment cuts it

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        return tuple(Step("write", True, ((i, 0, len(turn.action_ids)),)) for i, turn in enumerate(episode.turns))

    def valid(self, episode: Episode) -> bool:
        return True

    def answer(self, episode: Episode) -> str:
        return ""

    def say(self, episode: Episode, moves: Sequence[Any]) -> str:
        return ""

    def _repeated(self, text: str, tokens: int) -> str:
        """The text as often as it takes for so many tokens."""
        return text * (1 + -(-tokens // len(self.codec.data(text))))


class MixedTurns(EqualTurns):
    """The same with lengths that differ, as an agent's do: 1 to `turns` turns, each of a third up to all of its tokens.

    They are drawn by hash of question, attempt and turn, so all sides and iterations have the same.
    """

    def next(self, episode: Episode) -> Request | Done:
        turn, work = len(episode.turns), self.work
        if turn == self._drawn(episode, 1, work.turns):
            return Done("answered")
        tokens = self._drawn(episode, -(-work.turn_tokens // 3), work.turn_tokens, turn)
        return Request(episode, (), stop=(), max_tokens=tokens)

    def _drawn(self, episode: Episode, least: int, most: int, *of: int) -> int:
        return least + stable_hash(episode.question.id, episode.sample, *of) % (most - least + 1)


def equal_turns(tokenizer: PreTrainedTokenizerBase | Path | str, work: Work) -> RetrievalEnvironment:
    """The environment of this work."""
    protocol: Any = (MixedTurns if work.mixed else EqualTurns)(tokenizer, work)
    return RetrievalEnvironment(protocol, None, limits=work.limits)


def variety(episodes: Sequence[Episode], context: RewardContext | None = None) -> Tensor:
    """An outcome reward that differs between episodes, `[B]`: the share of sampled tokens that are different ones."""
    tokens = [[id_ for turn in episode.turns for id_ in turn.action_ids] for episode in episodes]
    return torch.tensor([len(set(ids)) / max(len(ids), 1) for ids in tokens])
