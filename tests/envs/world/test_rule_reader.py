"""SIRAG in the world: a generator right just where the chain is shown, the teacher of both agents, the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError, DataError
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.sampling import ByAgent
from envs.types import Episode, Hit, Limits
from envs.world.facts import World
from envs.world.flaws import Flaws
from envs.world.oracle import Judgement, Oracle
from envs.world.passages import passage
from envs.world.query_reader import Reader
from envs.world.questions import question
from envs.world.rule_reader import RuleReader
from envs.world.teacher import Teacher
from systems.sirag.parse import TAGS
from systems.sirag.protocol import DECISION_MAKER, GENERATOR, KNOWLEDGE_SELECTOR, SIRAG
from tests.tiny import Scripted, byte_tokenizer
from tests.tiny import question as any_question

FILM, ARCHITECT, PILOT = "w-000020", "w-000001", "w-000004"
BORN = "w-2hop-000020-director-birthplace"  # The Silent Orchard -> Ilva Tarrow (architect) -> Keldan
SAME = "w-compare-000001-000003-birthplace"
PROTOCOL = SIRAG(byte_tokenizer(TAGS))  # type: ignore[arg-type] (a loaded one will do)
FILM_Q, BORN_Q = "Who directed The Silent Orchard?", "Where was Ilva Tarrow (architect) born?"
STOP = "<decision>stop</decision>"


def retrieve(query: str) -> str:
    return f"<decision>retrieve</decision><query>{query}</query>"


class Asked:
    """Finds what a query asks about, after a passage that nobody asked for: the second is the right one."""

    def __init__(self, world: World, distractor: str = PILOT) -> None:
        self.world, self.reader, self.distractor = world, Reader(world), distractor

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [[self._hit(self.distractor), *self._found(query)] for query in queries]

    def _found(self, query: str) -> list[Hit]:
        return [self._hit(subject) for subject in sorted({s for s, _ in self.reader.read(query).asked})]

    def _hit(self, identity: str) -> Hit:
        return Hit(passage(self.world, self.world.entities[identity], seed=0, paraphrases=1))


def answered(
    village: Path, identity: str, decides: Sequence[str], selects: Sequence[str], limits: Limits | None = None
) -> Episode:
    """What the rule reader answers after these decisions and selections."""
    world = World.load(village)

    def said(texts: Sequence[str], agent: str) -> Callable[[Episode], str]:
        return lambda episode: texts[sum(turn.agent == agent for turn in episode.turns)]

    agents = {
        DECISION_MAKER: Scripted(PROTOCOL.codec.control, said(decides, DECISION_MAKER)),
        KNOWLEDGE_SELECTOR: Scripted(PROTOCOL.codec.control, said(selects, KNOWLEDGE_SELECTOR)),
        GENERATOR: RuleReader(village, PROTOCOL),
    }
    environment = RetrievalEnvironment(PROTOCOL, Asked(world), limits=limits)
    environment.check(ByAgent(agents))
    return rollout(environment, ByAgent(agents), [question(world, identity, seed=0, paraphrases=1)], seed=0)[0]


CHAIN = [retrieve(FILM_Q), retrieve(BORN_Q), STOP]


@pytest.mark.parametrize(
    ("decides", "selects", "answer"),
    [
        (CHAIN, ["<keep>2</keep>", "<keep>2</keep>"], "Keldan"),
        (CHAIN, ["<keep>1,2</keep>", "<keep>1</keep>"], "Keldan"),
        (CHAIN, ["no idea", "no idea"], "Keldan"),  # keeps all
        (CHAIN, ["<keep>1</keep>", "<keep>1</keep>"], "unknown"),
        (CHAIN, ["<keep>2</keep>", "<keep></keep>"], "unknown"),
        ([retrieve(BORN_Q), STOP], ["<keep>1,2</keep>"], "unknown"),
        ([retrieve(BORN_Q), retrieve(FILM_Q), "nonsense"], ["<keep>2</keep>", "<keep>2</keep>"], "Keldan"),
        ([STOP], [], "unknown"),
    ],
)
def test_it_is_right_if_and_only_if_the_chain_s_passages_are_kept(
    village: Path, decides: list[str], selects: list[str], answer: str
) -> None:
    episode = answered(village, BORN, decides, selects)
    assert (episode.answer, episode.turns[-1].trainable) == (answer, False)


def test_both_sides_of_a_comparison_are_needed(village: Path) -> None:
    sides = [retrieve(BORN_Q), retrieve("Where was Oren Vask born?"), STOP]
    assert answered(village, SAME, sides, ["<keep>2</keep>", "<keep>2</keep>"]).answer == "yes"
    assert answered(village, SAME, sides, ["<keep>2</keep>", "<keep>1</keep>"]).answer == "unknown"


def test_a_passage_that_was_cut_is_not_there(village: Path) -> None:
    selects = ["<keep>2</keep>", "<keep>2</keep>"]
    for room, answer in ((300, "Keldan"), (60, "unknown")):
        limits = Limits(observation_tokens=room)
        assert answered(village, BORN, CHAIN, selects, limits).answer == answer


def taught(village: Path, identity: str = BORN, flaws: Flaws | None = None, distractor: str = PILOT) -> Episode:
    world = World.load(village)
    teacher: Any = Teacher(village, PROTOCOL, flaws=flaws)
    agents = {DECISION_MAKER: teacher, KNOWLEDGE_SELECTOR: teacher, GENERATOR: RuleReader(village, PROTOCOL)}
    environment = RetrievalEnvironment(PROTOCOL, Asked(world, distractor))
    environment.check(ByAgent(agents))
    return rollout(environment, ByAgent(agents), [question(world, identity, seed=0, paraphrases=3)], seed=0)[0]


def test_the_teacher_of_both_agents_keeps_the_passage_that_it_went_for(village: Path) -> None:
    episode = taught(village)
    assert [(step.kind, step.kept) for step in episode.steps] == [
        ("query", None),
        ("keep", (FILM,)),
        ("query", None),
        ("keep", (ARCHITECT,)),
        ("stop", None),
        ("answer", None),
    ]
    assert (episode.answer, PROTOCOL.valid(episode)) == ("Keldan", True)
    assert "The Silent Orchard" in episode.turns[2].text.partition("<query>")[0], "its thought says what was read"
    judged = Oracle(village).judge(episode)
    assert (judged.valid, judged.resolved, judged.flawed) == ((True,) * 6, True, False)


def test_a_teacher_that_stops_early_leaves_the_generator_without_the_last_passage(village: Path) -> None:
    episode = taught(village, flaws=Flaws(stops_early=1.0))
    assert [step.kind for step in episode.steps] == ["query", "keep", "stop", "answer"]
    assert episode.answer == "unknown"


def test_a_passage_that_is_in_the_pool_already_is_not_selected_again(village: Path) -> None:
    episode = taught(village, flaws=Flaws(redundant=1.0))
    assert [step.kept for step in episode.steps if step.kept is not None].count((FILM,)) == 1
    assert {step.kept for step in episode.steps} <= {None, (FILM,), (ARCHITECT,), ()}
    assert episode.answer == "Keldan"


def judge(village: Path, decides: Sequence[str], selects: Sequence[str]) -> Judgement:
    return Oracle(village).judge(answered(village, BORN, decides, selects))


def test_the_oracle_settles_a_hop_by_the_passage_that_is_kept(village: Path) -> None:
    result = judge(village, CHAIN, ["<keep>2</keep>", "<keep>2</keep>"])
    assert (result.valid, result.resolved, result.flawed) == ((True,) * 6, True, False)
    dropped = judge(village, CHAIN, ["<keep>2</keep>", "<keep></keep>"])
    assert dropped.valid == (True, True, True, False, False, False)
    assert (dropped.resolved, dropped.flawed, dropped.unresolved) == (False, False, False)


def test_to_keep_what_no_hop_takes_is_not_valid_and_flaws_a_right_answer(village: Path) -> None:
    result = judge(village, CHAIN, ["<keep>1,2</keep>", "<keep>1</keep>"])
    assert result.valid == (True, False, True, True, True, True)
    assert (result.resolved, result.flawed) == (True, True)


def test_a_passage_that_was_dropped_may_be_asked_for_again_and_a_kept_one_not(village: Path) -> None:
    again = [retrieve(FILM_Q), *CHAIN]
    result = judge(village, again, ["<keep></keep>", "<keep>2</keep>", "<keep>2</keep>"])
    assert result.valid == (True, False, True, True, True, True, True, True)
    result = judge(village, again, ["<keep>2</keep>", "<keep></keep>", "<keep>2</keep>"])
    assert result.valid == (True, True, False, True, True, True, True, True)


def test_to_stop_before_the_chain_is_whole_is_not_valid(village: Path) -> None:
    assert judge(village, [retrieve(FILM_Q), STOP], ["<keep>2</keep>"]).valid == (True, True, False, False)
    assert judge(village, [STOP], []).valid == (False, False)


def test_a_question_of_another_world_is_a_clear_error(village: Path) -> None:
    environment = RetrievalEnvironment(PROTOCOL, Asked(World.load(village)))
    script = Scripted(PROTOCOL.codec.control, lambda _: STOP)
    agents = {DECISION_MAKER: script, KNOWLEDGE_SELECTOR: script, GENERATOR: RuleReader(village, PROTOCOL)}
    with pytest.raises(DataError, match="question q1 is not of this world"):
        rollout(environment, ByAgent(agents), [any_question()], seed=0)
    with pytest.raises(ConfigError, match="RuleReader needs the move 'conclude'"):
        RuleReader(village, PROTOCOL).check(type("Mute", (), {"moves": ("search",)})(), Limits())
