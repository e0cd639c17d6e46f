"""The teacher's flaws: shortcuts, hops asked again, other relations, early stops, and their shares."""

from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from datamodules.sources.world_questions import WorldQuestions
from envs.protocols.prorag import ProRAG
from envs.retrieval import RetrievalEnvironment
from envs.retrievers.bm25 import BM25
from envs.rollout import rollout
from envs.world.flaws import Flaws
from envs.world.oracle import Oracle
from envs.world.teacher import Teacher
from tests.envs.world.test_teacher import BORN, taught, written


def test_a_shortcut_gives_the_right_answer_without_the_last_search(village: Path) -> None:
    episode = taught(village, BORN, paraphrases=1, flaws=Flaws(shortcut=1))
    assert written(episode) == [
        ("query", "Who is the director of The Silent Orchard?"),
        ("subanswer", "Ilva Tarrow (architect)"),
        ("answer", "Keldan"),
    ]
    assert "I know that" in episode.turns[-1].text or "I need not search" in episode.turns[-1].text
    judgement = Oracle(village).judge(episode)
    assert judgement.valid == (True, True, False)
    assert (judgement.flawed, judgement.unresolved) == (True, True)


def test_a_settled_hop_is_asked_again_in_other_words(village: Path) -> None:
    for seed in range(8):
        episode = taught(village, BORN, flaws=Flaws(redundant=1), seed=seed)
        queries = [text for kind, text in written(episode) if kind == "query"]
        judgement = Oracle(village).judge(episode)
        assert len(queries) == len(set(queries)) == 3
        assert episode.answer == "Keldan"
        assert (judgement.valid.count(False), judgement.resolved, judgement.flawed) == (1, True, True)


def test_another_relation_is_looked_up_before_the_right_one(village: Path) -> None:
    for seed in range(8):
        episode = taught(village, BORN, flaws=Flaws(wrong_relation=1), seed=seed)
        judgement = Oracle(village).judge(episode)
        wrong = judgement.valid.index(False)
        assert episode.steps[wrong].kind == "query"
        assert any(word in episode.steps[wrong].text for word in ("music", "compose", "studio", "employ", "work"))
        assert (judgement.valid.count(False), episode.answer, judgement.flawed) == (1, "Keldan", True)


def test_stopping_early_takes_the_value_before_the_last_for_the_answer(village: Path) -> None:
    episode = taught(village, BORN, flaws=Flaws(stops_early=1))
    assert (len(episode.turns), episode.answer) == (3, "Ilva Tarrow (architect)")
    assert Oracle(village).judge(episode).valid == (True, True, False)
    assert taught(village, "w-compare-000010-000011-country", flaws=Flaws(stops_early=1)).answer == "Veldia"


def test_one_hop_is_never_cut_short(village: Path) -> None:
    for flaws in (Flaws(shortcut=1), Flaws(stops_early=1)):
        assert Oracle(village).judge(taught(village, "w-1hop-000020-director", flaws=flaws)).valid == (True,) * 3


def test_flawed_shares_are_what_was_asked_for_and_the_oracle_knows_every_one(made: Path) -> None:
    protocol = ProRAG(made / "tokenizer", instruction="")
    environment = RetrievalEnvironment(protocol, BM25(made / "data" / "corpus.jsonl"))
    questions = [q for q in WorldQuestions(made, "test") if "1hop" not in q.id]
    clean = Oracle(made)

    def judged(flaws: Flaws) -> list[Any]:
        teacher = Teacher(made, protocol, flaws=flaws, seed=1)
        return [clean.judge(episode) for episode in rollout(environment, teacher, questions, seed=0)]

    share = [all(judgement.valid) for judgement in judged(Flaws(shortcut=0.2, redundant=0.1, wrong_relation=0.1))]
    assert 1 - sum(share) / len(share) == pytest.approx(0.4, abs=0.12)
    for flaws in (Flaws(shortcut=1), Flaws(redundant=1), Flaws(wrong_relation=1), Flaws(stops_early=1)):
        assert not any(all(judgement.valid) for judgement in judged(flaws)), flaws
    assert all(judgement.unresolved for judgement in judged(Flaws(shortcut=1)))
    assert not any(judgement.unresolved for judgement in judged(Flaws(redundant=1)))


def test_shares_that_are_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="not be negative, nor more than 1 together"):
        Flaws(shortcut=0.6, redundant=0.5)
    with pytest.raises(ConfigError, match="not be negative"):
        Flaws(stops_early=-0.1)
