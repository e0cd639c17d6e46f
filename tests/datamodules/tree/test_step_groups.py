from __future__ import annotations

from datamodules.tree.node import Node, Tree
from datamodules.tree.step_groups import candidate_groups, mixed_group
from envs.protocols.prorag import ProRAG
from envs.types import Action, Document, Hit, Turn
from tests.tiny import question

HITS = (Hit(Document("d", "D", "text")),)
TAGS = {"query": "subquery", "subanswer": "subanswer", "answer": "answer"}


def node(kind: str, text: str, visits: int, *children: Node, hits: tuple[Hit, ...] = HITS, said: str = "") -> Node:
    tag = TAGS[kind]
    said = said or f"t </step>\n<{tag}>\n{text} </{tag}>"
    turn = Turn(
        "policy", (), (1,), (-1.0,), "stop", text, said, action=Action(kind, text), hits=hits if kind == "query" else ()
    )
    ended = "answered" if kind == "answer" else None
    return Node(turn, visits=visits, value=0.5, status=ended, children=list(children))


def groups(protocol: ProRAG, *children: Node, **settings: int) -> list[list[str]]:
    tree = Tree(question(), (7,), Node(visits=9, children=list(children)))
    return [
        [candidate.episode.turns[-1].action.text for candidate in group]
        for group in candidate_groups(tree, protocol, **settings)
    ]


def test_visited_children_in_the_right_format_are_candidates(protocol: ProRAG) -> None:
    children = (
        node("query", "a", 2),
        node("query", "never visited", 0),
        node("query", "nothing found", 2, hits=()),
        node("answer", "malformed", 2, said="<answer>malformed</answer>"),
        node("subanswer", "b", 1),
    )
    assert groups(protocol, *children) == [["a", "b"]]
    assert groups(protocol, *children, min_visits=2) == []


def test_one_candidate_is_no_choice(protocol: ProRAG) -> None:
    assert groups(protocol, node("query", "a", 2)) == []


def test_only_below_much_visited_steps_is_looked_further(protocol: ProRAG) -> None:
    below = node("subanswer", "c", 1), node("subanswer", "d", 1)
    assert groups(protocol, node("query", "a", 3, *below), node("query", "b", 2, *below)) == [["a", "b"], ["c", "d"]]
    assert groups(protocol, node("query", "a", 3, *below), descend_visits=4) == []


def test_a_malformed_step_is_no_candidate_but_those_below_it_are(protocol: ProRAG) -> None:
    below = node("subanswer", "c", 1), node("answer", "d", 1)
    assert groups(protocol, node("query", "odd", 3, *below, said="odd")) == [["c", "d"]]


def test_a_candidate_is_an_episode_that_can_be_judged(protocol: ProRAG) -> None:
    tree = Tree(
        question(), (7,), Node(children=[node("query", "a", 5, node("answer", "Ada", 2), node("answer", "Bob", 3))])
    )
    [[ada, bob]] = candidate_groups(tree, protocol)
    assert (ada.visits, ada.value, bob.visits) == (2, 0.5, 3)
    assert (ada.episode.status, ada.episode.answer) == ("answered", "Ada")
    assert [(step.kind, step.valid) for step in ada.episode.steps] == [("query", True), ("answer", True)]
    assert ada.episode.prompt_ids == (7,)
    assert ada.episode.turns[0] is bob.episode.turns[0]


def test_all_candidates_of_a_tree_are_mixed_so_that_no_depth_comes_first(protocol: ProRAG) -> None:
    below = [node("subanswer", f"below {i}", 1) for i in range(6)]
    above = [node("query", f"above {i}", 3, *(below if i == 0 else ())) for i in range(6)]
    siblings = list(candidate_groups(Tree(question(), (7,), Node(visits=9, children=above)), protocol))
    mixed = {seed: [one.episode.turns[-1].text for one in mixed_group(siblings, seed=seed)] for seed in (0, 1)}
    in_order = [one.episode.turns[-1].text for group in siblings for one in group]
    assert len(siblings) == 2
    for texts in mixed.values():
        assert sorted(texts) == sorted(in_order)
        assert 1 <= sum("above" in text for text in texts[:6]) <= 5
    assert mixed[0] != mixed[1]
    assert mixed[0] == [one.episode.turns[-1].text for one in mixed_group(siblings, seed=0)]
