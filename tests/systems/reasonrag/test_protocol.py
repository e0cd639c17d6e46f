"""ReasonRAG's format: what each stage sees, what its turns say, and that only what was sampled is trained."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigError
from envs.packing import collate, pack
from envs.requests import Done, Request
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Action, Document, Episode, Limits, Move, MoveKind
from modules.samplers.in_process import InProcessSampler
from modules.sequence_logprobs import sequence_logprobs
from systems.reasonrag.parse import TAGS, ends_in, said
from systems.reasonrag.protocol import ReasonRAG
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer, question, tiny_policy

SETTINGS = {"reasoning": "Think.", "grounding": "Read.", "answering": "Tell."}
PROTOCOL = ReasonRAG(byte_tokenizer(TAGS), **SETTINGS)  # pyright: ignore[reportArgumentType]
PLAIN = ReasonRAG(byte_tokenizer(tags=()), **SETTINGS)  # pyright: ignore[reportArgumentType]
ASK = "I ask. So the next query is <query> who </query>"
FOUND = "I see. <evidence> Ada </evidence>"
TELL = "I know. So the answer is <answer> Ada </answer>"
PAGE = (Document("d", "T", "a needle"),)


def played(
    texts: Sequence[str],
    documents: Sequence[Document] = PAGE,
    protocol: ReasonRAG = PROTOCOL,
    limits: Limits | None = None,
) -> Episode:
    """The episode in which the policy says these turns, and the last of them again if it has to go on."""
    environment = RetrievalEnvironment(protocol, FixedRetriever(documents), top_k=len(documents), limits=limits)
    sampler = Scripted(protocol.codec.control, lambda episode: texts[min(len(episode.turns), len(texts) - 1)])
    [episode] = rollout(environment, sampler, [question()], seed=0)
    return episode


def seen(episode: Episode, protocol: ReasonRAG = PROTOCOL) -> list[str]:
    """The context of each turn."""
    return [protocol.codec.decode(turn.context_ids or ()) for turn in episode.turns]


def prompt(system: str, user: str) -> str:
    return (
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nQuestion: Who wrote it?{user}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("protocol", [PROTOCOL, PLAIN], ids=["tags as tokens", "tags as plain text"])
def test_every_turn_sees_the_prompt_of_its_stage_and_what_was_written_before(protocol: ReasonRAG) -> None:
    episode = played([ASK, FOUND, "Well.", TELL], protocol=protocol)
    assert seen(episode, protocol) == [
        prompt("Think.", ""),
        prompt("Read.", f"\nPrevious Thoughts: {ASK}\n<reference>Doc 1(Title: T) a needle\n</reference>"),
        prompt("Think.", f"\nPrevious Thoughts: {ASK} {FOUND}"),
        prompt("Think.", f"\nPrevious Thoughts: {ASK} {FOUND} Well."),
    ]
    assert (episode.status, episode.answer) == ("answered", "Ada")


def test_the_last_turn_is_asked_for_the_answer_alone() -> None:
    short = ReasonRAG(byte_tokenizer(TAGS), **SETTINGS, iterations=3)  # pyright: ignore[reportArgumentType]
    episode = played([ASK, FOUND, "So: <answer> Ada </answer>"], protocol=short)
    assert seen(episode)[2] == prompt("Tell.", f"\nPrevious Thoughts: {ASK} {FOUND}")
    assert (episode.answer, short.valid(episode)) == ("Ada", True)
    even = ReasonRAG(byte_tokenizer(TAGS), **SETTINGS, iterations=4)  # pyright: ignore[reportArgumentType]
    unread = played([ASK, FOUND, ASK, "<answer> Ada </answer>"], protocol=even)
    assert [step.kind for step in unread.steps] == ["query", "evidence", "query", "answer"]
    assert (unread.answer, even.valid(unread)) == ("Ada", True), "the last iteration may only answer"
    refused = played([ASK, FOUND, ASK], protocol=short)
    assert (refused.status, refused.answer, refused.steps[2].kind) == ("step_budget", "", "invalid")
    assert len(refused.turns) == 3


def test_there_are_eight_iterations_of_which_the_last_may_only_answer() -> None:
    episode = played(["Well."])
    assert (len(episode.turns), episode.status, episode.answer) == (8, "step_budget", "")
    assert ["Tell." in context for context in seen(episode)] == [False] * 7 + [True]
    beginnings = [Episode(question(), (), episode.turns[:count]) for count in range(9)]
    assert [PROTOCOL.stage(beginning.turns) for beginning in beginnings[:8]] == ["reasoning"] * 7 + ["answering"]
    assert PROTOCOL.next(beginnings[8]) == Done("step_budget")
    request = PROTOCOL.next(beginnings[0])
    assert isinstance(request, Request)
    assert set(request.stop) == {"</query>", "</evidence>", "</answer>"}


@pytest.mark.parametrize(
    ("texts", "kinds", "valid"),
    [
        ([TELL], ["answer"], True),  # from memory
        ([ASK, FOUND, TELL], ["query", "evidence", "answer"], True),
        ([ASK, FOUND, ASK, "<evidence>None</evidence>", TELL], ["query", "evidence"] * 2 + ["answer"], True),
        ([ASK, "I see nothing.", TELL], ["query", "invalid", "answer"], False),  # passages are shown once
        ([ASK, ASK, ASK, FOUND, TELL], ["query", "invalid", "query", "evidence", "answer"], False),
        (["Hm.", ASK, FOUND, TELL], ["invalid", "query", "evidence", "answer"], False),
        ([FOUND, TELL], ["invalid", "answer"], False),  # evidence where no passage is
        ([ASK, TELL, TELL], ["query", "invalid", "answer"], False),  # an answer before the evidence
        (["<query> who </query>", FOUND, TELL], ["query", "evidence", "answer"], False),  # no marker
        ([f"{ASK} {TELL}", TELL], ["invalid", "answer"], False),  # two decisions at once
        ([ASK, "<evidence> </evidence>", TELL], ["query", "invalid", "answer"], False),  # empty evidence
    ],
)
def test_what_follows_what(texts: list[str], kinds: list[str], valid: bool) -> None:
    episode = played(texts)
    assert [step.kind for step in episode.steps] == kinds
    assert (episode.status, PROTOCOL.valid(episode), episode.answer) == ("answered", valid, "Ada")


def test_what_was_of_no_use_is_counted_by_reason() -> None:
    texts = ["Hm.", f"{ASK} {TELL}", ASK, "<evidence> </evidence>", ASK, "<evidence>None</evidence>", TELL]
    counts = PROTOCOL.choices(played(texts))
    assert counts == {
        "queries": 2, "evidence": 1, "evidence/nothing": 1, "invalid/no_decision": 1, "invalid/two_decisions": 1,
        "invalid/another_decision": 0, "invalid/nothing_in_it": 1,
    }  # fmt: skip


def test_passages_are_seen_in_one_turn_and_copies_of_earlier_text_are_trained_nowhere() -> None:
    episode = played([ASK, FOUND, ASK, FOUND, TELL])
    assert [context.count("needle") for context in seen(episode)] == [0, 1, 0, 1, 0], "those of its own search alone"
    rows = episode.sequences()
    assert len(rows) == 5
    for turn, row in zip(episode.turns, rows, strict=True):
        context = turn.context_ids or ()
        assert row.ids == context + turn.action_ids
        assert row.loss_mask == (0,) * len(context) + (1,) * len(turn.action_ids)
    first = PROTOCOL.codec.decode(episode.turns[0].action_ids)
    assert first in seen(episode)[4], "quoted there, and trained in its own turn alone"


def test_sampled_log_probs_are_those_of_the_training_rows() -> None:
    """A random policy writes tags and tokens of the template too; every turn's row is the context it was sampled in."""
    policy = tiny_policy(PROTOCOL.codec.tokenizer, scale=0.1)  # pyright: ignore[reportArgumentType]
    environment = RetrievalEnvironment(PROTOCOL, FixedRetriever(PAGE), limits=Limits(turn_tokens=9))
    sampler = InProcessSampler(policy, temperature=1.0)
    episodes = rollout(environment, sampler, [question()], seed=3, samples=3)
    rows = [row for episode in episodes for row in episode.sequences()]
    assert len(rows) == sum(len(episode.turns) for episode in episodes) > 20
    with torch.no_grad():
        again_BT = sequence_logprobs(policy.model, collate([pack(row) for row in rows]))
    for row, again_T in zip(rows, again_BT, strict=True):
        assert again_T[: len(row.ids)].tolist() == pytest.approx(row.logps, abs=1e-4)


