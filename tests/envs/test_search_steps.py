"""Which claim reads which search, in formats of every kind."""

from __future__ import annotations

from envs.search_steps import searches, statements
from envs.types import Step


def query(text: str, claim: str | None = "") -> Step:
    return Step("query", True, ((0, 0, 1),), query=text, claim=claim)


def claim(text: str, *, recall: bool = False) -> Step:
    return Step("claim", True, (), claim=text, recall=recall)


ANSWER = Step("answer", True, (), claim="Brimby")


def test_a_claim_after_a_search_reads_it() -> None:
    steps = [query("a"), claim("1"), query("b"), claim("2"), ANSWER]
    assert searches(steps) == [(0, 1), (2, 3)]
    assert statements(steps) == []


def test_a_step_that_searches_and_claims_reads_its_own_search() -> None:
    steps = [query("a", "1"), claim("2", recall=True), query("b", "3"), ANSWER]
    assert searches(steps) == [(0, 0), (2, 2)]
    assert statements(steps) == [1]


def test_a_search_that_was_never_concluded_is_read_by_no_statement() -> None:
    assert searches([query("a"), claim("1", recall=True), ANSWER]) == [(0, None)]
    assert statements([query("a"), claim("1", recall=True), ANSWER]) == [1]


def test_what_is_written_below_passages_that_the_protocol_fetched_is_no_statement_without_a_search() -> None:
    """IRCoT's sentences: each stands below what was found for the one before it."""
    fetched = Step("query", True, (), query="a")
    first, second = claim("1", recall=True), claim("2", recall=True)
    assert searches([fetched, first, second, ANSWER]) == [(0, 1)]
    assert statements([fetched, first, second, ANSWER]) == [2]


def test_a_claim_reads_the_last_search_and_a_second_claim_reads_none() -> None:
    steps = [query("a"), query("b"), claim("1"), claim("2"), ANSWER]
    assert searches(steps) == [(0, None), (1, 2)]
    assert statements(steps) == [3]


def test_the_answer_is_no_claim_and_a_format_without_claims_states_nothing() -> None:
    assert searches([query("a", None), query("b", None), ANSWER]) == [(0, None), (1, None)]
    assert statements([query("a", None), ANSWER]) == []
    assert statements([Step("invalid", False, (), claim=None), claim(""), ANSWER]) == []


def test_a_memory_between_a_search_and_its_claim_takes_nothing_away() -> None:
    assert searches([query("a"), claim("m", recall=True), claim("1"), ANSWER]) == [(0, 2)]
    assert statements([query("a"), claim("m", recall=True), claim("1"), ANSWER]) == [1]
