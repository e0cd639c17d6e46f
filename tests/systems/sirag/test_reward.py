"""What is said of SIRAG's actions: by gold passages, by a chat model, and along the training."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from common.chat_client import ChatClient
from common.costs import JUDGE_CALLS
from common.errors import ConfigError, DataError
from envs.interfaces import RewardContext
from envs.types import Action, Document, Episode, Gold, Hit, Question, Turn
from systems.sirag.chat_choices import ChatChoices
from systems.sirag.gold_evidence import GoldEvidence
from systems.sirag.parse import TAGS
from systems.sirag.protocol import DECISION_MAKER, GENERATOR, KNOWLEDGE_SELECTOR, SIRAG
from systems.sirag.reward import judged, retrievals
from systems.sirag.state import Choice, JointState, choices_of
from tests.chat_server import chat_server
from tests.tiny import byte_tokenizer

QUESTION = Question("q", "Who wrote it?", ("Ada",), Gold(hops=2, documents=("d1", "d2")))
HITS = {name: Hit(Document(name, name.upper(), f"text of {name}")) for name in ("d1", "d2", "d3")}
CONTEXT = RewardContext(None)  # pyright: ignore[reportArgumentType]


def turn(uid: str, agent: str, kind: str, text: str = "", found: str = "") -> Turn:
    hits = tuple(HITS[name] for name in found.split())
    return Turn(agent, (), (1, 2), (-1.0, -1.0), "stop", uid, action=Action(kind, text), hits=hits)


SEARCH = turn("a", DECISION_MAKER, "query", "who?", "d1 d3")
KEEP = turn("b", KNOWLEDGE_SELECTOR, "keep", "1,2")
AGAIN, BAD = turn("c", DECISION_MAKER, "query", "and?", "d3"), turn("d", KNOWLEDGE_SELECTOR, "keep_all", "no number")
STOP, ANSWER = turn("e", DECISION_MAKER, "stop"), turn("f", GENERATOR, "answer", "Ada")
LONG = Episode(QUESTION, (), [SEARCH, KEEP, AGAIN, STOP, ANSWER], "answered", weight=1.5)
SHORT = Episode(QUESTION, (), [turn("g", DECISION_MAKER, "stop"), turn("h", GENERATOR, "answer", "x")], weight=0.5)


def choice(action: Action, *, agent: str = DECISION_MAKER, **hits: str) -> Choice:
    found = {name: tuple(HITS[one] for one in text.split()) for name, text in hits.items()}
    return Choice(QUESTION, agent, "u", action, **({"evidence": ()} | found))


def test_gold_passages_say_whether_to_stop_to_retrieve_and_what_to_keep() -> None:
    stop, query = Action("stop", ""), Action("query", "who?")
    keep: dict[str, Any] = {"agent": KNOWLEDGE_SELECTOR, "shown": "d1 d3"}
    cases = [
        (choice(stop), 0.0),
        (choice(stop, evidence="d1"), 0.0),
        (choice(stop, evidence="d2 d1 d3"), 1.0),
        (choice(query, hits="d3 d2"), 1.0),
        (choice(query, hits="d3"), 0.0),
        (choice(query, hits="d1", evidence="d1"), 0.0),
        (choice(query, hits="d1", evidence="d1 d2"), 0.0),
        (choice(Action("keep", "1"), kept="d1", **keep), 1.0),
        (choice(Action("keep", "1,2"), kept="d1 d3", **keep), 0.5),
        (choice(Action("keep", ""), **keep), 0.0),
        (choice(Action("keep", ""), agent=KNOWLEDGE_SELECTOR, shown="d3"), 1.0),
        (choice(Action("keep", "1"), agent=KNOWLEDGE_SELECTOR, shown="d3", kept="d3"), 0.0),
    ]
    assert GoldEvidence().score([one for one, _ in cases]) == [score for _, score in cases]
    unknown = dataclasses.replace(cases[0][0], question=Question("r", "?", ("x",)))
    with pytest.raises(DataError, match="question r has no gold passages to judge by: use another judge"):
        GoldEvidence().score([unknown])


def test_a_choice_has_what_its_agent_and_the_other_knew() -> None:
    first, keep, again, stop, answer = choices_of(LONG)
    assert first is not None
    assert keep is not None
    assert again is not None
    assert stop is not None
    assert (first.hits, first.evidence, first.shown) == ((HITS["d1"], HITS["d3"]), (), ())
    assert keep.shown == keep.kept == (HITS["d1"], HITS["d3"])
    assert again.evidence == stop.evidence == keep.kept
    assert answer is None


class Script:
    """Answers by the kind of the action and remembers what it was asked."""

    def __init__(self, **scores: float | None) -> None:
        self.scores, self.asked = scores, list[str]()

    def score(self, choices: Sequence[Choice]) -> list[float | None]:
        self.asked += [one.uid for one in choices]
        return [self.scores[one.action.kind] for one in choices]


def test_a_shared_action_is_judged_once_a_failed_call_is_no_reward_and_what_cannot_be_read_is_worth_nothing() -> None:
    other = Episode(QUESTION, (), [SEARCH, BAD, STOP, ANSWER], "answered")
    judge, context = Script(query=0.9, keep=None, stop=0.4), dataclasses.replace(CONTEXT, counts=type(CONTEXT.counts)())
    first, second = judged([LONG, other], context, judge=judge)
    assert judge.asked == ["a", "b", "c", "e"]
    assert first[:4].tolist() == pytest.approx([0.9, math.nan, 0.9, 0.4], nan_ok=True)
    assert second[:3].tolist() == pytest.approx([0.9, 0.0, 0.4])
    assert first[4].isnan()
    assert second[3].isnan(), "the generator is not judged"
    assert context.counts == {JUDGE_CALLS: 4}
    assert context.logged["failed"].tolist() == [0, 1, 0, 0]


def test_what_was_chosen_is_told_by_hops_the_root_by_the_weights_of_its_branches() -> None:
    context = dataclasses.replace(CONTEXT, logged={})
    twice = Episode(QUESTION, (), [SEARCH, KEEP, turn("i", DECISION_MAKER, "stop"), ANSWER], weight=1.5)
    assert retrievals([LONG, twice, SHORT], context).tolist() == [2, 1, 0]
    logged = {name: values.tolist() for name, values in context.logged.items()}
    assert logged["first/2_hops"] == [pytest.approx(0.75)], "of one question"
    assert logged["later/2_hops"] == [1, 0, 0]
    assert logged["kept/2_hops"] == [1, 1]
    assert list(logged) == [f"{what}/{n}_hops" for what in ("first", "later", "kept") for n in (1, 2, 3, 4)]
    assert not logged["first/1_hops"]


def test_the_joint_state_shows_agent_pool_passages_and_question_and_is_cut_at_its_end() -> None:
    protocol = SIRAG(byte_tokenizer(TAGS))  # pyright: ignore[reportArgumentType]
    state = JointState(protocol)
    texts = [protocol.codec.decode(state(LONG, number)) for number in range(4)]
    assert ["<keep>" in text for text in texts] == [False, True, False, False]
    assert "none" in texts[0]
    assert "text of d3" in texts[1]
    assert "text of d3" in texts[2]
    assert texts[2] != texts[1]
    assert "1 of 4" in texts[2]
    assert "2 of 4" in texts[3]
    assert all("Who wrote it?" in text for text in texts)
    short = JointState(protocol, tokens=len(state(LONG, 2)) - 10)
    cut = protocol.codec.decode(short(LONG, 2))
    assert len(short(LONG, 2)) == len(state(LONG, 2)) - 10
    assert "text of d1" in cut
    assert "text of d3" not in cut
    assert "Who wrote it?" in cut
    with pytest.raises(ConfigError, match="question q leaves no room in a joint state of 5 tokens"):
        JointState(protocol, tokens=5)(LONG, 0)


def test_a_chat_model_scores_actions_and_a_reply_without_a_score_is_none(tmp_path: Any) -> None:
    asked = [choice(Action("stop", "")), choice(Action("query", "who?<keep>"))]
    asked.append(choice(Action("keep", ""), agent=KNOWLEDGE_SELECTOR, shown="d1"))
    replies: list[Any] = [{"score": 70}, {"score": 0}, {"score": 101}, {"score": "7"}, {"points": 1}, "no JSON"]
    payloads: list[Any] = []
    for reply in replies:
        with chat_server(lambda user, reply=reply: {"score": 30} if "passages" in user else reply) as server:
            client = ChatClient(
                "m", server.url, cache=str(tmp_path / str(reply)), retries=0, timeout=5.0, concurrency=1
            )
            known = None if reply not in replies[:2] else reply["score"] / 100
            assert ChatChoices(client).score(asked) == [known, known, 0.3]
            payloads = [json.loads(call["messages"][1]["content"]) for call in server.calls]
    assert {"action": "stop"}.items() <= payloads[0].items()
    assert payloads[1]["query"] == "who?"
    assert payloads[2]["passages"] == ["D1: text of d1"]
    assert payloads[2]["kept"] == []
