"""What a compressor of the environment changes: the prompt, its length and the costs; not what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from common.costs import counted, read_by
from common.errors import ConfigError
from envs.protocols.direct import Direct
from envs.protocols.rendering import render_hits
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Document, Episode, Hit, Limits
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer, question

PROTOCOL = Direct(byte_tokenizer(()), retrieve=True)  # type: ignore[arg-type] (a loaded one will do)
PAGES = [Document("a", "Ada", "Born in London."), Document("b", "Bab", "A machine."), Document("c", "Cat", "Purrs.")]


LEFT = {"compression/given_tokens": 88, "compression/kept_tokens": 28}


class LastWord:
    """Shows the last word of every passage but the first, and reads one token a passage."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def compress(self, question: str, hits: Sequence[Hit]) -> list[Hit]:
        self.counts[read_by("last_word")] += len(hits)
        self.asked = question
        return [replace(hit, shown=hit.document.text.split()[-1] if at else "") for at, hit in enumerate(hits)]


class Loses(LastWord):
    def compress(self, question: str, hits: Sequence[Hit]) -> list[Hit]:
        return list(hits[1:])


def played(compressor: LastWord, limits: Limits | None = None) -> Episode:
    environment = RetrievalEnvironment(PROTOCOL, FixedRetriever(PAGES), compressor=compressor, top_k=3, limits=limits)
    [episode] = rollout(environment, Scripted(PROTOCOL.codec.control, lambda _: "Ada"), [question()], seed=0)
    assert counted(environment) == counted(environment.variant(limits=Limits()))
    assert counted(environment) == compressor.counts + Counter(LEFT)
    return episode


def test_the_prompt_shows_what_is_left_and_the_hits_what_was_found() -> None:
    compressor = LastWord()
    episode = played(compressor)
    assert PROTOCOL.codec.decode(episode.turns[0].observation_ids) == "Doc 2 machine.\nDoc 3 Purrs.\n"
    assert [hit.document for hit in episode.turns[0].hits] == PAGES
    assert (compressor.asked, compressor.counts) == ("Who wrote it?", {"cost/read_tokens/last_word": 3})


def test_what_is_left_is_cut_to_the_limit_as_any_passage_is() -> None:
    episode = played(LastWord(), Limits(observation_tokens=9))
    assert PROTOCOL.codec.decode(episode.turns[0].observation_ids) == "Doc 2 mac"
    assert episode.truncations == {"observation": 1}


def test_a_passage_that_is_not_shown_keeps_its_number() -> None:
    hits = [Hit(PAGES[0], 1.0, ""), Hit(PAGES[1]), Hit(PAGES[2], shown="s")]
    assert render_hits(hits, first=4) == "Doc 5(Title: Bab) A machine.\nDoc 6 s\n"
    assert [render_hits([hit]) for hit in hits] == ["", "Doc 1(Title: Bab) A machine.\n", "Doc 1 s\n"]


def test_a_compressor_that_loses_a_hit_is_named() -> None:
    with pytest.raises(ConfigError, match=r"Loses\.compress must return every hit once: set `shown` to ''"):
        played(Loses())


def test_nothing_found_is_nothing_to_compress() -> None:
    environment = RetrievalEnvironment(PROTOCOL, FixedRetriever([]), compressor=Loses())
    [episode] = rollout(environment, Scripted(PROTOCOL.codec.control, lambda _: "Ada"), [question()], seed=0)
    assert (episode.status, episode.turns[0].hits) == ("answered", ())
