"""A teacher that answers at once, with the gold answer and nothing before it."""

from __future__ import annotations

from envs.interfaces import AgentFormat, Sampler
from envs.requests import Request
from envs.teachers.turns import require_moves, written_turn
from envs.types import Limits, Move, Turn


class GoldAnswers(Sampler):
    """Concludes in the first turn: so a policy is taught to memorise facts.

    Args:
        protocol: the format that the answers are written in.
    """

    def __init__(self, protocol: AgentFormat) -> None:
        super().__init__()
        self._protocol = protocol

    def check(self, protocol: AgentFormat, limits: Limits) -> None:
        """Require a format with answers."""
        require_moves(self, protocol, ("conclude",))

    def take(self, request: Request) -> Turn:
        """The first accepted answer."""
        return written_turn(self._protocol, request, [Move("conclude", request.episode.question.answers[0])])
