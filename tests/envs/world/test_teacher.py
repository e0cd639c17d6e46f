from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from common.errors import ConfigError
from datamodules.sources.world_questions import WorldQuestions
from datamodules.tagged_tokenizer import TaggedTokenizer
from envs.interfaces import AgentFormat
from envs.protocols.direct import Direct
from envs.protocols.prorag import ProRAG
from envs.retrieval import RetrievalEnvironment
from envs.retrievers.bm25 import BM25
from envs.rollout import rollout
from envs.types import Document, Episode, Hit
from envs.world.facts import World
from envs.world.flaws import Flaws
from envs.world.oracle import Judgement, Oracle
from envs.world.query_reader import Reader
from envs.world.questions import question
from envs.world.teacher import Teacher
from systems.reasonrag.parse import TAGS as REASONRAG_TAGS
from systems.reasonrag.protocol import ReasonRAG
from tests.tiny import byte_tokenizer
from tests.toy_protocols import TAGS, Notebook, OneMove, SearchOnly, Spanning, TwoAgents

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


def taught(
    folder: Path,
    identity: str,
    misses: Sequence[int] = (),
    seed: int = 0,
    paraphrases: int = 3,
    flaws: Flaws | None = None,
    protocol: AgentFormat | None = None,
    **habits: float,
) -> Episode:
    world = World.load(folder)
    protocol = protocol or ProRAG(byte_tokenizer(), instruction="")  # type: ignore[arg-type] (a loaded one will do)
    asked = question(world, identity, seed=0, paraphrases=3)
    environment = RetrievalEnvironment(protocol, Perfect(world, misses))
    teacher = Teacher(folder, protocol, paraphrases=paraphrases, flaws=flaws, seed=seed, **habits)
    return rollout(environment, teacher, [asked], seed=seed)[0]


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


FORMATS: list[Any] = [
    ProRAG(byte_tokenizer(), instruction=""),  # pyright: ignore[reportArgumentType]
    ReasonRAG(byte_tokenizer(REASONRAG_TAGS)),  # pyright: ignore[reportArgumentType]
    *(OneMove(), SearchOnly(), TwoAgents(), Notebook(), Spanning()),
]
CHAINS = [BORN, "w-1hop-000020-director", "w-compare-000010-000011-country", "w-2hop-000020-studio-founder"]


@pytest.mark.parametrize("protocol", FORMATS, ids=lambda protocol: type(protocol).__name__)
def test_a_flawless_teacher_is_flawless_in_every_format(village: Path, protocol: AgentFormat) -> None:
    for identity in CHAINS:
        episode = taught(village, identity, protocol=protocol)
        judgement = Oracle(village).judge(episode)
        assert (episode.status, protocol.valid(episode)) == ("answered", True)
        assert episode.answer in episode.question.answers
        assert all(judgement.valid), (identity, episode.steps)
        assert (judgement.resolved, judgement.flawed, judgement.unresolved) == (True, False, False)
        missed = Oracle(village).judge(taught(village, identity, misses=[0], protocol=protocol))
        assert (missed.valid[0], missed.resolved, missed.flawed) == (False, True, True)


@pytest.mark.parametrize("protocol", FORMATS, ids=lambda protocol: type(protocol).__name__)
def test_flaws_are_flaws_in_every_format(village: Path, protocol: AgentFormat) -> None:
    def judged(flaws: Flaws) -> Judgement:
        return Oracle(village).judge(taught(village, BORN, flaws=flaws, protocol=protocol))

    assert all(judged(flaws).flawed for flaws in (Flaws(redundant=1), Flaws(wrong_relation=1)))
    recalls = "recall" in protocol.moves  # there a step from memory is a step like any other
    assert judged(Flaws(shortcut=1)).unresolved is not recalls
    assert judged(Flaws(shortcut=1)).flawed is not recalls
    assert taught(village, BORN, flaws=Flaws(stops_early=1), protocol=protocol).answer == "Ilva Tarrow (architect)"


def without(village: Path, folder: Path, **absent: str) -> Path:
    """The village, of which no passage states these relations, by entity."""
    entities = [replace(e, absent=(absent[e.id[-2:]],) if e.id[-2:] in absent else ()) for e in World.load(village)]
    World(entities).save(folder / "data" / "facts.jsonl")
    return folder


