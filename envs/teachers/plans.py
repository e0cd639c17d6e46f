"""A plan: what a teacher thinks, asks and reads, hop by hop. Planners make plans; the teacher plays them."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import ConfigError, DataError
from envs.interfaces import Protocol
from envs.sampling import WritesAtOnce
from envs.teachers.turns import written_turn
from envs.types import Action, Question, Request, Turn


@dataclass(frozen=True, slots=True)
class PlannedHop:
    """One hop: a sub-question and its answer, a thought before each, and the gold passages (ids or titles)."""

    search_thought: str
    query: str
    read_thought: str
    answer: str
    documents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole episode but for what is retrieved."""

    hops: tuple[PlannedHop, ...]
    thought: str
    answer: str


class Planner(typing.Protocol):
    """Makes plans."""

    def plan(self, questions: Sequence[Question]) -> list[Plan | str]:
        """A plan for each question, or the reason why there is none."""
        ...


class PlanTeacher(WritesAtOnce):
    """A `Sampler` that plays the plan of an episode's question: search, read, …, answer.

    Questions without a plan are named beforehand (`unable`), so that they are skipped and counted, not broken off.

    Args:
        protocol: writes the turns; its episodes must be searches, sub-answers and an answer.
        planner: makes the plans.

    Raises:
        ConfigError: the protocol knows no sub-answers; on generating, DataError for a question without a plan.
    """

    def __init__(self, protocol: Protocol, planner: Planner) -> None:
        super().__init__()
        if absent := {"search", "read", "conclude"} - set(protocol.moves):
            raise ConfigError(f"PlanTeacher: {type(protocol).__name__} cannot write the move '{min(absent)}'")
        self._protocol, self._planner = protocol, planner
        self._plans: dict[str, Plan | str] = {}
        self._documents: dict[str, tuple[str, ...]] = {}

    def unable(self, questions: Sequence[Question]) -> dict[str, str]:
        """Plan for these questions and forget all others; the reasons where there is no plan, by question id."""
        plans = self._planner.plan(questions)
        self._plans = {question.id: plan for question, plan in zip(questions, plans, strict=True)}
        self._documents = {}
        return {identity: plan for identity, plan in self._plans.items() if isinstance(plan, str)}

    def documents(self, query: str) -> tuple[str, ...]:
        """Gold passages of a query that was played, by id or title; empty where none is known."""
        return self._documents.get(query, ())

    def take(self, request: Request) -> Turn:
        plan = self._plan(request.episode.question)
        number, reads = divmod(len(request.episode.turns), 2)
        if number == len(plan.hops):
            return written_turn(self._protocol, request, Action("answer", plan.answer), plan.thought)
        hop = plan.hops[number]
        if reads:
            return written_turn(self._protocol, request, Action("subanswer", hop.answer), hop.read_thought)
        turn = written_turn(self._protocol, request, Action("query", hop.query), hop.search_thought)
        query = self._protocol.parse(request.episode, turn).text  # as the retriever will see it
        self._documents[query] = tuple(dict.fromkeys(self.documents(query) + hop.documents))
        return turn

    def _plan(self, question: Question) -> Plan:
        if question.id not in self._plans:
            [self._plans[question.id]] = self._planner.plan([question])
        plan = self._plans[question.id]
        if isinstance(plan, str):
            raise DataError(f"question {question.id} has no plan: {plan}")
        return plan
