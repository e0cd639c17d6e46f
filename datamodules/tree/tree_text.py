"""Trees and pairs as text for reports."""

from __future__ import annotations

from collections.abc import Iterator

from datamodules.tree.node import Node, Tree
from envs.pairs import Pair
from envs.types import Episode, Turn

_WIDTH = 110


def tree_text(tree: Tree, nodes: int = 80) -> str:
    """A tree as an indented list of its first `nodes` nodes, depth first: N visits, Q value, P prior, and the step."""
    lines = [f"Question: {tree.question.text}", f"Gold: {' | '.join(tree.question.answers)}"]
    paths = list(tree.paths())
    for path in paths[:nodes]:
        lines.append(f"{'  ' * (len(path) - 1)}{_node(path[-1])}")
    if len(paths) > nodes:
        lines.append(f"... and {len(paths) - nodes} more")
    return "\n".join(lines)


def pair_text(pair: Pair) -> str:
    """A pair: the question, the history in short, the better and the worse step, and the reason."""
    question = pair.chosen.question
    siblings = pair.chosen.turns[:-1] == pair.rejected.turns[:-1]
    lines = [f"Question: {question.text}", f"Gold: {' | '.join(question.answers)}"]
    lines += _history(pair.chosen) if siblings else ()
    sides = (
        ("better", pair.chosen, pair.chosen_value, pair.chosen_visits),
        ("worse", pair.rejected, pair.rejected_value, pair.rejected_visits),
    )
    for name, episode, value, visits in sides:
        lines += () if siblings else _history(episode)
        lines.append(f"{name} (Q {value:.2f}, N {visits}): {_turn(episode.turns[-1])}")
        lines += _hits(episode.turns[-1])
    return "\n".join([*lines, f"because: {pair.reason}"] if pair.reason else lines)


def _node(node: Node) -> str:
    figures = f"N {node.visits}, Q {node.value:.2f}, P {node.prior:.2f}"
    if node.turn is None:
        return f"[{figures}] start"
    worth = "no value" if node.outcome is None else f"{node.outcome:.2g}"
    ended = "" if node.status is None else f" [{node.status}: {worth}]"
    return f"[{figures}] {_turn(node.turn)}{ended}{' [dead]' if node.dead else ''}"


def _history(episode: Episode) -> Iterator[str]:
    for number, turn in enumerate(episode.turns[:-1], 1):
        yield f"  {number}. {turn.action.kind}: {_short(turn.action.text)}"
        yield from _hits(turn)


def _hits(turn: Turn) -> Iterator[str]:
    if turn.hits:
        yield f"     hits: {_short(' | '.join(hit.document.title for hit in turn.hits))}"


def _turn(turn: Turn) -> str:
    return f"{turn.action.kind}: {_short(turn.text)}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
