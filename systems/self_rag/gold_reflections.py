"""Teacher of Self-RAG on datasets with gold steps: segments with the reflection tokens that the steps give."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from common.answers import cover_match
from common.document_names import title_key
from common.errors import DataError
from common.seeds import stable_hash
from envs.interfaces import AgentFormat, Sampler
from envs.requests import Request
from envs.teachers.gold_plans import reachable, resolve
from envs.teachers.turns import text_turn
from envs.teachers.wording import natural
from envs.types import Hit, Limits, Question, Turn
from envs.world.teacher import UNKNOWN
from systems.self_rag.protocol import SelfRAG
from systems.self_rag.reflection_teacher import IRRELEVANT, PARTLY, require_written
from systems.self_rag.segment_tree import Node, Write


class GoldReflections(Sampler):
    """Writes the segment below each passage, and the tokens that follow from `question.gold.steps`.

    A passage is relevant if it is the gold passage, by id or title, of a step that can be taken. The segment asks that
    step and answers it, or gives the answer where it was the last; the passage supports it wholly where it contains
    what is said. It always retrieves. Below any other passage the segment is "unknown", of utility 1; answers have 5.

    Args:
        protocol: the format, `written`.
        seed: of the wordings.

    Raises:
        ConfigError: on checking, the protocol weighs tokens.
        DataError: on writing, a question has no gold steps, or one without a passage.
    """

    def __init__(self, protocol: SelfRAG, *, seed: int = 0) -> None:
        super().__init__()
        self._protocol, self._seed = protocol, seed

    def check(self, protocol: AgentFormat, limits: Limits) -> None:
        """Require a format whose tokens count as written."""
        require_written(self, protocol)

    def unable(self, questions: Sequence[Question]) -> dict[str, str]:
        """Why a question cannot be taught, by its id."""
        return {one.id: reason for one in questions if (reason := _lacks(one))}

    def take(self, request: Request) -> Turn:
        """The next segment or, first of all, that it retrieves."""
        question, due = request.episode.question, self._protocol.tree(request.episode).due
        if reason := _lacks(question):
            raise DataError(f"question {question.id}: {reason}")
        assert isinstance(due, Write)
        text = self._segment(question, due.node) if due.node.parent else self._protocol.tokens.retrieval[0]
        return text_turn(self._protocol, request, text)

    def _segment(self, question: Question, node: Node) -> str:
        tokens, write, passage = self._protocol.tokens, self._protocol.segment, node.passage
        assert question.gold
        if passage is None:  # nothing was found
            return write(UNKNOWN, tokens.utility[-1], relevance=None, support=None)
        steps, sentences = question.gold.steps, self._sentences(question)
        said = {one.text for one in node.path()[:-1]}
        still_open = [hop for hop, sentence in enumerate(sentences) if sentence not in said]
        stated = [hop for hop in reachable(steps, still_open) if _is_of(passage, question, hop)]
        if not stated:
            return write(UNKNOWN, tokens.utility[-1], relevance=IRRELEVANT, support=None)
        hop = stated[0]
        supported = cover_match(f"{passage.document.title} {passage.document.text}", steps[hop].answer)
        judged = {"relevance": 0, "support": 0 if supported else PARTLY}
        if still_open != [hop]:
            return write(sentences[hop], tokens.retrieval[0], **judged)
        return write(question.answers[0], tokens.utility[0], **judged)

    def _sentences(self, question: Question) -> list[str]:
        """What is said of each step."""
        assert question.gold
        rng, steps = Random(stable_hash(self._seed, "segment", question.id)), question.gold.steps
        asked = (resolve(step, [one.answer for one in steps[:hop]]) or step.question for hop, step in enumerate(steps))
        said = (f"{natural(query, rng)} {step.answer}." for query, step in zip(asked, steps, strict=True))
        return [" ".join(sentence.split()) for sentence in said]  # as a segment is read


def _lacks(question: Question) -> str | None:
    """What the teacher misses in a question."""
    steps = question.gold.steps if question.gold else ()
    if not steps:
        return "no gold reasoning"
    return None if all(step.documents for step in steps) else "a step names no passage"


def _is_of(passage: Hit, question: Question, hop: int) -> bool:
    """Whether it is a gold passage of a step."""
    assert question.gold
    names = {title_key(passage.document.id), title_key(passage.document.title)}
    return bool(names & {title_key(name) for name in question.gold.steps[hop].documents})
