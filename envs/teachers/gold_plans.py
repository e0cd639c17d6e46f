"""The rule teacher: plans from the gold decompositions of MuSiQue and 2WikiMultiHopQA, without a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from common.answers import exact_match, normalize_answer
from common.seeds import stable_hash
from envs.teachers.plans import Plan, PlannedHop
from envs.teachers.wording import CHAIN, COMPARED, FIRST, NEXT, READ, listed, natural
from envs.types import GoldStep, Question

_REFERENCE = re.compile(r"#(\d+)")


class GoldPlans:
    """A `Planner` over `question.gold.steps`.

    A reference `#k` becomes the k-th sub-answer, and relation shorthand (`X >> relation`) a question. Thoughts and
    wordings are chosen by hash(seed, question id). The last step gives the gold answer; where that is no sub-answer, as
    in comparisons, its thought names what was found.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed

    def plan(self, questions: Sequence[Question]) -> list[Plan | str]:
        return [self._plan(question) for question in questions]

    def _plan(self, question: Question) -> Plan | str:
        steps = question.gold.steps if question.gold else ()
        if not steps:
            return "no gold reasoning"
        if not all(step.question.strip() and step.answer.strip() for step in steps):
            return "a sub-question or its answer is empty"
        rng = Random(stable_hash(self._seed, "plan", question.id))
        hops: list[PlannedHop] = []
        for step in steps:
            known = [hop.answer for hop in hops]
            resolved = resolve(step, known)
            if resolved is None:
                return "a sub-question refers to a later one"
            query = natural(resolved, rng)
            search = (
                rng.choice(NEXT).format(query=query, known=known[-1])
                if known
                else rng.choice(FIRST).format(query=query)
            )
            read = rng.choice(READ).format(answer=step.answer)
            hops.append(PlannedHop(search, query, read, step.answer, step.documents))
        answer = question.answers[0]
        if exact_match(hops[-1].answer, question.answers):
            thought = rng.choice(CHAIN).format(answer=answer)
        else:
            thought = rng.choice(COMPARED).format(answer=answer, facts=listed([hop.answer for hop in hops]))
        return Plan(tuple(hops), thought, answer)


def resolve(step: GoldStep, known: Sequence[str]) -> str | None:
    """A sub-question with every `#k` replaced by the k-th of the known answers; None if one of them is not known yet.

    MuSiQue's format does not distinguish a reference from the `#1` in "the #1 hit": both are replaced.
    """
    numbers = {int(number) for number in _REFERENCE.findall(step.question)}
    if any(not 1 <= number <= len(known) for number in numbers):
        return None
    return _REFERENCE.sub(lambda match: known[int(match[1]) - 1], step.question)


def reachable(steps: Sequence[GoldStep], still_open: Sequence[int]) -> list[int]:
    """The open hops, by number, that can be taken: they build on no other open one.

    A hop builds on another that it refers to as `#k`, or whose answer is its subject (`subject >> relation`).
    """
    return [hop for hop in still_open if not any(_builds_on(steps, hop, other) for other in still_open)]


def _builds_on(steps: Sequence[GoldStep], hop: int, other: int) -> bool:
    question = steps[hop].question
    if str(other + 1) in _REFERENCE.findall(question):
        return True
    subject, relation, _ = question.partition(" >> ")
    answer = normalize_answer(steps[other].answer)
    return other < hop and bool(relation) and bool(answer) and normalize_answer(subject) == answer