@pytest.mark.parametrize("flaws", [Flaws(), Flaws(shortcut=1), Flaws(wrong_relation=1)], ids=["none", "cut", "detour"])
@pytest.mark.parametrize("protocol", FORMATS, ids=lambda protocol: type(protocol).__name__)
def test_a_fact_of_no_passage_is_looked_up_once_and_is_not_known(
    village: Path, tmp_path: Path, protocol: AgentFormat, flaws: Flaws
) -> None:
    folder = without(village, tmp_path, **{"01": "birthplace", "11": "country"})
    for identity, searches in ((BORN, 2), ("w-compare-000010-000011-country", 2)):
        episode = taught(folder, identity, protocol=protocol, flaws=flaws)
        judgement = Oracle(folder).judge(episode)
        assert (episode.status, episode.answer, protocol.valid(episode)) == ("answered", "I do not know", True)
        assert sum(bool(step.query) for step in episode.steps) == searches
        assert all(judgement.valid), (identity, episode.steps)
        assert (judgement.resolved, judgement.flawed, judgement.unresolved) == (True, False, False)
    guessed = taught(village, BORN, protocol=protocol)
    guessed.question = question(World.load(folder), BORN, seed=0, paraphrases=3)
    assert Oracle(folder).judge(guessed).valid[-1] is False, "its value is right, and nothing says so"


def test_a_turn_may_hold_all_that_can_be_said_before_the_next_search(village: Path) -> None:
    episode = taught(village, BORN, paraphrases=1, protocol=Spanning())
    assert len(episode.turns) == 3
    assert episode.turns[1].text.startswith("Ilva Tarrow (architect)</note><step>")
    assert episode.turns[1].text.endswith("<find>What is the birthplace of Ilva Tarrow (architect)?</find>")
    recalled = taught(village, BORN, flaws=Flaws(shortcut=1), protocol=Spanning())
    assert [(step.kind, step.claim) for step in recalled.steps] == [
        ("search", "Ilva Tarrow (architect)"),
        ("memory", "Keldan"),
        ("answer", "Keldan"),
    ]


def test_where_nothing_can_be_claimed_the_next_thought_says_what_was_read(village: Path) -> None:
    for seed in range(8):
        texts = [turn.text for turn in taught(village, BORN, protocol=SearchOnly(), seed=seed).turns]
        assert "Ilva" not in texts[0]
        assert texts[1].partition("<find>")[0].count("Ilva Tarrow (architect)") == 2  # read, and looked up next
        assert "Keldan" not in texts[1]
        assert "Keldan" in texts[2].partition("<say>")[0]
    missed = taught(village, BORN, misses=[0], protocol=SearchOnly()).turns[1].text
    assert missed.startswith(("None of the passages is about The Silent Orchard.", "The passages do not tell"))


def test_a_format_that_cannot_search_is_refused_before_any_work(village: Path) -> None:
    protocol = Direct(byte_tokenizer(), retrieve=True)  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        ConfigError, match=r"Teacher needs the move 'search', which Direct cannot write \(it has conclude\)"
    ):
        RetrievalEnvironment(protocol).check(Teacher(village, protocol))


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


def test_the_world_s_own_tokenizer_with_other_tags_writes_another_format(made: Path, tmp_path: Path) -> None:
    TaggedTokenizer(str(made / "tokenizer"), TAGS).make(tmp_path, seed=0, rank=0, world_size=1)
    protocol = Spanning(AutoTokenizer.from_pretrained(str(tmp_path / "tokenizer")))
    environment = RetrievalEnvironment(protocol, BM25(made / "data" / "corpus.jsonl"))
    questions = list(WorldQuestions(made, "test"))[:20]
    for episode in rollout(environment, Teacher(made, protocol), questions, seed=0):
        assert protocol.valid(episode)
        assert all(Oracle(made).judge(episode).valid)
        said = ["".join(step.said.split()) for step in episode.steps]
        spelt = [protocol.codec.decode(episode.turns[t].action_ids[a:b]) for s in episode.steps for t, a, b in s.spans]
        assert "".join(said) == "".join("".join(spelt).split())
