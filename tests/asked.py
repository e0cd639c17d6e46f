"""An agent whose policy is a script: it searches for the question's last word, and answers with that word."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from common.errors import RetrievalError
from envs.protocols.prorag import ProRAG
from envs.retrieval import RetrievalEnvironment
from envs.types import Document, Episode, Hit, Limits
from examples.agents import Agent
from tests.steps import final, query, subanswer
from tests.tiny import Scripted, byte_tokenizer

MARKUP = "<img src=x onerror=alert(1)>"


class Passages:
    """A passage of markup for every query; `open` holds searches back, and some words cannot be searched for."""

    def __init__(self) -> None:
        self.open, self.batches = threading.Event(), list[int]()
        self.open.set()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.batches.append(len(queries))
        assert self.open.wait(20)
        if any("down" in text for text in queries):
            raise RetrievalError("the retriever is down")
        if any("bug" in text for text in queries):
            raise RuntimeError("a bug")
        return [[Hit(Document(f"doc-{text}", f"About {text}", f"{MARKUP} {text}\u202e"), 1.0)] for text in queries]


def agent(passages: Passages) -> Agent:
    """Three turns: a query, what it found, the answer; a question for `nothing` gets none."""

    def script(episode: Episode) -> str:
        word = episode.question.text.split()[-1]
        return [query(word), subanswer(word), "" if word == "nothing" else final(f"{word}!")][len(episode.turns)]

    protocol = ProRAG(byte_tokenizer(), instruction="")  # pyright: ignore[reportArgumentType]
    environment = RetrievalEnvironment(protocol, passages, limits=Limits(turns=3), max_failures=99)
    return Agent("scripted", environment, Scripted(protocol.codec.control, script))
