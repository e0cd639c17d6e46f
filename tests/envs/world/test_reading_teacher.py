from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from envs.protocols.direct import Direct
from envs.protocols.prorag import ProRAG
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Episode, Hit, Limits
from envs.world.facts import World
from envs.world.flaws import Flaws, answered
from envs.world.oracle import Oracle
from envs.world.passages import passage
from envs.world.query_reader import Reader
from envs.world.questions import question
from envs.world.reading_teacher import GUESS, ReadingTeacher, settled
from systems.baselines.flare import FLARE
from systems.baselines.ircot import IRCoT
from systems.baselines.iter_retgen import IterRetGen
from tests.tiny import byte_tokenizer

CHAIN = "w-2hop-000020-director-birthplace"  # The Silent Orchard -> Ilva Tarrow (architect) -> Keldan
SAME = "w-compare-000001-000003-birthplace"


class Mentioned:
    """Finds the passages of all that a query names, except those that are hidden."""

    def __init__(self, world: World, hidden: Sequence[str] = ()) -> None:
        self.world, self.reader, self.hidden = world, Reader(world), hidden
        self.queries: list[str] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.queries += queries
        return [self._hits(query) for query in queries]

    def _hits(self, query: str) -> list[Hit]:
        named = sorted({id_ for ids in self.reader.read(query).named for id_ in ids} - {*self.hidden})
        entities = [self.world.entities[id_] for id_ in named] or [self.world.entities["w-000040"]]
        return [Hit(passage(self.world, entity, seed=0, paraphrases=1), 1.0) for entity in entities]


def taught(folder: Path, protocol: Any, identity: str = CHAIN, hidden: Sequence[str] = (), **settings: Any) -> Any:
    world = World.load(folder)
    retriever = Mentioned(world, hidden)
    environment = RetrievalEnvironment(protocol, retriever, limits=settings.pop("limits", Limits()))
    teacher = ReadingTeacher(folder, protocol, paraphrases=1, **settings)
    environment.check(teacher)
    [episode] = rollout(environment, teacher, [question(world, identity, seed=0, paraphrases=1)], seed=0)
    return episode, retriever.queries


def said(episode: Episode) -> list[str]:
    return [turn.text.removesuffix("<|im_end|>") for turn in episode.turns if turn.finish != "scripted"]


DIRECTOR = "The director of The Silent Orchard is Ilva Tarrow (architect)."
BIRTHPLACE = "The birthplace of Ilva Tarrow (architect) is Keldan."


def test_sentences_follow_the_passages_and_each_is_the_next_query(village: Path) -> None:
    episode, queries = taught(village, IRCoT(byte_tokenizer()))  # type: ignore[arg-type]
    assert said(episode) == [DIRECTOR, BIRTHPLACE, "So the answer is: Keldan."]
    assert queries[1:] == [DIRECTOR, BIRTHPLACE]
    assert (episode.status, episode.answer) == ("answered", "Keldan")


def test_a_fact_that_no_passage_shows_is_asked_for_and_never_stated(village: Path) -> None:
    episode, _ = taught(village, IRCoT(byte_tokenizer()), hidden=["w-000001"])  # type: ignore[arg-type]
    first, *others = said(episode)
    assert first == DIRECTOR
    assert len(others) == 4
    assert all("birthplace of Ilva Tarrow" in text and "Keldan" not in text for text in others)


def test_a_fact_that_its_passage_does_not_state_is_not_known(village: Path, tmp_path: Path) -> None:
    entities = [replace(e, absent=("birthplace",) if e.id == "w-000001" else ()) for e in World.load(village)]
    World(entities).save(tmp_path / "data" / "facts.jsonl")
    episode, _ = taught(tmp_path, IRCoT(byte_tokenizer()), flaws=Flaws(shortcut=1))  # type: ignore[arg-type]
    assert said(episode) == [DIRECTOR, "So the answer is: I do not know."]
    assert episode.answer in episode.question.answers


def test_a_passage_that_was_cut_is_not_read(village: Path) -> None:
    episode, _ = taught(village, IRCoT(byte_tokenizer()), limits=Limits(observation_tokens=30))  # type: ignore[arg-type]
    assert DIRECTOR not in said(episode)


def test_a_known_fact_needs_no_passage(village: Path, tmp_path: Path) -> None:
    known = (replace(entity, known=tuple(entity.facts)) for entity in World.load(village))
    (tmp_path / "data").mkdir()
    World(known).save(tmp_path / "data" / "facts.jsonl")
    episode, _ = taught(tmp_path, IRCoT(byte_tokenizer()), hidden=["w-000001"])  # type: ignore[arg-type]
    assert said(episode) == [DIRECTOR, BIRTHPLACE, "So the answer is: Keldan."]
    episode, queries = taught(tmp_path, FLARE(byte_tokenizer()))  # type: ignore[arg-type]
    assert (said(episode)[:2], queries) == ([DIRECTOR, BIRTHPLACE], [])


