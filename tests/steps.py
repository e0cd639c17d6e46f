"""Whole ProRAG episodes for tests, with steps, and pairs of sibling steps of which one speaks of `good` things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from envs.pairs import Pair
from envs.protocols.prorag import ProRAG
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Document, Episode, Limits
from tests.tiny import FixedRetriever, Scripted, question

PASSAGES = [Document("d1", "Ada", "Ada wrote it."), Document("d2", "Bob", "Bob read it.")]


def query(text: str) -> str:
    return f"I need it. </step>\n<subquery>\n{text} </subquery>"


def subanswer(text: str) -> str:
    return f"I see. </step>\n<subanswer>\n{text} </subanswer>"


def final(text: str) -> str:
    return f"So. </step>\n<answer>\n{text} </answer>"


def played(protocol: ProRAG, says: Sequence[str], *, identity: str = "q1", text: str = "Who wrote it?") -> Episode:
    """The finished episode in which the policy says these turns, one after another."""
    environment = RetrievalEnvironment(protocol, FixedRetriever(PASSAGES), limits=Limits(turns=len(says)))
    generator = Scripted(protocol.codec.control, lambda episode: says[len(episode.turns)])
    [episode] = rollout(environment, generator, [question(text, identity=identity)], seed=0)
    return episode


def episodes(protocol: ProRAG) -> list[Episode]:
    """Three episodes of different lengths."""
    return [
        played(protocol, [query("Who wrote it?"), subanswer("Ada"), final("Ada")]),
        played(protocol, [final("Bob")], identity="q2"),
        played(protocol, [query("Who?"), "nonsense </answer>", query("Who read it?"), subanswer("Bob"), final("Bob")]),
    ]


def toy_pairs(protocol: ProRAG, count: int) -> list[Pair]:
    """Pairs that a reader of the last step can tell apart: one asks about a good thing, the other about a bad one."""
    pairs = []
    for number in range(count):
        identity, text = f"q{number // 2}", f"What of {number // 2}?"
        sides = [
            replace(played(protocol, [query(f"{word} {number}?")], identity=identity, text=text), status=None)
            for word in ("good", "bad")
        ]
        sides[1].turns[0].uid += "/sibling"
        pairs.append(Pair(sides[0], sides[1]))
    return pairs
