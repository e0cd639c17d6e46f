"""Which steps begin in the same state."""

from __future__ import annotations

from dataclasses import replace

from envs.protocols.prorag import ProRAG
from envs.search_steps import step_states
from envs.types import Document, Episode, Hit
from tests.steps import final, played, query, subanswer
from tests.tiny import byte_tokenizer

PROTOCOL = ProRAG(byte_tokenizer(), instruction="")  # pyright: ignore[reportArgumentType]


def states(*says: str) -> tuple[str, ...]:
    return step_states(played(PROTOCOL, says))


def test_other_words_for_the_same_search_and_claim_lead_to_the_same_state() -> None:
    one = states(query("Who wrote it?"), subanswer("Ada"), final("Ada"))
    other = states(query("By whom was it written?"), subanswer("the Ada."), query("Who read it?"), final("Bob"))
    assert len(set(one)) == 3
    assert one == other[:3], "both have found the same passages and claimed the same"
    assert other[3] not in one


def test_another_claim_is_another_state() -> None:
    one = states(query("Who wrote it?"), subanswer("Ada"), final("Ada"))
    other = states(query("Who wrote it?"), subanswer("Bob"), final("Bob"))
    assert one[:2] == other[:2]
    assert one[2] != other[2]


def test_other_passages_are_another_state_and_so_is_their_order() -> None:
    episode = played(PROTOCOL, [query("Who wrote it?"), subanswer("Ada"), final("Ada")])
    hits = [Hit(Document(name, name, "")) for name in ("a", "b")]
    found = [step_states(_with_hits(episode, some))[1] for some in ([], hits[:1], hits, hits[::-1])]
    assert len(set(found)) == 4


def test_a_step_of_another_kind_leads_elsewhere() -> None:
    assert states(subanswer("Ada"), final("x"))[1] != states(final("Ada"), final("x"))[-1]


def _with_hits(episode: Episode, hits: list[Hit]) -> Episode:
    first, *rest = episode.steps
    return replace(episode, steps=(replace(first, hits=tuple(hits)), *rest))
