"""Search trees and labelled steps for tests: a tree of turns by their texts, and a judge that knows what is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datamodules.records import episode_to_row, labelled_to_row, tree_to_row, write_rows
from datamodules.tree.node import Node, Tree
from envs.labelled_steps import LabelledEpisode
from envs.pairs import Candidate
from envs.protocols.prorag import ProRAG
from envs.types import Action, Document, Episode, Hit, Question, Turn
from tests.steps import played, query

TAGS = {"query": "subquery", "subanswer": "subanswer", "answer": "answer"}
FOUND = (Hit(Document("d", "Ada", "Ada wrote it.")),)

# By a step, such as `query Who?`, what follows it.
Branches = dict[str, Any]


def turn(protocol: ProRAG, step: str, uid: str) -> Turn:
    """A turn in format; a query finds a passage. A step that begins with `!` is out of format."""
    kind, _, text = step.removeprefix("!").partition(" ")
    tag = TAGS[kind]
    written = f"I say {text}. </step>\n<{tag}>\n{text} </{tag}>" + (" more" if step.startswith("!") else "")
    ids = protocol.codec.control(written)
    hits = FOUND if kind == "query" else ()
    return Turn("policy", (), ids, (-1.0,) * len(ids), "stop", uid, written, action=Action(kind, text), hits=hits)


def tree(protocol: ProRAG, branches: Branches, identity: str = "q0") -> Tree:
    """A tree of these branches; the uid of a turn is the path to it."""

    def nodes(branches: Branches, before: str) -> list[Node]:
        made = []
        for step, below in branches.items():
            uid = f"{before}/{step}"
            status = "answered" if "answer " in step and "subanswer" not in step else None
            made.append(Node(turn(protocol, step, uid), visits=1, status=status, children=nodes(below, uid)))
        return made

    return Tree(Question(identity, f"What of {identity}?", ("Ada",)), (7,), Node(children=nodes(branches, identity)))


def path(protocol: ProRAG, *steps: str, identity: str = "q0") -> Episode:
    """The episode that makes these steps, with the uids that a tree gives them."""
    branches: Branches = {}
    inner = branches
    for step in steps:
        inner[step] = inner = {}
    own = tree(protocol, branches, identity)
    *_, last = own.paths()
    episode = own.episode(last)
    episode.steps, episode.answer = protocol.steps(episode), protocol.answer(episode)
    return episode


def write_search(folder: Path, trees: Sequence[Tree], episodes: Sequence[Episode] = ()) -> Path:
    """A search's stage folder."""
    write_rows(folder / "data" / "trees.jsonl", map(tree_to_row, trees))
    if episodes:
        write_rows(folder / "data" / "episodes.jsonl", map(episode_to_row, episodes))
    return folder


class Knows:
    """A judge of single steps: 1 for a step that speaks of Ada, 0.5 of Eve, none of `unknown`, else 0."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.asked: list[str] = []

    def label(self, candidates: Sequence[Candidate]) -> list[float | None]:
        texts = [candidate.episode.turns[-1].action.text for candidate in candidates]
        self.asked += [candidate.episode.turns[-1].uid for candidate in candidates]
        self.counts["judge/calls"] += len(candidates)
        return [None if text == "unknown" else {"Ada": 1.0, "Eve": 0.5}.get(text, 0.0) for text in texts]


def labelled_queries(protocol: ProRAG, questions: range) -> list[LabelledEpisode]:
    """Labelled queries of some questions, four each: those about good things are right."""
    rows = []
    for number in questions:
        for place, word in enumerate(("good", "bad", "good", "bad")):
            says = [query(f"{word} {number} {place}?")]
            episode = played(protocol, says, identity=f"q{number}", text=f"What of {number}?")
            rows.append(LabelledEpisode(episode, (float(word == "good"),)))
    return rows


def write_labels(folder: Path, protocol: ProRAG, questions: int) -> Path:
    """`labelled_queries` as a stage folder."""
    rows = map(labelled_to_row, labelled_queries(protocol, range(questions)))
    write_rows(folder / "data" / "labels.jsonl", rows)
    return folder
