"""SIRAG: who sees what, what is kept and dropped, what cannot be read, when it ends, what trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from common.errors import ConfigError
from envs.interfaces import Sampler
from envs.requests import Request
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.sampling import ByAgent
from envs.types import Action, Document, Episode, Hit, Limits, Move, Turn
from evaluation.choices import CountsChoices
from systems.sirag.parse import TAGS, read_decision, read_selection
from systems.sirag.protocol import DECISION_MAKER, GENERATOR, KNOWLEDGE_SELECTOR, SIRAG
from tests.tiny import byte_tokenizer, question

PROTOCOL = SIRAG(byte_tokenizer(TAGS))  # type: ignore[arg-type] (a loaded one will do)
STOP, KEEP_FIRST = "<decision>stop</decision>", "<keep>1</keep>"


class Books:
    """Finds the documents whose ids the query spells, `a b`; the same hit each time, as a cache gives it."""

    hits: ClassVar = {name: Hit(Document(name, name.upper(), f"All about {name}.")) for name in "abcdef"}

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [[self.hits[name] for name in query.split()] for query in queries]


class Agent(Sampler):
    """Writes these texts, one a turn, the last again and again, and remembers what it was shown."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__()
        self.texts, self.asked = texts, list[Request]()

    def take(self, request: Request) -> Turn:
        text = self.texts[min(len(self.asked), len(self.texts) - 1)]
        self.asked.append(request)
        ids = PROTOCOL.codec.control(text)
        return request.turn(ids, [-0.5] * len(ids), "stop", text)

    def contexts(self) -> list[str]:
        return [PROTOCOL.codec.decode(request.prefix()) for request in self.asked]


def retrieve(query: str, thought: str = "") -> str:
    return f"<decision>retrieve</decision>{thought}<query>{query}</query>"


def played(
    decides: Sequence[str], selects: Sequence[str] = (KEEP_FIRST,), retriever: Any = None, **settings: Any
) -> tuple[Episode, Mapping[str, Agent]]:
    agents = {DECISION_MAKER: Agent(decides), KNOWLEDGE_SELECTOR: Agent(selects), GENERATOR: Agent(["Ada<|im_end|>"])}
    limits = settings.pop("limits", Limits(turns=40))
    protocol = SIRAG(byte_tokenizer(TAGS), **settings)  # type: ignore[arg-type]
    environment = RetrievalEnvironment(protocol, retriever or Books(), limits=limits)
    return rollout(environment, ByAgent(agents), [question()], seed=0)[0], agents


def test_two_agents_gather_for_a_generator_and_each_sees_its_own_context() -> None:
    episode, agents = played([retrieve("a b", "I need a. "), retrieve("b c"), STOP], ["<keep>2</keep>", KEEP_FIRST])
    assert [turn.agent for turn in episode.turns] == [
        *(DECISION_MAKER, KNOWLEDGE_SELECTOR) * 2,
        *(DECISION_MAKER, GENERATOR),
    ]
    assert (episode.status, episode.answer, PROTOCOL.valid(episode)) == ("answered", "Ada", True)
    first, second, last = agents[DECISION_MAKER].contexts()
    assert "Passages:\nnone\n\nSearches: 0 of 4\n\nQuestion: Who wrote it?<|im_end|>" in first
    assert "Passages:\nDoc 1(Title: B) All about b.\n\nSearches: 1 of 4" in second
    assert "Doc 1(Title: B) All about b.\nDoc 2(Title: C) All about c.\n\nSearches: 2 of 4" in last
    assert "I need a" not in second + last, "thoughts are not seen again"
    seen, again = agents[KNOWLEDGE_SELECTOR].contexts()
    assert "Doc 1(Title: A) All about a.\nDoc 2(Title: B) All about b.\n\nQuestion: Who wrote it?" in seen
    assert "Doc 1(Title: C) All about c.\n\nQuestion" in again, "b is in the pool already: it is not shown again"
    [answered] = agents[GENERATOR].contexts()
    assert "Doc 1(Title: B) All about b.\nDoc 2(Title: C) All about c.\n\nQuestion: Who wrote it?" in answered
    assert [(step.kind, step.query, step.claim, step.kept) for step in episode.steps] == [
        ("query", "a b", None, None),
        ("keep", "", None, ("b",)),
        ("query", "b c", None, None),
        ("keep", "", None, ("c",)),
        ("stop", "", None, None),
        ("answer", "", "Ada", None),
    ]
    assert [hit.document.id for hit in episode.steps[3].hits] == ["c"]