def test_steps_state_queries_what_was_found_and_the_answer() -> None:
    ask, found, again, nothing, answer = played([ASK, FOUND, ASK, "<evidence>none</evidence>", TELL]).steps
    assert (ask.kind, ask.query, ask.claim, len(ask.hits)) == ("query", "who", "", 1)
    assert (found.kind, found.query, found.claim, found.said, found.hits) == ("evidence", "", "Ada", FOUND, ())
    assert (again.query, nothing.claim, nothing.valid) == ("who", "", True)
    assert (answer.kind, answer.query, answer.claim) == ("answer", "", "Ada")


def test_passages_are_cut_and_their_closing_tag_is_not() -> None:
    episode = played([ASK, FOUND, TELL], [Document("d", "T", "word " * 99)], limits=Limits(observation_tokens=30))
    assert "<reference>Doc 1(Title: T) word word word</reference>" in seen(episode)[1]
    assert episode.truncations["observation"] == 1


def test_tokens_of_the_chat_template_are_not_quoted() -> None:
    """They would end the user's message; the policy's own tags stay."""
    episode = played([f"<|im_start|>system {ASK}<|im_end|>", f"{FOUND}<|im_end|>", f"{TELL}<|im_end|>"])
    assert [step.kind for step in episode.steps] == ["query", "evidence", "answer"]
    assert all(step.valid for step in episode.steps)
    assert seen(episode)[2] == prompt("Think.", f"\nPrevious Thoughts: system {ASK} {FOUND}")
    assert episode.turns[0].text == f"<|im_start|>system {ASK}<|im_end|>"


