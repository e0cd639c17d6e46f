"""HiPRAG's format: conformance, the two kinds of step, what is no step, and whose tokens they are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Action, Document, Episode, Limits, Move
from systems.hiprag.parse import TAGS
from systems.hiprag.protocol import NOTICE, HiPRAG
from tests.envs.protocols.conformance import Script, check_protocol
from tests.tiny import THINKING_TEMPLATE, FixedRetriever, Scripted, byte_tokenizer, question

SEARCH, READ = Move("search", "first program", "I ask."), Move("read", "Ada", "I see.")
MORE, RECALL = Move("search", "last name of Ada", "I ask."), Move("recall", "Lovelace", "I know.")
ANSWER = Move("conclude", "Ada Lovelace", "So it is.")


PROTOCOL = HiPRAG(byte_tokenizer(TAGS), search_turns=3)  # pyright: ignore[reportArgumentType]
ASKS = "I ask.</reasoning><search>Who?</search>"
READS = "Ada</conclusion></step>"
KNOWS = "<step><reasoning>I know it.</reasoning><conclusion>Lovelace</conclusion></step>"
ENDS = "</think><answer>Ada</answer>"
OWN = KNOWS.removeprefix("<step><reasoning>")  # as the first step, which the environment has opened


def played(*texts: str, documents: tuple[Document, ...] = (Document("d", "T", "text"),), **limits: int) -> Episode:
    """An episode of these turns; a text that ends in `$` ended with the end of the message."""
    environment = RetrievalEnvironment(PROTOCOL, FixedRetriever(documents), limits=Limits(**limits))
    end = str(PROTOCOL.codec.tokenizer.eos_token)
    script = Scripted(PROTOCOL.codec.control, lambda e: texts[len(e.turns) % len(texts)].replace("$", end))
    [episode] = rollout(environment, script, [question()], seed=0)
    return episode


def kinds(episode: Episode) -> list[str]:
    """The kinds of an episode's steps, with a mark where they are not in format."""
    return [step.kind + ("" if step.valid else "!") for step in episode.steps]


def context(episode: Episode) -> str:
    return PROTOCOL.codec.decode(episode.context()[len(episode.prompt_ids) :])


def test_the_context_reads_as_the_format_says() -> None:
    episode = played(ASKS, READS + KNOWS + ENDS)
    assert context(episode) == (
        "<think><step><reasoning>I ask.</reasoning><search>Who?</search>"
        "\n<context>Doc 1(Title: T) text\n</context>\n<conclusion>Ada</conclusion></step>"
        "<step><reasoning>I know it.</reasoning><conclusion>Lovelace</conclusion></step>"
        "</think><answer>Ada</answer>"
    )
    assert PROTOCOL.codec.decode(_trained(episode)) == ASKS + READS + KNOWS + ENDS


def test_a_thought_that_the_template_opened_is_not_opened_again() -> None:
    tokenizer = byte_tokenizer(TAGS)
    tokenizer.chat_template = THINKING_TEMPLATE
    protocol: Any = HiPRAG(tokenizer)  # pyright: ignore[reportArgumentType]
    check_protocol(protocol, [SEARCH, READ, MORE, READ, RECALL, ANSWER], "Ada Lovelace")
    begun = Episode(question(), protocol.prompt(question()))
    assert protocol.codec.decode(protocol.next(begun).prefix()).endswith("assistant\n<think>\n<step><reasoning>")


def _trained(episode: Episode) -> list[int]:
    [row] = episode.sequences()
    return [token for token, on in zip(row.ids, row.loss_mask, strict=True) if on]


