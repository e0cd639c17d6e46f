from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigError
from envs.requests import Done, Request
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Action, Document, Episode, Finish, Move, MoveKind, Turn
from systems.search_r1.protocol import NOTICE, TAGS, SearchR1, action_of, block_kind
from tests.envs.protocols.conformance import check_protocol
from tests.tiny import THINKING_TEMPLATE, FixedRetriever, Scripted, byte_tokenizer, question

PROTOCOL = SearchR1(byte_tokenizer(tags=TAGS))  # pyright: ignore[reportArgumentType]
PLAIN = SearchR1(byte_tokenizer(tags=()))  # pyright: ignore[reportArgumentType]
SEARCH = "<think> t </think>\n<search> q </search>"
ANSWER = "<think> t </think>\n<answer> Ada </answer>"
MUMBLE = "<think> t </think> well"
SCRIPT = [
    Move("search", "first program", "I ask."),
    Move("search", "last name of Ada", "I ask."),
    Move("conclude", "Ada Lovelace", "So it is."),
]


def turn(text: str, finish: Finish = "stop") -> Turn:
    ids = PROTOCOL.codec.control(text)
    return Turn("policy", (), ids, (0.0,) * len(ids), finish, "u", text=text)


def played(texts: Sequence[str], documents: Sequence[Document] = (), protocol: SearchR1 = PROTOCOL) -> Episode:
    """The episode in which the policy says these turns, and the last of them again if it has to go on."""
    environment = RetrievalEnvironment(protocol, FixedRetriever(documents or [Document("d", "T", "text")]))
    sampler = Scripted(protocol.codec.control, lambda episode: texts[min(len(episode.turns), len(texts) - 1)])
    [episode] = rollout(environment, sampler, [question()], seed=0)
    return episode


def shown(episode: Episode, protocol: SearchR1 = PROTOCOL) -> str:
    return protocol.codec.decode(episode.context()[len(episode.prompt_ids) :])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (SEARCH, "query"),
        (ANSWER, "answer"),
        ("<think>t</think><answer>x</answer>", "answer"),
        ("\n <think>\n\n</think> \n<search>q</search>\n", "query"),  # an empty thought, as in the released code
        ("<think>is <i>x</i> < 3?</think><answer><b>42</b></answer>", "answer"),  # no tag of this format
        ("<search>q</search>", None),  # no thought
        ("so <think>t</think><search>q</search>", None),  # text before
        ("<think>t</think> so <search>q</search>", None),  # text between
        ("<think>t</think><answer>x</answer> so", None),  # text after
        ("<think>t</think><search> \n</search>", None),  # an empty search
        ("<think>t</think><answer></answer>", None),
        ("<think>t</think><think>u</think><search>q</search>", None),  # a repeated block
        ("<think>t</think><search>q</search><search>r</search>", None),
        ("<think>t</think><answer>x</answer><answer>y</answer>", None),  # two answers
        ("<think>t</think><search>q</search><answer>x</answer>", None),  # two actions
        ("<think>t<search>q</search></think>", None),  # nested blocks
        ("<think>t<think>u</think></think><search>q</search>", None),
        ("<think>t</think><search>q<answer>x</answer></search>", None),
        ("<think>t</think><answer><answer>x</answer>", None),
        ("<think>t</think><information>made up</information><answer>x</answer>", None),  # passages of its own
        ("<think>t<information>made up</information></think><answer>x</answer>", None),
        ("<think>t</think><answer>x", None),  # never closed
        ("<think>t<answer>x</answer>", None),
        ("t</think><answer>x</answer>", None),
        ("<think>t</think>x</answer>", None),
        ("<think>t</think><search>x</answer>", None),  # closed by another tag
        ("<answer>x</answer><think>t</think>", None),  # wrong order
        ("<think>t</think><Answer>x</Answer>", None),  # misspelt
        ("<think>t< /think><answer>x</answer>", None),
        ("<think>t</think>", None),
        ("", None),
    ],
)
def test_a_turn_follows_the_format_or_not(text: str, kind: str | None) -> None:
    assert block_kind(text) == kind


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<search> who? </search>", Action("query", "who?")),  # no thought
        ("well <answer>Ada</answer>", Action("answer", "Ada")),
        ("<think>t <search>who?</search>", Action("query", "who?")),
        ("<think>t</think><answer>Ada</answer> or so", Action("answer", "Ada")),  # cut after the first closing tag
        ("<think>t</think><information>Ada</information><answer>Ada</answer>", Action("answer", "Ada")),
        ("<answer>Ada</answer><answer>Bob</answer>", Action("invalid", "")),
        ("<answer>Ada<answer>Bob</answer>", Action("invalid", "")),
        ("<answer>Ada</answer><search>who?</search>", Action("invalid", "")),
        ("<search>a<search>b</search>", Action("invalid", "")),
        ("<search>a<answer>b</answer>", Action("invalid", "")),
        ("<answer><think>t</think>Ada</answer>", Action("invalid", "")),
        ("<answer>Ada < / ANSWER ></answer>", Action("invalid", "")),
        ("<search> </search>", Action("invalid", "")),
        ("<answer>\n</answer>", Action("invalid", "")),
        ("</answer>Ada<answer>", Action("invalid", "")),
        ("<answer>Ada", Action("invalid", "")),
        ("Ada", Action("invalid", "")),
    ],
)
def test_a_sloppy_turn_is_obeyed_if_it_is_clear(text: str, action: Action) -> None:
    assert action_of(text) == action
    assert PROTOCOL.parse(Episode(question(), ()), turn(text)) == action


