"""IRCoT (Trivedi et al. 2023, arXiv 2212.10509): a chain of thought whose every sentence is searched for.

The question is searched for first. A turn is one sentence, written after all passages so far, a pool that each
retrieval adds to. The chain ends with the sentence that announces the answer, after `iterations` sentences, or where
the policy writes nothing more. Without an announcement the whole chain is the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from common.errors import ConfigError
from envs.protocols.rendering import render_hits
from envs.requests import Act, Data, Done, Quoted, Request
from envs.types import Action, Episode, Hit
from systems.baselines.sentences import MARKER, SENTENCE_ENDS, Sentences

INSTRUCTION = """Answer the question from the passages. Reason in short sentences, one fact in each, and end with a \
sentence of this form: "So the answer is: ...", with a few words only."""


class IRCoT(Sentences):
    """Passages and the sentences so far in one context, rendered anew for every sentence.

    Args:
        tokenizer: folder or hub id; its chat template writes the prompt.
        instruction: what the user message says first.
        iterations: sentences at most.
        pool: passages that are kept, those of the highest scores.
        worst_first: lists the passages in the order of FlashRAG, the best nearest to the sentences. By default the best
            come first, for what does not fit is cut from the end.
        sentence_tokens: of one sentence at most.
        marker: what announces the answer.
        ends: strings at which the sampler stops; the first sentence of what it wrote is taken.

    Raises:
        ConfigError: a number is below 1.
    """

    def __init__(
        self,
        tokenizer: Path | str,
        *,
        instruction: str = INSTRUCTION,
        iterations: int = 5,
        pool: int = 15,
        worst_first: bool = False,
        sentence_tokens: int = 64,
        marker: str = MARKER,
        ends: tuple[str, ...] = SENTENCE_ENDS,
    ) -> None:
        if min(iterations, pool, sentence_tokens) < 1:
            settings = f"iterations {iterations}, pool {pool}, sentence_tokens {sentence_tokens}"
            raise ConfigError(f"{settings}: each must be at least 1")
        super().__init__(tokenizer, marker, ends)
        self.iterations, self.pool, self.worst_first = iterations, pool, worst_first
        self.sentence_tokens = sentence_tokens
        self.user = f"{instruction}\n\nPassages:\n{{passages}}\n\nQuestion: {{question}}"

    def next(self, episode: Episode) -> Request | Act | Done:
        if not episode.turns:
            return Act(episode, Action("query", episode.question.text))
        last = episode.turns[-1].action
        if last.kind == "answer" or (last.kind == "sentence" and len(self.kept(episode)) == self.iterations):
            return Done("answered")
        if last.kind == "end":
            return Done("answered" if self.kept(episode) else "malformed")
        if last.kind == "sentence":
            return Act(episode, Action("query", last.text))
        return self._sentence(episode)

    def _sentence(self, episode: Episode) -> Request:
        hits = merged((hit for turn in episode.turns for hit in turn.hits), self.pool)
        passages = Data(render_hits(hits[::-1] if self.worst_first else hits), cuttable=True)
        context = self.codec.chat(self.user, passages=passages, question=episode.question.text)
        context += tuple(Quoted(self.quoted(turn)) for turn in self.kept(episode))
        return Request(episode, (), stop=self.ends, context=context, max_tokens=self.sentence_tokens)


def merged(hits: Iterable[Hit], most: int) -> list[Hit]:
    """Every document once, with its highest score, the best `most` first; equal ones in the order of their finding."""
    best: dict[str, Hit] = {}
    for hit in hits:
        known = best.get(hit.document.id)
        if known is None or _score(hit) > _score(known):
            best[hit.document.id] = hit
    return sorted(best.values(), key=_score, reverse=True)[:most]


def _score(hit: Hit) -> float:
    return float("-inf") if hit.score is None else hit.score
