from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datamodules.sources.world import WorldQuestions
from envs.protocols.prorag import ProRAG
from envs.retrieval import RetrievalEnvironment
from envs.retrievers.bm25 import BM25
from envs.rollout import rollout
from envs.types import Document, Episode, Hit
from envs.world.facts import World
from envs.world.oracle import Oracle
from envs.world.questions import question
from envs.world.reading import Reader
from envs.world.teacher import Teacher
from tests.tiny import byte_tokenizer

BORN = "w-2hop-000020-director-birthplace"


class Perfect:
    """Finds the passage that a query asks for; fails on the searches whose numbers are in `misses`."""

    def __init__(self, world: World, misses: Sequence[int] = ()) -> None:
        self.reader, self.misses, self.count = Reader(world), misses, 0

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [self._hits(query) for query in queries]

    def _hits(self, query: str) -> list[Hit]:
        self.count += 1
        found = sorted(subject for subject, _ in self.reader.read(query).asked)
        return [] if self.count - 1 in self.misses else [Hit(Document(subject, "", "")) for subject in found]


def taught(folder: Path, identity: str, misses: Sequence[int] = (), seed: int = 0, paraphrases: int = 3) -> Episode:
    world = World.load(folder)
    protocol = ProRAG(byte_tokenizer(), instruction="")  # type: ignore[arg-type] (a loaded one will do)
    asked = question(world, identity, seed=0, paraphrases=3)
    environment = RetrievalEnvironment(protocol, Perfect(world, misses))
    return rollout(environment, Teacher(folder, protocol, paraphrases=paraphrases), [asked], seed=seed)[0]


def written(episode: Episode) -> list[tuple[str, str]]:
    return [(step.kind, step.text) for step in episode.steps]


def test_the_teacher_looks_up_hop_after_hop(village: Path) -> None:
    episode = taught(village, BORN, paraphrases=1)
    assert written(episode) == [
        ("query", "Who is the director of The Silent Orchard?"),
        ("subanswer", "Ilva Tarrow (architect)"),
        ("query", "What is the birthplace of Ilva Tarrow (architect)?"),
        ("subanswer", "Keldan"),
        ("answer", "Keldan"),
    ]
    assert (episode.status, episode.answer) == ("answered", "Keldan")


def test_turns_are_what_a_policy_could_have_sampled(village: Path) -> None:
    episode = taught(village, BORN)
    for number, turn in enumerate(episode.turns):
        assert turn.uid == f"{BORN}/0/0/{number}"
        assert (turn.agent, turn.finish) == ("policy", "stop")
        assert turn.action_logps == (0.0,) * len(turn.action_ids)
    text = taught(village, BORN, paraphrases=1).turns[0].text
    assert text.endswith(" </step>\n<subquery>\nWho is the director of The Silent Orchard? </subquery>")
    assert "the director of The Silent Orchard" in text.split("</step>")[0]
    [sequence] = episode.sequences()
    assert sum(sequence.loss_mask) == sum(len(turn.action_ids) for turn in episode.turns)


def test_no_thought_speaks_of_what_is_still_to_come(village: Path) -> None:
    for seed in range(20):
        episode = taught(village, BORN, seed=seed)
        assert "Ilva" not in episode.turns[0].text
        assert not any("Keldan" in turn.text for turn in episode.turns[:3])


def test_the_seed_of_a_request_chooses_the_wording(village: Path) -> None:
    texts = {tuple(turn.text for turn in taught(village, BORN, seed=seed).turns) for seed in range(8)}
    assert len(texts) == 8
    assert taught(village, BORN, seed=5).turns == taught(village, BORN, seed=5).turns


def test_a_passage_that_does_not_come_is_asked_for_once_more_in_other_words(village: Path) -> None:
    steps = written(taught(village, BORN, misses=[0]))
    assert [kind for kind, _ in steps] == ["query", "subanswer"] * 3 + ["answer"]
    assert steps[1] == ("subanswer", "unknown")
    assert steps[0][1] != steps[2][1]
    assert steps[-1] == ("answer", "Keldan")


def test_the_teacher_does_not_know_what_it_could_not_read(village: Path) -> None:
    episode = taught(village, BORN, misses=[1, 2])
    assert written(episode)[-2:] == [("subanswer", "unknown"), ("answer", "unknown")]
    assert [step.valid for step in episode.steps] == [True] * 7  # in format
    judgement = Oracle(village).judge(episode)
    assert judgement.valid == (True, True, False, False, False, False, False)
    assert not judgement.resolved
    compared = taught(village, "w-compare-000010-000011-country", misses=[0, 1])
    assert compared.answer == "no"


def test_comparisons_look_up_both_sides(village: Path) -> None:
    episode = taught(village, "w-compare-000010-000011-country", paraphrases=1)
    assert [text for _, text in written(episode)] == [
        "What is the country of Keldan?",
        "Veldia",
        "What is the country of Brimby?",
        "Veldia",
        "yes",
    ]


def test_the_teacher_solves_the_world_with_bm25_and_the_oracle_agrees(made: Path) -> None:
    protocol = ProRAG(made / "tokenizer", instruction="")
    environment = RetrievalEnvironment(protocol, BM25(made / "data" / "corpus.jsonl"))
    questions = list(WorldQuestions(made, "test"))
    episodes = rollout(environment, Teacher(made, protocol), questions, seed=0)
    oracle = Oracle(made)
    judgements: list[Any] = [oracle.judge(episode) for episode in episodes]
    right = [episode.answer in episode.question.answers for episode in episodes]
    assert sum(right) / len(right) >= 0.95
    assert all(protocol.valid(episode) for episode in episodes)
    for judgement, is_right in zip(judgements, right, strict=True):
        assert (judgement.resolved, all(judgement.valid)) == (is_right, is_right)