def test_markers_are_arguments_and_stand_in_the_prompts() -> None:
    own = ReasonRAG(byte_tokenizer(TAGS), query_marker="Next:", answer_marker="It is")  # pyright: ignore[reportArgumentType]
    texts = ["Next: <query>who</query>", FOUND, "It is <answer>Ada</answer>"]
    episode = played(texts, protocol=own)
    assert own.valid(episode)
    assert not PROTOCOL.valid(played(texts))
    assert "Next: <query>the query</query>" in seen(episode)[0]
    assert "It is <answer>the answer</answer>" in seen(episode)[0]
    assert own.say(episode, [Move("search", "who", "I ask.")]) == "I ask. Next: <query> who </query>"


@pytest.mark.parametrize("setting", [{"iterations": 0}, {"query_marker": " "}, {"answer_marker": ""}])
def test_settings_out_of_range(setting: dict[str, str | int]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(setting))} {next(iter(setting.values()))!r}"):
        ReasonRAG(byte_tokenizer(TAGS), **setting)  # pyright: ignore[reportArgumentType]


words = st.text(st.characters(exclude_characters="<>&", exclude_categories=["Cs"]), min_size=1).filter(str.strip)
MOVES: dict[str, MoveKind] = {"query": "search", "evidence": "read", "answer": "conclude"}


@given(words, words, st.sampled_from([*MOVES]))
def test_a_move_is_written_validly_and_parses_back(thought: str, text: str, kind: str) -> None:
    written = PROTOCOL.say(Episode(question(), ()), [Move(MOVES[kind], text, thought), Move("search", "more", "next")])
    marker = PROTOCOL.markers.get(kind, "")
    assert ends_in(written, kind, marker)
    assert said(written, {kind: marker}) == Action(kind, text.strip())


def test_a_tag_in_what_a_teacher_writes_stays_text() -> None:
    written = PROTOCOL.say(Episode(question(), ()), [Move("conclude", "x</answer><answer>y", "see <query>")])
    assert ends_in(written, "answer", "So the answer is")
    assert said(written, PROTOCOL.markers) == Action("answer", "x&lt;/answer>&lt;answer>y")


PARTS = st.sampled_from([*TAGS, ASK, FOUND, TELL, "t", " ", "\n", "<", "</ Query>", "So the answer is", "é"])


@given(st.lists(st.lists(PARTS, max_size=7).map("".join), min_size=1, max_size=5))
def test_no_text_breaks_an_episode_nor_leaves_a_token_without_step(texts: list[str]) -> None:
    for protocol in (PROTOCOL, PLAIN):
        episode = played(texts, protocol=protocol)
        spans = [(number, 0, len(turn.action_ids)) for number, turn in enumerate(episode.turns)]
        assert [step.spans for step in episode.steps] == [(span,) for span in spans]
        assert episode.status == ("answered" if episode.answer else "step_budget")
        assert not any(step.valid for step in episode.steps if step.kind == "invalid")
        if protocol.valid(episode):
            assert all(step.valid for step in episode.steps)
