"""Teacher of Self-RAG on the embedded world: segments with the reflection tokens that are true of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from common.answers import exact_match, f1_score
from common.errors import ConfigError
from common.seeds import stable_hash
from envs.interfaces import AgentFormat, Sampler
from envs.requests import Request
from envs.teachers.turns import text_turn
from envs.types import Limits, Question, Turn
from envs.world.facts import Hop, World
from envs.world.flaws import answered
from envs.world.questions import is_comparison
from envs.world.relations import RELATIONS
from envs.world.teacher import UNKNOWN
from systems.self_rag.protocol import SelfRAG
from systems.self_rag.segment_tree import Node, Write

IRRELEVANT, PARTLY, _NOT = 1, 1, 2  # numbers in their groups


class ReflectionTeacher(Sampler):
    """Writes the segment below each passage, and the tokens that an oracle gives.

    A passage is relevant if it is about the next open hop (either one, in a comparison). The segment then states that
    hop's fact or, of the last hop, the answer. It retrieves unless the next fact is known. Below any other passage it
    writes "unknown". It does not know of absent facts: it states them as well.
    A share of the segments are wrong: their value is another's, which the passage supports partly, or they state the
    fact of a later hop, which it does not support. The utility of an exact answer is 5, of one that shares words 3, of
    any other 1.

    Args:
        world: the stage folder of a made world.
        protocol: the format, `written`.
        wrong: share of wrong segments, by hash(seed, question id, turn).
        paraphrases: wordings used of each relation, 1 to 3.
        seed: of the wrong ones.

    Raises:
        ConfigError: the share is not in [0, 1]; on checking, the protocol weighs tokens.
        DataError: there is no world; on writing, a question is not of this world.
    """

    def __init__(
        self, world: Path, protocol: SelfRAG, *, wrong: float = 0.1, paraphrases: int = 3, seed: int = 0
    ) -> None:
        super().__init__()
        if not 0 <= wrong <= 1:
            raise ConfigError(f"ReflectionTeacher: wrong {wrong} must be in [0, 1]")
        self._world, self._protocol, self._wrong = World.load(world), protocol, wrong
        self._paraphrases, self._seed = paraphrases, seed

    def check(self, protocol: AgentFormat, limits: Limits) -> None:
        """Require a format whose tokens count as written."""
        require_written(self, protocol)

    def take(self, request: Request) -> Turn:
        """The next segment or, first of all, whether to retrieve."""
        question, due = request.episode.question, self._protocol.tree(request.episode).due
        assert isinstance(due, Write)
        hops = self._open(question, due.node)
        if due.node.parent is None:
            return text_turn(self._protocol, request, self._retrieve(hops))
        fate = Random(stable_hash(self._seed, "segment", question.id, len(request.episode.turns)))
        return text_turn(self._protocol, request, self._segment(question, due.node, hops, fate))

    def _open(self, question: Question, node: Node) -> list[Hop]:
        """The hops that no segment before this one states, in order."""
        said = [one.text for one in node.path()[:-1]]
        hops = self._world.lookups(question.id)
        return [hop for hop in hops if not any(hop.subject.title in s and hop.value.title in s for s in said)]

    def _retrieve(self, hops: Sequence[Hop]) -> str:
        retrieve, alone, _ = self._protocol.tokens.retrieval
        return alone if hops and hops[0].known else retrieve

    def _segment(self, question: Question, node: Node, hops: Sequence[Hop], fate: Random) -> str:
        utility, passage, write = self._protocol.tokens.utility, node.passage, self._protocol.segment
        reachable = hops if is_comparison(question.id) else hops[:1]
        stated = [hop for hop in reachable if (hop.known if passage is None else hop.subject.id == passage.document.id)]
        if not stated:
            return write(UNKNOWN, utility[-1], relevance=None if passage is None else IRRELEVANT, support=None)
        hop, value, support = stated[0], stated[0].value.title, 0
        left = [one for one in hops if one is not hop]
        answer = answered(self._world.lookups(question.id), None, comparison=is_comparison(question.id))
        if fate.random() < self._wrong:
            if left and fate.random() < 0.5:
                hop, value, support = left[-1], left[-1].value.title, _NOT
            else:
                alike = [one.value.title for one in self._world.facts() if one.relation == hop.relation]
                answer = value = fate.choice(alike)
                support = 0 if value == hop.value.title else PARTLY
        judged = {"relevance": None if passage is None else 0, "support": None if passage is None else support}
        if left:
            return write(self._sentence(hop, value, fate), self._retrieve(left), **judged)
        return write(answer, utility[_worth(answer, question)], **judged)

    def _sentence(self, hop: Hop, value: str, rng: Random) -> str:
        phrase = rng.choice(RELATIONS[hop.relation].phrases[: self._paraphrases]).format(x=hop.subject.title)
        return f"{phrase[0].upper()}{phrase[1:]} is {value}."


def require_written(teacher: object, protocol: AgentFormat) -> None:
    """Raise a ConfigError unless the format is Self-RAG's with tokens that count as written."""
    if not (isinstance(protocol, SelfRAG) and protocol.written):
        name = type(teacher).__name__
        raise ConfigError(f"{name} writes for SelfRAG with `written: true`: nothing can weigh its tokens")


def _worth(answer: str, question: Question) -> int:
    """The number of an answer's utility: of 5 if it is exactly right, of 3 if it shares words, else of 1."""
    return 0 if exact_match(answer, question.answers) else 2 if f1_score(answer, question.answers) > 0 else 4
