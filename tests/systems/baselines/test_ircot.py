from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from common.errors import ConfigError
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Document, Episode, Hit, Limits
from systems.baselines.ircot import IRCoT, merged
from tests.tiny import Scripted, byte_tokenizer, question


def hit(name: str, score: float | None) -> Hit:
    return Hit(Document(name, name, f"text of {name}"), score)


class ByQuery:
    """Each query has its hits; remembers the queries."""

    def __init__(self, hits: dict[str, list[Hit]] | None = None) -> None:
        self.hits, self.queries = hits or {}, list[str]()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.queries += queries
        return [self.hits.get(query, [])[:k] for query in queries]


def played(*sentences: str, hits: dict[str, list[Hit]] | None = None, turns: int = 11, **settings: Any) -> Any:
    protocol = IRCoT(byte_tokenizer(), **settings)  # type: ignore[arg-type] (a loaded one will do)
    retriever = ByQuery(hits)
    environment = RetrievalEnvironment(protocol, retriever, limits=Limits(turns=turns))
    sampler = Scripted(protocol.codec.control, lambda episode: sentences[len(episode.turns) // 2])
    return rollout(environment, sampler, [question()], seed=0)[0], retriever, protocol


def contexts(protocol: IRCoT, episode: Episode) -> list[str]:
    return [protocol.codec.decode(turn.context_ids or ()) for turn in episode.turns if turn.finish != "scripted"]


def test_the_question_and_every_sentence_are_searched_for_until_the_answer() -> None:
    episode, retriever, protocol = played("It has an author. I", " She is Ada. A", " So the answer is: Ada.")
    assert retriever.queries == ["Who wrote it?", "It has an author.", "She is Ada."]
    assert (episode.status, episode.answer) == ("answered", "Ada")
    assert protocol.valid(episode)
    assert contexts(protocol, episode)[-1].endswith("assistant\nIt has an author. She is Ada.")


def test_the_chain_ends_after_its_iterations_and_is_the_answer_where_none_is_announced() -> None:
    episode, retriever, protocol = played(*(f"Sentence {i}." for i in range(9)))
    assert len(retriever.queries) == 5, "what the last sentence would find is never shown"
    assert (episode.status, episode.answer) == ("answered", " ".join(f"Sentence {i}." for i in range(5)))
    assert not protocol.valid(episode)


def test_a_policy_that_writes_nothing_ends_its_chain() -> None:
    episode, _, _ = played("It has an author.", "\n")
    assert (episode.status, episode.answer) == ("answered", "It has an author.")
    episode, retriever, _ = played("<|im_end|>")
    assert (episode.status, episode.answer, retriever.queries) == ("malformed", "", ["Who wrote it?"])


def test_the_pool_keeps_each_document_once_with_its_highest_score() -> None:
    hits = [hit("a", 1.0), hit("b", 3.0), hit("a", 4.0), hit("b", 2.0), hit("c", 3.0)]
    assert [(h.document.id, h.score) for h in merged(hits, 15)] == [("a", 4.0), ("b", 3.0), ("c", 3.0)]
    assert [h.document.id for h in merged(hits, 2)] == ["a", "b"]
    assert [h.document.id for h in merged([hit("x", None), hit("y", 0.0), hit("z", None)], 15)] == ["y", "x", "z"]


def test_every_context_shows_the_pool_so_far_best_first_or_last() -> None:
    hits = {"Who wrote it?": [hit("a", 1.0), hit("b", 0.5)], "One.": [hit("c", 2.0), hit("a", 0.1)]}
    for settings, order in (({}, "cab"), ({"worst_first": True}, "bac"), ({"pool": 2}, "ca")):
        episode, _, protocol = played("One.", "So the answer is: Ada.", hits=hits, **settings)
        first, second = contexts(protocol, episode)
        assert "text of c" not in first
        shown = sorted((second.index(f"text of {name}"), name) for name in "abc" if f"text of {name}" in second)
        assert "".join(name for _, name in shown) == order


def test_an_announcement_without_an_answer_is_a_sentence() -> None:
    episode, retriever, _ = played("So the answer is:\n", "So the answer is: Ada.")
    assert retriever.queries[1:] == ["So the answer is:"]
    assert episode.answer == "Ada"


@pytest.mark.parametrize("setting", ["iterations", "pool", "sentence_tokens"])
def test_settings_out_of_range(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting} 0"):
        IRCoT(byte_tokenizer(), **{setting: 0})  # type: ignore[arg-type]
