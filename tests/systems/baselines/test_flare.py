from __future__ import annotations

import math
from typing import Any

import pytest

from common.errors import ConfigError
from envs.interfaces import Sampler
from envs.requests import Request
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Document, Episode, Limits, Turn
from modules.samplers.in_process import InProcessSampler
from systems.baselines.flare import FLARE
from tests.envs.protocols.conformance import HOSTILE
from tests.tiny import FixedRetriever, byte_tokenizer, question, tiny_policy

Sentence = tuple[str, str]  # what is written, and the part of it that the policy is unsure of


class Unsure(Sampler):
    """Writes these sentences, turn by turn, with probability 0.1 for what it is unsure of."""

    def __init__(self, protocol: FLARE, sentences: list[Sentence], probability: float = 0.1) -> None:
        super().__init__()
        self.protocol, self.sentences, self.probability = protocol, sentences, probability
        self.limits: list[int | None] = []

    def take(self, request: Request) -> Turn:
        self.limits.append(request.max_tokens)
        text, unsure = self.sentences[sum(turn.finish != "scripted" for turn in request.episode.turns)]
        ids, start = self.protocol.codec.control(text), text.find(unsure) if unsure else -1
        low = math.log(self.probability)
        logps = [low if start <= i < start + len(unsure) else -0.1 for i in range(len(ids))]
        return request.turn(ids, logps, "stop", text)


def played(sentences: list[Sentence], probability: float = 0.1, turns: int = 30, **settings: Any) -> Any:
    protocol = FLARE(byte_tokenizer(), **settings)  # type: ignore[arg-type] (a loaded one will do)
    retriever = FixedRetriever([Document("d", HOSTILE[1], " ".join(HOSTILE)), Document("e", "T", "Ada wrote it.")])
    environment = RetrievalEnvironment(protocol, retriever, limits=Limits(turns=turns))
    [episode] = rollout(environment, Unsure(protocol, sentences, probability), [question()], seed=0)
    return episode, retriever, protocol


def contexts(protocol: FLARE, episode: Episode) -> list[str]:
    return [protocol.codec.decode(turn.context_ids or ()) for turn in episode.turns if turn.finish != "scripted"]


SURE: list[Sentence] = [("Ada wrote it. S", ""), (" So the answer is: Ada.", "")]


def test_a_sure_policy_never_retrieves() -> None:
    episode, retriever, protocol = played(SURE)
    assert retriever.queries == []
    assert (episode.status, episode.answer) == ("answered", "Ada")
    assert protocol.valid(episode)
    assert contexts(protocol, episode)[1].endswith("assistant\nAda wrote it."), "the text goes on after the sentence"


def test_an_unsure_sentence_is_searched_for_without_its_unsure_tokens_and_drafted_again() -> None:
    episode, retriever, protocol = played([("Bob wrote it. S", "Bob"), ("Ada wrote it. S", "Ada"), SURE[1]])
    assert retriever.queries == ["wrote it."], "the second draft is kept, however unsure"
    assert [step.kind for step in episode.steps] == ["draft", "query", "sentence", "answer"]
    assert [step.claim for step in episode.steps] == [None, "", "Ada wrote it.", "Ada"]
    first, second, last = contexts(protocol, episode)
    assert ["Passages:" in text for text in (first, second, last)] == [False, True, False]
    assert second.endswith("assistant\n"), "without the first draft"
    assert last.endswith("assistant\nAda wrote it.")


def test_what_is_past_the_first_sentence_counts_for_nothing() -> None:
    _, retriever, _ = played([("Ada wrote it. Then Bob", "Bob"), SURE[1]])
    assert retriever.queries == []


def test_a_token_at_the_threshold_is_uncertain() -> None:
    draft: list[Sentence] = [("Bob wrote it.", "Bob"), ("Ada wrote it.", ""), SURE[1]]
    for probability, queries in ((0.2, ["wrote it."]), (0.201, [])):
        _, retriever, _ = played(draft, probability=probability)
        assert retriever.queries == queries
    _, retriever, _ = played(draft, probability=0.201, threshold=0.3)
    assert retriever.queries == ["wrote it."]