def test_both_agents_train_each_on_its_own_turns_and_the_generator_never() -> None:
    episode, _ = played([retrieve("a b"), STOP])
    assert [turn.trainable for turn in episode.turns] == [True, True, True, False]
    rows = episode.sequences()
    assert [[episode.turns[turn].agent for turn in row.turns] for row in rows] == [
        [DECISION_MAKER],
        [KNOWLEDGE_SELECTOR],
        [DECISION_MAKER],
    ]
    texts = [PROTOCOL.codec.decode([t for t, on in zip(row.ids, row.loss_mask, strict=True) if on]) for row in rows]
    assert texts == [retrieve("a b"), KEEP_FIRST, STOP]


def test_after_the_last_retrieval_the_generator_is_asked() -> None:
    episode, agents = played([retrieve(name) for name in "abcdef"])
    assert len(agents[DECISION_MAKER].asked) == 4
    assert [turn.agent for turn in episode.turns[-2:]] == [KNOWLEDGE_SELECTOR, GENERATOR]
    assert PROTOCOL.choices(episode)["decisions/forced_stop"] == 1
    assert PROTOCOL.choices(episode)["decisions/retrieve"] == 4
    short, _ = played([retrieve(name) for name in "abcdef"], retrievals=1)
    assert [turn.action.kind for turn in short.turns] == ["query", "keep", "answer"]


def test_a_selector_with_nothing_new_to_select_from_is_not_asked() -> None:
    episode, agents = played([retrieve("a"), retrieve("a a"), STOP])
    assert [turn.action.kind for turn in episode.turns] == ["query", "keep", "query", "stop", "answer"]
    assert "Searches: 2 of 4" in agents[DECISION_MAKER].contexts()[-1]
    nothing, _ = played([retrieve(" . "), STOP], retriever=type("Empty", (), {"search": lambda s, q, k: [[]]})())
    assert [turn.action.kind for turn in nothing.turns] == ["query", "stop", "answer"]


def test_a_document_that_is_found_twice_at_once_is_shown_once_where_it_stands_first() -> None:
    _, agents = played([retrieve("a b a c"), STOP])
    [seen] = agents[KNOWLEDGE_SELECTOR].contexts()
    assert "Doc 1(Title: A) All about a.\nDoc 2(Title: B) All about b.\nDoc 3(Title: C) All about c." in seen
    assert "Doc 4" not in seen


def test_a_passage_that_was_dropped_may_be_found_again() -> None:
    episode, agents = played([retrieve("a b"), retrieve("a"), STOP], ["<keep>2</keep>", KEEP_FIRST])
    assert "Doc 1(Title: B) All about b.\nDoc 2(Title: A) All about a." in agents[GENERATOR].contexts()[0]
    assert episode.steps[3].kept == ("a",)


def test_without_evidence_the_generator_is_told_so_and_it_is_counted() -> None:
    for decides, selects in (([STOP], []), ([retrieve("a b"), STOP], ["<keep></keep>"])):
        episode, agents = played(decides, selects)
        assert "Passages:\nnone\n\nQuestion: Who wrote it?" in agents[GENERATOR].contexts()[0]
        assert episode.status == "answered"
        assert PROTOCOL.choices(episode)["evidence/empty"] == 1
    assert PROTOCOL.choices(played([retrieve("a"), STOP])[0])["evidence/empty"] == 0


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (STOP, Action("stop", "")),
        ("<decision> stop </decision><|im_end|>", Action("stop", "")),
        (f"All is there. {STOP}", Action("stop", "")),
        (retrieve(" who? "), Action("query", "who?")),
        (retrieve("who?", " I need it. "), Action("query", "who?")),
        ("", Action("invalid", "no decision")),
        ("stop", Action("invalid", "no decision")),
        ("<decision>wait</decision>", Action("invalid", "no decision")),
        ("<decision>stop", Action("invalid", "no decision")),
        ("<Decision>stop</decision>", Action("invalid", "no decision")),
        ("<query>who?</query><decision>retrieve</decision>", Action("invalid", "no decision")),
        (f"{STOP}{STOP}", Action("invalid", "two decisions")),
        (f"{STOP}<query>who?</query>", Action("invalid", "two decisions")),
        ("<decision>retrieve stop</decision>", Action("invalid", "two decisions")),
        (f"{retrieve('who?')}{STOP}", Action("invalid", "two decisions")),
        ("<decision>stop<decision>retrieve</decision>", Action("invalid", "two decisions")),
        ("<decision>retrieve</decision>", Action("invalid", "no query")),
        (retrieve("  "), Action("invalid", "no query")),
        ("<decision>retrieve</decision><query>who", Action("invalid", "no query")),
        (f"{retrieve('who?')}<query>and?</query>", Action("invalid", "no query")),
        (f"{retrieve('who?')}<keep>1</keep>", Action("invalid", "no query")),
    ],
)
def test_what_is_read_of_a_decision(text: str, action: Action) -> None:
    assert read_decision(text) == action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<keep>1,3</keep>", Action("keep", "1,3")),
        ("<keep> 3 , 01 </keep>", Action("keep", "3,1")),
        ("These: <keep>2</keep> I think.", Action("keep", "2")),
        ("<keep></keep>", Action("keep", "")),
        ("<keep> </keep>", Action("keep", "")),
        ("<keep>4</keep>", Action("keep_all", "out of range")),
        ("<keep>0</keep>", Action("keep_all", "out of range")),
        (f"<keep>{'9' * 5000}</keep>", Action("keep_all", "out of range")),
        ("<keep>1,1</keep>", Action("keep_all", "repeated")),
        ("<keep>1</keep><keep>2</keep>", Action("keep_all", "repeated")),
        ("<keep>one</keep>", Action("keep_all", "no number")),
        ("<keep>1,</keep>", Action("keep_all", "no number")),
        ("<keep>-1</keep>", Action("keep_all", "no number")),
        ("<keep>1 2</keep>", Action("keep_all", "no number")),
        ("<keep>²</keep>", Action("keep_all", "no number")),
        ("<keep>1", Action("keep_all", "no selection")),
        ("</keep>1<keep>", Action("keep_all", "no selection")),
        ("1", Action("keep_all", "no selection")),
        ("", Action("keep_all", "no selection")),
        (f"{STOP}<keep>1</keep>", Action("keep_all", "no selection")),
    ],
)
def test_what_is_read_of_a_selection(text: str, action: Action) -> None:
    assert read_selection(text, shown=3) == action