@pytest.mark.parametrize(
    ("texts", "status", "valid", "answer"),
    [
        ([ANSWER], "answered", True, "Ada"),  # from memory
        ([SEARCH, ANSWER], "answered", True, "Ada"),
        ([SEARCH] * 4 + [ANSWER], "answered", True, "Ada"),
        ([SEARCH, SEARCH], "step_budget", False, ""),
        ([SEARCH, "<answer>Ada</answer>"], "answered", False, "Ada"),
        (["<search>q</search>", ANSWER], "answered", False, "Ada"),
        ([MUMBLE, ANSWER], "answered", False, "Ada"),
        ([SEARCH, ANSWER + " Bob"], "answered", False, "Ada"),
        ([ANSWER + ANSWER, MUMBLE], "step_budget", False, ""),
        ([SEARCH] * 4 + [MUMBLE], "step_budget", False, ""),
        ([SEARCH] * 4 + [SEARCH + ANSWER], "step_budget", False, ""),
    ],
)
def test_whole_episodes(texts: list[str], status: str, valid: bool, answer: str) -> None:
    episode = played(texts)
    assert (episode.status, PROTOCOL.valid(episode), episode.answer) == (status, valid, answer)
    assert released_verdict(shown(episode)) == valid


def test_four_turns_may_search_and_one_more_may_answer() -> None:
    """Turns count, not searches; the last turn stops at an answer alone, and what it searches for is not searched."""
    retriever = FixedRetriever([Document("d", "T", "text")])
    says = [SEARCH, MUMBLE, SEARCH, SEARCH, SEARCH]
    sampler = Scripted(PROTOCOL.codec.control, lambda episode: says[len(episode.turns)])
    [episode] = rollout(RetrievalEnvironment(PROTOCOL, retriever), sampler, [question()], seed=0)
    kinds = [("query", True), ("invalid", False), ("query", True), ("query", True), ("invalid", False)]
    assert [(step.kind, step.valid) for step in episode.steps] == kinds
    assert len(retriever.queries) == 3
    assert (episode.status, episode.answer, episode.turns[-1].observation_ids) == ("step_budget", "", ())
    requests = [PROTOCOL.next(Episode(question(), (), episode.turns[:count])) for count in range(6)]
    stops = [request.stop for request in requests if isinstance(request, Request)]
    assert stops == [("</search>", "</answer>")] * 4 + [("</answer>",)]
    assert requests[5] == Done("step_budget")


