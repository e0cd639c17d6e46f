"""Which claim reads which search, in formats of every kind, and which steps begin in the same state."""

from __future__ import annotations

from dataclasses import replace

from envs.protocols.prorag import ProRAG
from envs.search_steps import last_passages, searches, statements, step_states
from envs.types import Document, Episode, Hit, Step
from tests import steps as said
from tests.tiny import byte_tokenizer

PROTOCOL = ProRAG(byte_tokenizer(), instruction="")  # pyright: ignore[reportArgumentType]
FIRST = said.query("Who wrote it?")


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


def states(*says: str) -> tuple[str, ...]:
    return step_states(said.played(PROTOCOL, says))


def test_other_words_for_the_same_search_and_claim_lead_to_the_same_state() -> None:
    one = states(FIRST, said.subanswer("Ada"), said.final("Ada"))
    other = states(
        said.query("By whom was it written?"), said.subanswer("the Ada."), said.query("Who read it?"), said.final("Bob")
    )
    assert len(set(one)) == 3
    assert one == other[:3], "both have found the same passages and claimed the same"
    assert other[3] not in one


def test_another_claim_is_another_state() -> None:
    one = states(FIRST, said.subanswer("Ada"), said.final("Ada"))
    other = states(FIRST, said.subanswer("Bob"), said.final("Bob"))
    assert one[:2] == other[:2]
    assert one[2] != other[2]


def test_other_passages_are_another_state_and_so_is_their_order() -> None:
    episode = said.played(PROTOCOL, [FIRST, said.subanswer("Ada"), said.final("Ada")])
    hits = [Hit(Document(name, name, "")) for name in ("a", "b")]
    found = [step_states(_with_hits(episode, some))[1] for some in ([], hits[:1], hits, hits[::-1])]
    assert len(set(found)) == 4


def test_a_step_of_another_kind_leads_elsewhere() -> None:
    assert states(said.subanswer("Ada"), said.final("x"))[1] != states(said.final("Ada"), said.final("x"))[-1]


def _with_hits(episode: Episode, hits: list[Hit]) -> Episode:
    first, *rest = episode.steps
    return replace(episode, steps=(replace(first, hits=tuple(hits)), *rest))


def test_the_last_passages_are_a_set_and_a_search_that_found_nothing_is_no_beginning() -> None:
    episode = said.played(PROTOCOL, [FIRST, said.subanswer("Ada"), said.final("Ada")])
    hits = [Hit(Document(name, name, "")) for name in ("a", "b")]
    orders = [last_passages(_with_hits(episode, some)) for some in ([], hits, hits[::-1])]
    assert orders[1] == orders[2] == ("", "found:\na\nb", "found:\na\nb"), "a claim changes nothing"
    assert orders[0] == ("", "found:", "found:")