def test_a_turn_holds_several_steps_and_a_step_spans_two_turns() -> None:
    search, memory, answer = played(ASKS, READS + KNOWS + ENDS).steps
    assert (search.kind, search.query, search.claim, search.recall) == ("search", "Who?", "Ada", False)
    assert [turn for turn, _, _ in search.spans] == [0, 1]
    assert (search.said, len(search.hits)) == (ASKS + READS, 1)
    assert (memory.kind, memory.query, memory.claim, memory.recall) == ("statement", "", "Lovelace", True)
    assert (memory.said, memory.hits) == (KNOWS, ())
    assert (answer.kind, answer.claim, answer.said) == ("answer", "Ada", ENDS)


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        ([ASKS, READS + ENDS], "search answer"),
        ([OWN + ENDS], "statement answer"),
        (["</reasoning><conclusion>x</conclusion></step>" + ENDS], "statement answer"),  # reasoning may be empty
        ([ASKS, READS + "\n<step>\n" + ASKS.replace("I", "<reasoning>I"), READS + ENDS], "search search answer"),
        ([OWN + " \n " + KNOWS + "\n</think>\n<answer> a </answer>\n"], "statement statement answer"),
        (["is 1 < 2 <br> so</reasoning><conclusion>a > b</conclusion></step>" + ENDS], "statement answer"),
    ],
)
def test_well_formed(texts: list[str], shown: str) -> None:
    episode = played(*texts)
    assert " ".join(kinds(episode)) == shown
    assert PROTOCOL.valid(episode)


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        ([ENDS], "invalid! answer!"),  # no step at all
        ([KNOWS + ENDS], "statement! answer"),  # the step that the environment has opened is opened again
        ([ASKS + "more", READS + ENDS], "search! answer"),  # text after the turn's end
        ([ASKS, "Ada" + ENDS], "search! answer"),  # no conclusion
        ([ASKS, "</conclusion></step>" + ENDS], "search! answer"),  # an empty one
        ([ASKS, "Ada</step>" + ENDS], "search! answer"),  # a conclusion that is not closed
        ([ASKS, "Ada</conclusion>" + ENDS], "search! answer"),  # a step that is not closed
        ([ASKS, "<conclusion>" + READS + ENDS], "search! answer"),  # the environment's tag written again
        ([ASKS, READS + READS + ENDS], "search invalid! answer"),  # a repeated block, outside any step
        (["a</reasoning><reasoning>b" + OWN + ENDS], "statement! answer"),
        (["I know.<step><reasoning>" + OWN + ENDS], "invalid! statement answer"),  # nested steps
        (["a</reasoning><search>b<search>c</search>", READS + ENDS], "search! answer"),
        ([ASKS, "Ada</conclusion><search>again</search>", READS + ENDS], "search! search! answer"),
        (["a</reasoning><context>made up</context>" + OWN + ENDS], "statement! answer"),
        ([OWN + "and" + ENDS], "statement invalid! answer"),  # text between steps
        ([OWN + "<answer>Ada</answer>"], "statement answer!"),  # the thinking is not closed
        ([OWN + "</think>so<answer>Ada</answer>"], "statement answer!"),
        ([OWN + "</think><answer>a<answer>Ada</answer>"], "statement invalid! answer!"),  # two answers
        ([OWN + ENDS + "<answer>b</answer>"], "statement answer!"),
        ([OWN + ENDS + "<i>"], "statement answer!"),
        ([OWN + "<think>" + KNOWS + ENDS], "statement invalid! statement answer"),
        (["a</Reasoning><conclusion>b</conclusion></step>" + ENDS], "statement! answer"),
        (["a< /reasoning><conclusion>b</conclusion></step>" + ENDS], "statement! answer"),
        (["<b>a</b>" + OWN + ENDS], "statement! answer"),  # a pair of no such format
        (["mumble", OWN + ENDS], "statement! answer"),  # a turn without an action breaks its step
        (["mumble", KNOWS + ENDS], "invalid! statement answer"),
        (["mumble$", KNOWS + ENDS], "invalid! statement answer"),
        ([OWN + "</think>", "<answer>Ada</answer>"], "statement answer!"),
        ([OWN + "</think><answer> </answer>", ENDS], "statement invalid! answer"),
    ],
)
def test_malformed(texts: list[str], shown: str) -> None:
    episode = played(*texts)
    assert " ".join(kinds(episode)) == shown
    assert not PROTOCOL.valid(episode)
    assert (episode.status, episode.answer) == ("answered", "Ada")
    assert _trained(episode) == [token for turn in episode.turns for token in turn.action_ids]


def test_text_after_the_answer_is_tolerated_but_counted() -> None:
    episode = played(OWN + ENDS + " Well.")
    assert PROTOCOL.valid(episode)
    assert kinds(episode) == ["statement", "answer!"]


def test_a_search_that_finds_nothing_makes_no_step_in_format() -> None:
    episode = played(ASKS, READS + ENDS, documents=())
    assert kinds(episode) == ["search!", "answer"]
    assert not PROTOCOL.valid(episode)


def test_a_turn_without_an_action_gets_a_notice_and_goes_on() -> None:
    episode = played("mumble$", OWN + ENDS)
    assert context(episode).startswith(f"<think><step><reasoning>mumble<|im_end|>{NOTICE}")
    assert _trained(episode)[:6] == list(PROTOCOL.codec.control("mumble"))


def test_after_the_searching_turns_one_more_may_answer_but_not_search() -> None:
    again = READS + "<step><reasoning>" + ASKS
    episode = played(ASKS, again, again, again)
    assert episode.status == "step_budget"
    assert [turn.action.kind for turn in episode.turns] == ["query", "query", "query", "refused"]
    assert kinds(episode) == ["search", "search", "search", "invalid!"]
    assert (episode.answer, episode.turns[-1].observation_ids, episode.steps[-1].query) == ("", (), "")
    answered = played(ASKS, again, again, READS + ENDS)
    assert (answered.status, answered.answer, PROTOCOL.valid(answered)) == ("answered", "Ada", True)
    silent = played("mumble")
    assert (silent.status, len(silent.turns), silent.answer, PROTOCOL.valid(silent)) == ("step_budget", 4, "", False)