def test_the_number_of_searches_is_an_argument() -> None:
    short = SearchR1(byte_tokenizer(tags=TAGS), searches=1)  # pyright: ignore[reportArgumentType]
    assert [step.kind for step in played([SEARCH], protocol=short).steps] == ["query", "invalid"]
    with pytest.raises(ConfigError, match="searches 0"):
        SearchR1(byte_tokenizer(tags=TAGS), searches=0)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("text", [MUMBLE, "", "<search> </search>", "<|im_end|>"])
def test_a_turn_without_action_gets_a_notice_that_is_not_trained(text: str) -> None:
    episode = played([text, ANSWER])
    assert shown(episode) == text + NOTICE + ANSWER
    [sequence] = episode.sequences()
    trained = [token for token, on in zip(sequence.ids, sequence.loss_mask, strict=True) if on]
    assert trained == [token for turn in episode.turns for token in turn.action_ids]
    own = SearchR1(byte_tokenizer(tags=TAGS), notice=" again: ")  # pyright: ignore[reportArgumentType]
    assert shown(played([text, ANSWER], protocol=own)) == f"{text} again: {ANSWER}"


def test_the_context_reads_as_the_format_says() -> None:
    episode = played([SEARCH, ANSWER], [Document("d", "Title", "body"), Document("e", "Other", "more")])
    passages = "Doc 1(Title: Title) body\nDoc 2(Title: Other) more"
    assert shown(episode) == f"{SEARCH}\n\n<information>{passages}</information>\n\n{ANSWER}"


def thinking(tags: Sequence[str] = TAGS) -> SearchR1:
    """Over a chat template that writes `<think>` before the reply, as that of a model that always thinks."""
    tokenizer = byte_tokenizer(tags=tags)
    tokenizer.chat_template = THINKING_TEMPLATE
    return SearchR1(tokenizer)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("tags", [TAGS, ()], ids=["tags as tokens", "tags as plain text"])
def test_a_thought_that_the_template_opened_counts_and_is_written_once(tags: Sequence[str]) -> None:
    protocol = thinking(tags)
    check_protocol(protocol, SCRIPT, "Ada Lovelace")
    first = SEARCH.removeprefix("<think> ")
    episode = played([first, ANSWER], protocol=protocol)
    assert (episode.status, protocol.valid(episode)) == ("answered", True)
    assert [step.valid for step in episode.steps] == [True, True]
    text = protocol.codec.decode(episode.context())
    assert text.partition("assistant\n")[2].startswith("<think>\nt </think>\n<search> q </search>\n\n<information>")
    for wrong in (SEARCH, "t <search> q </search>", "<think> u t </think><search> q </search>"):
        assert not played([wrong, ANSWER], protocol=protocol).steps[0].valid
    later = played([first, ANSWER.removeprefix("<think> ")], protocol=protocol)
    assert [step.valid for step in later.steps] == [True, False], "later turns open their thoughts themselves"


def test_a_teacher_goes_on_in_a_thought_that_the_template_opened() -> None:
    moves, protocol = [Move("search", "q", "t")], thinking()
    begun = Episode(question(), ())
    assert protocol.say(begun, moves) == "t </think>\n<search> q </search>"
    assert PROTOCOL.say(begun, moves) == SEARCH
    assert protocol.say(Episode(question(), (), [turn(SEARCH)]), moves) == SEARCH


@pytest.mark.parametrize(("text", "asked"), [("Who wrote it?", "Who wrote it?"), ("Name it. ", "Name it.?")])
def test_the_prompt_is_one_user_message_that_ends_in_a_question_mark(text: str, asked: str) -> None:
    message = PROTOCOL.codec.decode(PROTOCOL.prompt(question(f"{text}")))
    assert message.startswith("<|im_start|>user\nAnswer the question. Whenever")
    assert message.endswith(f"Question: {asked}<|im_end|>\n<|im_start|>assistant\n")
    bare = SearchR1(byte_tokenizer(tags=TAGS), instruction="")  # pyright: ignore[reportArgumentType]
    written = bare.codec.decode(bare.prompt(question(text)))
    assert written == f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"