def test_a_sentence_of_uncertain_words_alone_is_kept_without_a_search() -> None:
    episode, retriever, _ = played([("Bob.", "Bob"), SURE[1]])
    assert retriever.queries == []
    assert [step.claim for step in episode.steps] == ["Bob.", "Ada"]


def test_the_text_ends_after_its_rounds_or_its_tokens_and_is_the_answer() -> None:
    sentences = [(f"Sentence {i}.", "") for i in range(9)]
    episode, _, protocol = played(sentences)
    assert (episode.status, len(episode.turns)) == ("answered", 5)
    assert episode.answer == " ".join(text for text, _ in sentences[:5])
    assert not protocol.valid(episode)
    assert len(played(sentences, tokens=13)[0].turns) == 2
    assert len(played(sentences, tokens=11)[0].turns) == 1


def test_rounds_count_sentences_not_drafts() -> None:
    episode, retriever, _ = played([("Bob wrote it.", "Bob")] * 12)
    assert len(retriever.queries) == 5
    assert sum(turn.action.kind == "sentence" for turn in episode.turns) == 5


def test_a_policy_that_writes_nothing_ends_the_text() -> None:
    episode, _, _ = played([("Ada wrote it.", ""), ("<|im_end|>", "")])
    assert (episode.status, episode.answer) == ("answered", "Ada wrote it.")
    episode, _, _ = played([("\n", "")])
    assert (episode.status, episode.answer) == ("malformed", "")


def test_every_sampled_token_is_trained_in_one_step_the_dropped_drafts_too() -> None:
    texts: list[Sentence] = [("Bob wrote it. S", "Bob"), ("Ada wrote it. S", ""), SURE[1]]
    episode, _, _ = played(texts)
    assert [sum(sequence.loss_mask) for sequence in episode.sequences()] == [len(text) for text, _ in texts]


def test_a_draft_has_at_most_its_tokens() -> None:
    protocol = FLARE(byte_tokenizer(), draft_tokens=7)  # type: ignore[arg-type]
    sampler = Unsure(protocol, SURE)
    rollout(RetrievalEnvironment(protocol, FixedRetriever([])), sampler, [question()], seed=0)
    assert sampler.limits == [7, 7]


def test_a_draft_has_no_more_than_what_is_left_of_the_text() -> None:
    """A sentence of 61 tokens, which leaves 39 of 100: for the next draft, and for that below the passages."""
    protocol = FLARE(byte_tokenizer(), tokens=100)  # type: ignore[arg-type]
    sampler = Unsure(protocol, [("A" * 59 + "b.", ""), ("Bob wrote it.", "Bob"), SURE[1]])
    rollout(RetrievalEnvironment(protocol, FixedRetriever([])), sampler, [question()], seed=0)
    assert sampler.limits == [64, 39, 39]


def test_a_real_policy_is_unsure_by_the_log_probs_that_its_sampler_stores() -> None:
    protocol = FLARE(byte_tokenizer(), draft_tokens=8)  # type: ignore[arg-type]
    environment = RetrievalEnvironment(protocol, FixedRetriever([]))
    spread, sharp = (InProcessSampler(tiny_policy(byte_tokenizer(), seed=4, scale=scale)) for scale in (1.0, 20.0))
    [unsure] = rollout(environment, spread, [question()], seed=0)
    assert all(math.exp(logp) < 0.2 for turn in unsure.turns for logp in turn.action_logps)
    assert "query" not in [turn.action.kind for turn in unsure.turns], "no token is left to search for"
    [mixed] = rollout(environment, sharp, [question()], seed=0)
    for draft in (turn for turn in mixed.turns if turn.action.kind == "draft"):
        sure = [t for t, logp in zip(draft.action_ids, draft.action_logps, strict=True) if math.exp(logp) > 0.2]
        assert draft.action.text.split() == protocol.codec.decode(sure).replace("\ufffd", "").split()
    assert "draft" in [turn.action.kind for turn in mixed.turns]


@pytest.mark.parametrize(("setting", "value"), [("threshold", 1.5), ("rounds", 0), ("tokens", 0), ("draft_tokens", 0)])
def test_settings_out_of_range(setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{setting} {value}"):
        FLARE(byte_tokenizer(), **{setting: value})  # type: ignore[arg-type]
