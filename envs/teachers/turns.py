"""What every teacher writes: a turn as a policy could have sampled it."""

from __future__ import annotations

from envs.interfaces import Protocol
from envs.types import Action, Move, MoveKind, Request, Turn

_MOVES: dict[str, MoveKind] = {"query": "search", "subanswer": "read", "answer": "conclude"}


def written_turn(protocol: Protocol, request: Request, action: Action, thought: str) -> Turn:
    """The turn that thinks `thought` and takes `action`; its log-probs are 0."""
    ids = protocol.codec.control(protocol.say(request.episode, [Move(_MOVES[action.kind], action.text, thought)]))
    return request.turn(ids, (0.0,) * len(ids), "stop", protocol.codec.decode(ids))