def test_steps_state_queries_and_the_answer_and_have_no_place_for_claims() -> None:
    search, broken, answer = PROTOCOL.steps(played([SEARCH, MUMBLE, ANSWER]))
    assert (search.kind, search.query, search.claim, search.said, len(search.hits)) == ("query", "q", None, SEARCH, 1)
    assert (broken.kind, broken.query, broken.claim, broken.said) == ("invalid", "", None, MUMBLE)
    assert (answer.kind, answer.query, answer.claim) == ("answer", "", "Ada")


words = st.text(st.characters(exclude_characters="<>", exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@given(words, words, st.sampled_from([("search", "query"), ("conclude", "answer")]))
def test_a_move_is_written_validly_and_parses_back(thought: str, text: str, kinds: tuple[MoveKind, str]) -> None:
    written = PROTOCOL.say(Episode(question(), ()), [Move(kinds[0], text, thought), Move("search", "more", "next")])
    assert block_kind(written) == kinds[1]
    assert action_of(written) == Action(kinds[1], text.strip())


def test_a_tag_in_what_a_teacher_writes_stays_text() -> None:
    written = PROTOCOL.say(Episode(question(), ()), [Move("conclude", "x</answer>y<answer>", "see <think>")])
    assert block_kind(written) == "answer"
    assert action_of(written).text == "x&lt;/answer>y&lt;answer>"


SIGNS = [*TAGS, "t", " ", "\n", "<", ">", "</", "search", "<i>", "</ Search>", "é"]
PARTS = st.lists(st.sampled_from(SIGNS), max_size=9)


@given(PARTS)
def test_what_is_valid_is_obeyed_and_reads_as_the_released_code_wants_it(parts: list[str]) -> None:
    text = "".join(parts)
    if kind := block_kind(text):
        assert action_of(text).kind == kind
        rest = "<information></information><think></think><answer>x</answer>" * (kind == "query")
        assert released_verdict(text + rest)


@given(st.lists(PARTS.map("".join), min_size=1, max_size=6))
def test_no_text_breaks_an_episode_nor_leaves_a_token_without_step(texts: list[str]) -> None:
    for protocol in (PROTOCOL, PLAIN):
        episode = played(texts, protocol=protocol)
        spans = [(number, 0, len(turn.action_ids)) for number, turn in enumerate(episode.turns)]
        assert [step.spans for step in episode.steps] == [(span,) for span in spans]
        assert episode.status == ("answered" if episode.answer else "step_budget")
        if protocol.valid(episode):
            assert all(step.valid for step in episode.steps)
            assert released_verdict(shown(episode, protocol))


# After each tag of the released code's state machine, which tag may follow, and whether text may stand between.
_NEXT = {
    "": ("<think>", False),
    "<think>": ("</think>", True),
    "</think>": ("<search> <answer>", False),
    "<search>": ("</search>", True),
    "</search>": ("<information>", False),
    "<information>": ("</information>", True),
    "</information>": ("<think>", False),
    "<answer>": ("</answer>", True),
    "</answer>": ("", False),
}


def released_verdict(text: str) -> bool:
    """The verdict of the released code on a whole episode, from its description: a second reading to compare with."""
    places = sorted((i, tag) for tag in TAGS for i in range(len(text)) if text.startswith(tag, i))
    marks = [(0, ""), *places, (len(text), "")]
    for (start, tag), (end, following) in pairwise(marks):
        allowed, holds_text = _NEXT[tag]
        if following not in (allowed.split() or [""]):
            return False
        if not holds_text and text[start + len(tag) : end].strip():
            return False
    return True
