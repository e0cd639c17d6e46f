"""A plan: what a teacher thinks, asks and reads, hop by hop. Planners make plans; the teacher carries them out."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import DataError
from envs.interfaces import AgentFormat, Sampler
from envs.requests import Request
from envs.teachers.turns import require_moves, written_turn
from envs.types import Limits, Move, Question, Turn


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


class PlanTeacher(Sampler):
    """Carries out the plan of an episode's question: search, read, …, answer.

    In a format without claims the thought of the next move says what was read. Questions without a plan are named
    beforehand (`unable`), so that they are skipped and counted.

    Args:
        protocol: the format that the turns are written in.
        planner: makes the plans.

    Raises:
        DataError: on writing, a question has no plan.
    """

    def __init__(self, protocol: AgentFormat, planner: Planner) -> None:
        super().__init__()
        self._protocol, self._planner = protocol, planner
        self._plans: dict[str, Plan | str] = {}
        self._documents: dict[str, tuple[str, ...]] = {}

    def check(self, protocol: AgentFormat, limits: Limits) -> None:
        """Require a format with searches and answers."""
        require_moves(self, protocol, ("search", "conclude"))

    def unable(self, questions: Sequence[Question]) -> dict[str, str]:
        """Plan for these questions and forget all others; the reasons where there is no plan, by question id."""
        plans = self._planner.plan(questions)
        self._plans = {question.id: plan for question, plan in zip(questions, plans, strict=True)}
        self._documents = {}
        return {identity: plan for identity, plan in self._plans.items() if isinstance(plan, str)}

    def documents(self, query: str) -> tuple[str, ...]:
        """Gold passages of a query that was written, by id or title; empty where none is known."""
        return self._documents.get(query, ())

    def take(self, request: Request) -> Turn:
        """The next turn of an episode."""
        plan, steps = self._plan(request.episode.question), self._protocol.steps(request.episode)
        searches = sum(bool(step.query) for step in steps)
        moves: list[Move] = []
        read, unsaid, seen = plan.hops[searches - 1] if searches else None, "", ()
        if read and "read" not in self._protocol.moves:
            unsaid, seen = f"{read.read_thought} ", read.documents
        elif read and sum(bool(step.claim) for step in steps) < searches:
            moves.append(Move("read", read.answer, read.read_thought))
        if searches == len(plan.hops):
            moves.append(Move("conclude", plan.answer, unsaid + plan.thought, seen))
            return written_turn(self._protocol, request, moves)
        hop = plan.hops[searches]
        moves.append(Move("search", hop.query, unsaid + hop.search_thought, seen))
        turn = written_turn(self._protocol, request, moves)
        action = self._protocol.parse(request.episode, turn)
        if action.kind == "query":  # as the retriever will see it
            self._documents[action.text] = tuple(dict.fromkeys(self.documents(action.text) + hop.documents))
        return turn

    def _plan(self, question: Question) -> Plan:
        if question.id not in self._plans:
            [self._plans[question.id]] = self._planner.plan([question])
        plan = self._plans[question.id]
        if isinstance(plan, str):
            raise DataError(f"question {question.id} has no plan: {plan}")
        return plan