@pytest.mark.parametrize("limit", [0, 1, 7, 40])
def test_a_cut_of_the_passages_keeps_the_tags_around_them(limit: int) -> None:
    episode = played(ASKS, READS + ENDS, documents=(Document("d", "T", "word " * 40),), observation_tokens=limit)
    before, _, after = context(episode).partition("<context>")
    assert before.endswith("</search>\n")
    assert after.endswith("</context>\n<conclusion>" + READS + ENDS)
    assert kinds(episode) == ["search", "answer"]


def test_a_budget_that_ends_inside_a_step_leaves_it_invalid() -> None:
    episode = played(ASKS, "mumble", turns=1)
    assert (episode.status, kinds(episode)) == ("step_budget", ["search!"])


def test_a_sloppy_turn_is_still_obeyed() -> None:
    def asks(text: str) -> Action:
        return played(text).turns[0].action

    assert asks("I ask <search> who? </search>") == Action("query", "who?")
    assert asks("<answer>Ada</answer>") == Action("answer", "Ada")
    assert asks("<answer>a</answer><search>b</search>") == Action("answer", "a")
    for text in ("<search> </search>", "who?</search>", "<Search>who?</Search>", "no tags"):
        assert asks(text).kind == "invalid"


def test_a_teacher_that_answers_at_once_still_writes_a_step() -> None:
    text = PROTOCOL.say(Episode(question(), ()), [ANSWER])
    episode = played(text)
    assert (kinds(episode), episode.answer) == (["statement", "answer"], "Ada Lovelace")


def test_a_teacher_may_sum_up_before_it_answers() -> None:
    sums_up = HiPRAG(PROTOCOL.codec.tokenizer, sums_up=True)  # pyright: ignore[reportArgumentType]
    script = [
        Move("search", "who?", "I ask."),
        Move("read", "Ada", "It says so."),
        Move("conclude", "Ada Lovelace", "All is known."),
    ]
    environment = RetrievalEnvironment(sums_up, FixedRetriever([Document("d", "T", "text")]))
    [episode] = rollout(environment, Script(sums_up, script), [question()], seed=0)
    assert sums_up.valid(episode)
    assert [(step.kind, step.claim) for step in episode.steps] == [
        ("search", "Ada"),
        ("statement", "Ada Lovelace"),
        ("answer", "Ada Lovelace"),
    ]
    assert "<reasoning>All is known. It says so.</reasoning>" in episode.steps[1].said


def test_a_tag_in_what_a_teacher_writes_stays_text() -> None:
    episode = played(PROTOCOL.say(Episode(question(), ()), [Move("recall", "x</step>", "</think>"), ANSWER]))
    assert (kinds(episode), episode.steps[0].claim) == (["statement", "answer"], "x&lt;/step>")


words = st.text(st.characters(exclude_characters="<>", exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@given(words, words, words, words)
def test_what_a_teacher_says_is_well_formed_and_reads_back(thought: str, query: str, claim: str, answer: str) -> None:
    script = [Move("recall", claim, thought), Move("search", query, thought), Move("read", claim), ANSWER]
    script[-1] = Move("conclude", answer, thought)
    environment = RetrievalEnvironment(PROTOCOL, FixedRetriever([Document("d", "T", "text")]))
    [episode] = rollout(environment, Script(PROTOCOL, script), [question()], seed=0)
    assert PROTOCOL.valid(episode)
    assert [(step.query, step.claim) for step in episode.steps] == [
        ("", claim.strip()),
        (query.strip(), claim.strip()),
        ("", answer.strip()),
    ]


MERGED = HiPRAG(byte_tokenizer((), [("<", "/"), (">", "<"), ("Ġ", "<"), ("p", ">")]), search_turns=3)  # pyright: ignore
turns = st.lists(
    st.lists(st.sampled_from([*TAGS, "t", " ", "é", "<", ">", "<i>", "</i>", "</ Step>", "<|im_end|>"]), max_size=8),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("protocol", [PROTOCOL, MERGED], ids=["tags as tokens", "tokens across tags"])
@given(texts=turns)
def test_every_sampled_token_lies_in_exactly_one_step(protocol: HiPRAG, texts: list[list[str]]) -> None:
    """The environment itself requires it of every finished episode; here of each beginning, too."""
    script = Scripted(protocol.codec.control, lambda e: "".join(texts[len(e.turns) % len(texts)]))
    environment = RetrievalEnvironment(protocol, FixedRetriever([Document("d", "T", "text")]))
    [episode] = rollout(environment, script, [question()], seed=0)
    for count in range(len(episode.turns) + 1):
        beginning = Episode(question(), (), turns=episode.turns[:count])
        covered = [(t, at) for step in protocol.steps(beginning) for t, a, b in step.spans for at in range(a, b)]
        assert covered == [(t, at) for t in range(count) for at in range(len(episode.turns[t].action_ids))]
    searches = sum(turn.action.kind == "query" for turn in episode.turns)
    assert sum(bool(step.query) for step in episode.steps) == searches
    answers = [step.claim for step in episode.steps if step.kind == "answer"]
    assert answers == ([episode.answer] if episode.status == "answered" else [])
    if protocol.valid(episode):
        assert all(step.valid for step in episode.steps[:-1])
