"""FLARE (Jiang et al. 2023, arXiv 2305.06983): retrieve where the next sentence is uncertain.

A round drafts the next sentence without passages. If the policy is unsure of any of its tokens, the sentence without
those tokens is searched for and drafted again, below the passages; this draft is kept in any case. If no word is left
to search for, the first one is kept. The text ends with the sentence that announces the answer, after `rounds` rounds
or `tokens` tokens, or where the policy writes nothing more; no draft is longer than what is left of `tokens`. Without
an announcement the whole text is the answer.
"""

from __future__ import annotations

import math
from pathlib import Path

from common.errors import ConfigError
from envs.protocols.rendering import render_hits
from envs.requests import Act, Data, Done, Quoted, Request
from envs.types import Action, Episode, Turn
from systems.baselines.sentences import MARKER, SENTENCE_ENDS, Sentences

INSTRUCTION = """Answer the question. Reason in short sentences, one fact in each, and end with a sentence of this \
form: "So the answer is: ...", with a few words only."""


class FLARE(Sentences):
    """Drafts, each in a context of its own: the question, the passages of a second draft, the text so far.

    The probabilities are those that the sampler stores: at its temperature, at 1 where it is greedy.

    Args:
        tokenizer: folder or hub id; its chat template writes the prompt.
        instruction: what the user message says first.
        threshold: a token of at most this probability is uncertain.
        draft_tokens: of one draft at most; its first sentence is taken.
        tokens: of the text, which ends when it has as many.
        rounds: sentences at most.
        marker: what announces the answer.
        ends: strings at which the sampler stops; the first sentence of what it wrote is taken.

    Raises:
        ConfigError: a number is below 1, or the threshold is no probability.
    """

    def __init__(
        self,
        tokenizer: Path | str,
        *,
        instruction: str = INSTRUCTION,
        threshold: float = 0.2,
        draft_tokens: int = 64,
        tokens: int = 256,
        rounds: int = 5,
        marker: str = MARKER,
        ends: tuple[str, ...] = SENTENCE_ENDS,
    ) -> None:
        if min(draft_tokens, tokens, rounds) < 1 or not 0 <= threshold <= 1:
            settings = f"threshold {threshold}, draft_tokens {draft_tokens}, tokens {tokens}, rounds {rounds}"
            raise ConfigError(f"{settings}: threshold must be in [0, 1], the others at least 1")
        super().__init__(tokenizer, marker, ends)
        self.threshold, self.draft_tokens, self.tokens, self.rounds = threshold, draft_tokens, tokens, rounds
        self.alone = f"{instruction}\n\nQuestion: {{question}}"
        self.below = f"{instruction}\n\nPassages:\n{{passages}}\n\nQuestion: {{question}}"

    def next(self, episode: Episode) -> Request | Act | Done:
        text = [self.quoted(turn) for turn in self.kept(episode)]
        last = episode.turns[-1] if episode.turns else None
        if last is not None and last.action.kind == "draft":
            return Act(episode, Action("query", last.action.text))
        if last is not None and last.action.kind == "end":
            return Done("answered" if text else "malformed")
        if last is not None and last.action.kind == "answer":
            return Done("answered")
        left = self.tokens - sum(map(len, text))
        if len(text) == self.rounds or left <= 0:
            return Done("answered")
        question = episode.question.text
        if last is not None and last.action.kind == "query":
            passages = Data(render_hits(last.hits), cuttable=True)
            context = self.codec.chat(self.below, passages=passages, question=question)
        else:
            context = self.codec.chat(self.alone, question=question)
        context += tuple(map(Quoted, text))
        return Request(episode, (), stop=self.ends, context=context, max_tokens=min(self.draft_tokens, left))

    def parse(self, episode: Episode, turn: Turn) -> Action:
        redrafted = bool(episode.turns) and episode.turns[-1].action.kind == "query"
        if not redrafted and (query := self._query(turn)):
            return Action("draft", query)
        return super().parse(episode, turn)

    def _query(self, turn: Turn) -> str:
        """The sentence without its uncertain tokens; empty where there are none, or no others."""
        sure = [math.exp(logp) > self.threshold for logp in turn.action_logps[: len(self.quoted(turn))]]
        if all(sure):
            return ""
        kept = [token for token, is_sure in zip(turn.action_ids, sure, strict=False) if is_sure]
        words = " ".join(self.codec.decode(kept).replace("\ufffd", "").split())
        return words if any(map(str.isalnum, words)) else ""
