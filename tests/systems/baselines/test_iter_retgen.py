from __future__ import annotations

import pytest

from common.errors import ConfigError
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Document, Episode, Limits
from systems.baselines.iter_retgen import IterRetGen
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer, question


def played(*outputs: str, turns: int = 11, **settings: int) -> tuple[Episode, FixedRetriever]:
    protocol = IterRetGen(byte_tokenizer(), **settings)  # type: ignore[arg-type] (a loaded one will do)
    retriever = FixedRetriever([Document("d", "T", "Ada wrote it.")])
    environment = RetrievalEnvironment(protocol, retriever, limits=Limits(turns=turns))
    sampler = Scripted(protocol.codec.control, lambda episode: outputs[len(episode.turns) // 2])
    return rollout(environment, sampler, [question()], seed=0)[0], retriever


def test_each_output_goes_into_the_next_query_and_the_last_one_is_the_answer() -> None:
    episode, retriever = played("Bob", "Cyd", "Ada")
    assert retriever.queries == ["Who wrote it?", "Who wrote it? Bob", "Who wrote it? Cyd"]
    assert (episode.status, episode.answer) == ("answered", "Ada")
    assert [step.kind for step in episode.steps] == ["query", "output"] * 2 + ["query", "answer"]
    assert [step.claim for step in episode.steps if step.spans] == ["Bob", "Cyd", "Ada"]


def test_passages_are_replaced_and_earlier_outputs_are_not_shown() -> None:
    episode, _ = played("Bob", "Cyd", "Ada")
    contexts = [turn.context_ids for turn in episode.turns if turn.finish != "scripted"]
    assert contexts[0] == contexts[1] == contexts[2]
    text = IterRetGen(byte_tokenizer()).codec.decode(contexts[0] or ())  # type: ignore[arg-type]
    assert text.count("Ada wrote it.") == 1
    assert "Bob" not in text


def test_one_iteration_is_standard_rag_and_none_is_refused() -> None:
    episode, retriever = played("Ada", iterations=1)
    assert (retriever.queries, episode.answer) == (["Who wrote it?"], "Ada")
    with pytest.raises(ConfigError, match="iterations is 0"):
        IterRetGen(byte_tokenizer(), iterations=0)  # type: ignore[arg-type]


def test_an_empty_output_is_neither_valid_nor_an_answer() -> None:
    episode, retriever = played("", "Cyd", "")
    assert retriever.queries[1] == "Who wrote it? "
    assert not IterRetGen(byte_tokenizer()).valid(episode)  # type: ignore[arg-type]
    assert episode.answer == ""


def test_without_its_last_iteration_there_is_no_answer() -> None:
    episode, _ = played("Ada", "Ada", "Ada", turns=2)
    assert (episode.status, episode.answer) == ("step_budget", "")
    assert all(step.valid for step in episode.steps)
    assert not IterRetGen(byte_tokenizer()).valid(episode)  # type: ignore[arg-type]