def test_a_decision_that_cannot_be_read_stops_and_a_selection_that_cannot_be_read_keeps_all() -> None:
    episode, agents = played([retrieve("a b"), f"{STOP}{STOP}"], ["<keep>9</keep>"])
    assert [(step.kind, step.valid, step.kept) for step in episode.steps] == [
        ("query", True, None),
        ("keep_all", False, ("a", "b")),
        ("invalid", False, None),
        ("answer", True, None),
    ]
    assert "Doc 2(Title: B)" in agents[GENERATOR].contexts()[0]
    assert (episode.status, PROTOCOL.valid(episode)) == ("answered", False)
    counted = {name: count for name, count in PROTOCOL.choices(episode).items() if count}
    assert counted == {
        "decisions/retrieve": 1,
        "passages/shown": 2,
        "passages/kept": 2,
        "invalid/two_decisions": 1,
        "invalid/out_of_range": 1,
    }


def test_choices_have_the_same_names_for_every_episode() -> None:
    assert isinstance(PROTOCOL, CountsChoices)
    episodes = [played(decides)[0] for decides in ([STOP], [retrieve("a b c"), STOP], [retrieve("a")])]
    names = [list(PROTOCOL.choices(episode)) for episode in (*episodes, Episode(question(), ()))]
    assert all(one == names[0] for one in names)
    assert [sum(PROTOCOL.choices(e).values()) for e in episodes] == [2, 1 + 1 + 3 + 1, 4 + 1 + 1 + 1]


def test_a_long_pool_is_cut_from_its_end_and_no_tag_of_the_message_is_lost() -> None:
    long = [Hit(Document(name, name, f"{name} " * 200)) for name in "abc"]
    retriever = type("Long", (), {"search": lambda self, queries, k: [long for _ in queries]})()
    limits = Limits(turns=40, observation_tokens=300, total_tokens=900)
    episode, agents = played([retrieve("x"), STOP], ["<keep>1,2,3</keep>"], retriever, limits=limits)
    [seen] = agents[GENERATOR].contexts()
    assert seen.count("a ") > 100 > seen.count("c ")  # each within the limit of a passage, together within that of all
    assert seen.endswith("Question: Who wrote it?<|im_end|>\n<|im_start|>assistant\n")
    assert episode.truncations["observation"]


def test_what_a_teacher_s_moves_look_like_depends_on_whose_turn_it_is() -> None:
    episode, _ = played([retrieve("a b"), STOP])
    found = Move("search", "x</query>", "I </decision> go", documents=("B", "c"))
    says = [PROTOCOL.say(Episode(question(), (), turns=episode.turns[:turns]), [found]) for turns in range(4)]
    asks = "<decision>retrieve</decision> I &lt;/decision> go <query> x&lt;/query> </query>"
    assert says == [asks, "<keep>2</keep>", asks, "<|im_end|>"]
    answer = Move("conclude", "Ada")
    assert PROTOCOL.say(Episode(question(), ()), [answer]) == f"{STOP}<|im_end|>"
    assert PROTOCOL.say(Episode(question(), (), turns=episode.turns[:3]), [answer]) == "Ada<|im_end|>"


def test_nothing_may_be_retrieved_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match="retrievals is 0; it must be at least 1"):
        SIRAG(byte_tokenizer(TAGS), retrievals=0)  # type: ignore[arg-type]
