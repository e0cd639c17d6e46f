"""Every protocol of the suite, and a foreign one that re-renders its context, through the conformance suite."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from envs.protocols.direct import Direct
from envs.protocols.prorag import ProRAG
from envs.text import Codec
from envs.types import Act, Action, Done, Episode, Hit, Observation, Question, Request, Step, Turn
from tests.envs.protocols.conformance import check_protocol
from tests.tiny import byte_tokenizer

HOPS = [Action("query", "first program"), Action("subanswer", "Ada"), Action("answer", "Ada Lovelace")]


def test_prorag_with_tags_as_tokens() -> None:
    check_protocol(ProRAG(byte_tokenizer()), HOPS, "Ada Lovelace")


def test_prorag_with_tags_as_plain_text() -> None:
    check_protocol(ProRAG(byte_tokenizer(tags=())), HOPS, "Ada Lovelace")


@pytest.mark.parametrize("retrieve", [False, True])
def test_direct(retrieve: bool) -> None:
    check_protocol(Direct(byte_tokenizer(), retrieve=retrieve), [Action("answer", "Ada")], "Ada")


class Notebook:
    """Re-renders its context every turn, as ReasonRAG does: passages are seen once, then only the note taken.

    A turn may hold two steps: `note|…` and what follows it.
    """

    kinds = ("query", "answer")

    def __init__(self) -> None:
        self.codec = Codec(byte_tokenizer(tags=("<find>", "</find>", "<say>", "</say>")), ("<find>", "<say>"))

    def prompt(self, question: Question) -> tuple[int, ...]:
        return ()

    def next(self, episode: Episode) -> Request | Act | Done:
        if episode.turns and episode.turns[-1].action.kind == "answer":
            return Done("answered")
        context = self.codec.control("Q: ") + self.codec.data(episode.question.text)
        for turn in episode.turns:
            context += self.codec.control("\nThought: ") + self.codec.data(turn.text)
        if episode.turns:  # an observation is neutralised and cut already
            context += self.codec.control("\nPassages: ") + episode.turns[-1].observation_ids
        return Request(episode, self.codec.control("\n>"), ("</find>", "</say>"), context_ids=context)

    def parse(self, turn: Turn) -> Action:
        for tag, kind in (("find", "query"), ("say", "answer")):
            _head, opening, rest = turn.text.partition(f"<{tag}>")
            if opening:
                return Action(kind, rest.removesuffix(f"</{tag}>").strip())
        return Action("invalid", "")

    def observe(self, action: Action, hits: Sequence[Hit]) -> Observation:
        return Observation(data=" ".join(hit.document.text for hit in hits))

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        steps = []
        for index, turn in enumerate(episode.turns):
            cut = len(self.codec.control(turn.text.partition("<")[0]))
            steps.append(Step("note", turn.text, True, ((index, 0, cut),)))
            steps.append(
                Step(turn.action.kind, turn.action.text, True, ((index, cut, len(turn.action_ids)),), turn.hits)
            )
        return tuple(steps)

    def valid(self, episode: Episode) -> bool:
        return episode.status == "answered"

    def answer(self, episode: Episode) -> str:
        last = episode.turns[-1].action if episode.turns else Action("none", "")
        return last.text if last.kind == "answer" else ""

    def compose(self, action: Action, thought: str) -> str:
        tag = {"query": "find", "answer": "say"}[action.kind]
        return f"{thought}<{tag}>{action.text}</{tag}>"


def test_a_foreign_protocol_that_rerenders_its_context() -> None:
    check_protocol(Notebook(), [Action("query", "program"), Action("answer", "Ada")], "Ada")
