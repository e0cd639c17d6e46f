"""IRCoT (Trivedi et al. 2023, arXiv 2212.10509): a chain of thought whose every sentence is searched for.

The question is searched for first. A turn is one sentence, written after all passages so far, a pool that each
retrieval adds to. The chain ends with the sentence that announces the answer, after `iterations` sentences, or where
the policy writes nothing more. Without an announcement the whole chain is the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from common.errors import ConfigError
from envs.protocols.rendering import render_hits
from envs.requests import Act, Data, Done, Quoted, Request
from envs.text import Codec
from envs.types import Action, Episode, Hit, Move, MoveKind, Observation, Question, Step, Turn
from systems.baselines.sentences import MARKER, SENTENCE_ENDS, announced, as_sentence, first_sentence, sentence_steps

INSTRUCTION = """Answer the question from the passages. Reason in short sentences, one fact in each, and end with a \
sentence of this form: "So the answer is: ...", with a few words only."""


class IRCoT:
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

    moves: tuple[MoveKind, ...] = ("recall", "conclude")

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
        self.codec, self.marker, self.ends = Codec(tokenizer), marker, tuple(ends)
        self.iterations, self.pool, self.worst_first = iterations, pool, worst_first
        self.sentence_tokens = sentence_tokens
        self.user = f"{instruction}\n\nPassages:\n{{passages}}\n\nQuestion: {{question}}"

    def prompt(self, question: Question) -> tuple[int, ...]:
        return ()

    def next(self, episode: Episode) -> Request | Act | Done:
        if not episode.turns:
            return Act(episode, Action("query", episode.question.text))
        last = episode.turns[-1].action
        if last.kind == "answer" or (last.kind == "sentence" and len(self._chain(episode)) == self.iterations):
            return Done("answered")
        if last.kind == "end":
            return Done("answered" if self._chain(episode) else "malformed")
        if last.kind == "sentence":
            return Act(episode, Action("query", last.text))
        return self._sentence(episode)

    def _sentence(self, episode: Episode) -> Request:
        hits = merged((hit for turn in episode.turns for hit in turn.hits), self.pool)
        passages = Data(render_hits(hits[::-1] if self.worst_first else hits), cuttable=True)
        context = self.codec.chat(self.user, passages=passages, question=episode.question.text)
        context += tuple(Quoted(turn.action_ids[: self._read(turn)[0]]) for turn in self._chain(episode))
        return Request(episode, (), stop=self.ends, context=context, max_tokens=self.sentence_tokens)

    def _chain(self, episode: Episode) -> list[Turn]:
        return [turn for turn in episode.turns if turn.action.kind == "sentence"]

    def _read(self, turn: Turn) -> tuple[int, str]:
        return first_sentence(self.codec, turn)

    def parse(self, episode: Episode, turn: Turn) -> Action:
        _, text = self._read(turn)
        if answer := announced(text, self.marker):
            return Action("answer", answer)
        return Action("sentence" if text else "end", text)

    def observe(self, episode: Episode, action: Action, hits: Sequence[Hit]) -> Observation:
        return Observation()  # the next context shows the passages

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        return sentence_steps(episode)

    def valid(self, episode: Episode) -> bool:
        return any(turn.action.kind == "answer" for turn in episode.turns)

    def answer(self, episode: Episode) -> str:
        """What was announced; the whole chain where it ended by itself without an announcement."""
        if episode.turns and episode.turns[-1].action.kind == "answer":
            return episode.turns[-1].action.text
        return " ".join(turn.action.text for turn in self._chain(episode)) if episode.status == "answered" else ""

    def say(self, episode: Episode, moves: Sequence[Move]) -> str:
        return as_sentence(self.codec, moves[0], self.marker)


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
