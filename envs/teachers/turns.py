"""A teacher's turn, as a policy could have sampled it."""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import ConfigError
from envs.interfaces import AgentFormat
from envs.requests import Request
from envs.types import Move, MoveKind, Turn


def written_turn(protocol: AgentFormat, request: Request, moves: Sequence[Move]) -> Turn:
    """The turn that makes `moves`, or as many of them as one turn of the format holds."""
    return text_turn(protocol, request, protocol.say(request.episode, moves))


def text_turn(protocol: AgentFormat, request: Request, text: str) -> Turn:
    """The turn of a text; its log-probs are 0.

    It is cut at the tokens that a policy would have: a longer one would teach turns that no policy can finish.
    """
    ids = protocol.codec.control(text)
    cut = ids[: request.max_tokens]
    return request.turn(cut, (0.0,) * len(cut), "stop" if cut == ids else "length", protocol.codec.decode(cut))


def require_moves(teacher: object, protocol: AgentFormat, moves: Sequence[MoveKind]) -> None:
    """Require a format that can write a teacher's moves.

    Raises:
        ConfigError: a move cannot be written in it.
    """
    for move in moves:
        if move not in protocol.moves:
            names = type(teacher).__name__, type(protocol).__name__
            known = ", ".join(protocol.moves)
            raise ConfigError(f"{names[0]} needs the move '{move}', which {names[1]} cannot write (it has {known})")
