"""Trees grown by books of lines: what an expander and a simulator write after each path of actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

from common.errors import RetrievalError
from datamodules.tree.node import Node, Tree
from datamodules.tree.search import SearchSettings, TreeSearcher
from datamodules.tree.selection import AllAtOnce, Puct
from datamodules.tree.values import AnswerScore, DiscountedMean
from envs.protocols.prorag import ProRAG
from envs.requests import Request
from envs.retrieval import RetrievalEnvironment
from envs.types import Document, Episode, Hit, Limits, Question
from tests.tiny import FixedRetriever, Scripted, question

QUERY = "look </step>\n<subquery>\n{} </subquery>"
SUB = "read </step>\n<subanswer>\n{} </subanswer>"
ANSWER = "know </step>\n<answer>\n{} </answer>"
DOCUMENTS = [Document("d1", "Ada", "Ada wrote it.")]

Book = dict[tuple[str, ...], list[str]]


class Counted(Scripted):
    """Says, after a given path of actions, the next of the lines that its book has for it; counts what is asked."""

    def __init__(self, protocol: ProRAG, book: Book, default: str = ANSWER.format("nobody")) -> None:
        super().__init__(protocol.codec.control, self._line)
        self.book, self.default = book, default
        self.calls: list[int] = []
        self.asked: Counter[tuple[str, ...]] = Counter()

    def _line(self, episode: Episode) -> str:
        path = tuple(turn.action.text for turn in episode.turns)
        lines = self.book.get(path, [self.default])
        self.asked[path] += 1
        return lines[(self.asked[path] - 1) % len(lines)]

    def submit(self, requests: Sequence[Request]) -> None:
        if requests:
            self.calls.append(len(requests))
        super().submit(requests)


class Failing(FixedRetriever):
    """Fails for as long as `down` says so."""

    def __init__(self, down: Callable[[Sequence[str]], bool]) -> None:
        super().__init__(DOCUMENTS)
        self.down = down

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        if self.down(queries):
            raise RetrievalError("down")
        return super().search(queries, k)


def searcher(
    protocol: Any,
    expander: Scripted,
    simulator: Scripted,
    *,
    retriever: FixedRetriever | None = None,
    depth: int = 10,
    seed: int = 0,
    total_tokens: int = 8192,
    children: int = 4,
    c_puct: float = 2.5,
    discount: float = 0.99,
    count_rollout: bool = True,
    score: Literal["exact", "f1"] = "exact",
    **settings: Any,
) -> TreeSearcher:
    """A searcher by ProRAG's rules with these numbers; `settings` may replace a rule."""
    rules: dict[str, Any] = {"selection": Puct(c_puct), "width": AllAtOnce(children)}
    rules |= {"leaf_value": AnswerScore(score), "backup": DiscountedMean(discount, count_rollout)}
    environment = RetrievalEnvironment(
        protocol,
        retriever or FixedRetriever(DOCUMENTS),
        limits=Limits(turns=depth, turn_tokens=200, total_tokens=total_tokens),
    )
    return TreeSearcher(environment, expander, simulator, SearchSettings(**rules | settings), seed=seed)


def grown(search: TreeSearcher, *questions: Question) -> Tree:
    return search.grow(questions or (question(),))[0]


def said(node: Node) -> str:
    return node.turn.action.text if node.turn else ""


def child(tree: Tree, *path: str) -> Node:
    node = tree.root
    for text in path:
        [node] = [below for below in node.children if said(below) == text]
    return node


# After "q" the right way goes on with "Ada"; "x" is a dead end whose answer is wrong.
BOOK: Book = {
    (): [QUERY.format("q"), ANSWER.format("x")],
    ("q",): [SUB.format("Ada"), SUB.format("Bob")],
    ("q", "Ada"): [ANSWER.format("Ada")],
    ("q", "Bob"): [ANSWER.format("Bob")],
}
