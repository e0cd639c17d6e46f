"""A generator by rule: right if and only if every passage of the question's chain stands in its context."""

from __future__ import annotations

from pathlib import Path

from common.answers import ABSTENTION
from envs.interfaces import AgentFormat, Sampler
from envs.requests import Request
from envs.teachers.turns import require_moves, written_turn
from envs.text import Codec
from envs.types import Limits, Move, Turn
from envs.world.facts import World
from envs.world.flaws import answered
from envs.world.questions import is_comparison
from envs.world.teacher import UNKNOWN


class RuleReader(Sampler):
    """Concludes from the passages that its context shows, whole: with the answer if none is missing, else "unknown".

    So what gathers passages for it is judged by these alone, not by how well a model reads.

    Args:
        world: the stage folder of a made world.
        protocol: the format that the answer is written in.

    Raises:
        DataError: there is no world; on answering, a question is not of this world.
    """

    def __init__(self, world: Path, protocol: AgentFormat) -> None:
        super().__init__()
        self._world, self._protocol = World.load(world), protocol

    def check(self, protocol: AgentFormat, limits: Limits) -> None:
        """Require a format with answers."""
        require_moves(self, protocol, ("conclude",))

    def take(self, request: Request) -> Turn:
        """The answer to a question, or that it is unknown."""
        identity = request.episode.question.id
        hops, shown = self._world.lookups(identity), shown_documents(self._protocol.codec, request)
        whole = all(hop.subject.id in shown for hop in hops)
        answer = answered(hops, None, comparison=is_comparison(identity)) if whole else UNKNOWN
        answer = ABSTENTION if whole and any(hop.absent for hop in hops) else answer
        return written_turn(self._protocol, request, [Move("conclude", answer)])


def shown_documents(codec: Codec, request: Request) -> frozenset[str]:
    """Ids of the retrieved documents whose text stands in a request's context, uncut."""
    context = codec.decode(request.prefix())
    documents = {hit.document.id: hit.document.text for turn in request.episode.turns for hit in turn.hits}
    return frozenset(id_ for id_, text in documents.items() if codec.decode(codec.data(text)).strip() in context)