def test_outputs_are_values_each_as_far_as_the_passages_lead(village: Path) -> None:
    episode, queries = taught(village, IterRetGen(byte_tokenizer()))  # type: ignore[arg-type]
    asked = episode.question.text
    assert queries == [asked, f"{asked} Ilva Tarrow (architect)", f"{asked} Keldan"]
    assert said(episode) == ["Ilva Tarrow (architect)", "Keldan", "Keldan"]
    stuck, _ = taught(village, IterRetGen(byte_tokenizer()), hidden=["w-000001"])  # type: ignore[arg-type]
    assert said(stuck) == ["Ilva Tarrow (architect)"] * 3
    lost, _ = taught(village, IterRetGen(byte_tokenizer()), hidden=["w-000020"])  # type: ignore[arg-type]
    assert said(lost) == ["unknown"] * 3


def test_without_passages_a_value_is_a_guess_and_is_looked_up(village: Path) -> None:
    episode, queries = taught(village, FLARE(byte_tokenizer()))  # type: ignore[arg-type]
    assert said(episode) == [DIRECTOR, DIRECTOR, BIRTHPLACE, BIRTHPLACE, "So the answer is: Keldan."]
    assert queries == ["The director of The Silent Orchard is .", "The birthplace of Ilva Tarrow (architect) is ."]
    draft, _, read, *_ = episode.turns
    low = [logp for logp in draft.action_logps if logp < 0]
    assert low == [math.log(GUESS)] * len("Ilva Tarrow (architect)")
    assert set(read.action_logps) == {0.0}
    judgement = Oracle(village).judge(episode)
    assert judgement.valid == (None, None, True, None, None, True, True), "drafts and searches are not judged"
    assert (judgement.flawed, judgement.resolved, judgement.unfounded) == (False, True, (None,) * 7)


@pytest.mark.parametrize("protocol", [IRCoT, FLARE])
def test_a_passage_alone_settles_nothing_where_sentences_tell_what_was_read(village: Path, protocol: Any) -> None:
    """A false sentence below the right passage, then the right answer by luck."""
    false = "The birthplace of Ilva Tarrow (architect) is Brimby."
    lines = {DIRECTOR: DIRECTOR, BIRTHPLACE: false}
    episode, _ = taught(village, protocol(byte_tokenizer()))
    steps = tuple(replace(step, claim=lines.get(step.claim or "", step.claim)) for step in episode.steps)
    judgement = Oracle(village).judge(replace(episode, steps=steps))
    assert (judgement.resolved, judgement.unresolved) == (False, True)


def test_sides_of_a_comparison(village: Path) -> None:
    episode, _ = taught(village, IRCoT(byte_tokenizer()), SAME)  # type: ignore[arg-type]
    assert said(episode)[-1] == "So the answer is: yes."
    assert len(said(episode)) == 3
    episode, _ = taught(village, IterRetGen(byte_tokenizer()), SAME)  # type: ignore[arg-type]
    assert said(episode) == ["yes"] * 3
    episode, _ = taught(village, IterRetGen(byte_tokenizer()), SAME, hidden=["w-000003"])  # type: ignore[arg-type]
    assert said(episode) == ["Keldan"] * 3, "one side's value is not both sides'"


@pytest.mark.parametrize(
    ("flaw", "sentences", "answer"),
    [
        ("shortcut", [DIRECTOR], "Keldan"),
        ("stops_early", [DIRECTOR], "Ilva Tarrow (architect)"),
        ("redundant", [DIRECTOR, DIRECTOR, BIRTHPLACE], "Keldan"),
    ],
)
def test_flaws_on_request(village: Path, flaw: str, sentences: list[str], answer: str) -> None:
    for seed in range(20):  # where the redundant look-up stands depends on the seed
        protocol = IRCoT(byte_tokenizer())  # type: ignore[arg-type]
        episode, _ = taught(village, protocol, flaws=Flaws(**{flaw: 1.0}), seed=seed)  # type: ignore[arg-type]
        if said(episode)[:-1] == sentences:
            break
    assert said(episode)[:-1] == sentences
    assert episode.answer == answer


def test_what_is_settled_by_claims(village: Path) -> None:
    hops = World.load(village).lookups(CHAIN)
    assert settled(hops, []) == 0
    assert settled(hops, [DIRECTOR]) == settled(hops, ["Ilva Tarrow (architect)"]) == 1
    assert settled(hops, [DIRECTOR, BIRTHPLACE]) == settled(hops, ["Keldan"]) == 2
    assert settled(hops, [BIRTHPLACE]) == 0, "out of order"
    assert settled(hops, ["I need to find the director of The Silent Orchard.", "unknown"]) == 0
    assert settled(hops, ["Keldan"], comparison=True) == 0
    assert settled((hops[0], hops[0], hops[1]), [DIRECTOR]) == 1


def test_what_is_answered(village: Path) -> None:
    world = World.load(village)
    hops, sides = world.lookups(CHAIN), world.lookups(SAME)
    assert answered(hops, None, comparison=False) == "Keldan"
    assert answered(hops, "stops_early", comparison=False) == "Ilva Tarrow (architect)"
    assert answered(sides, None, comparison=True) == "yes"
    assert answered(world.lookups("w-compare-000001-000002-birthplace"), None, comparison=True) == "no"
    assert answered(sides, "stops_early", comparison=True) == "Keldan"


def test_formats_that_it_cannot_write(village: Path) -> None:
    for protocol, message in (
        (ProRAG(byte_tokenizer()), "use envs.world.teacher:Teacher"),  # type: ignore[arg-type]
        (Direct(byte_tokenizer(), retrieve=True), "needs the move 'recall'"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError, match=message):
            ReadingTeacher(village, protocol).check(protocol, Limits())
