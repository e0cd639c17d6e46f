from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.protocols.prorag import TAGS, ProRAG, step_kind
from envs.requests import Done, Request
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Action, Document, Episode, Move, MoveKind, Turn
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer, question

PROTOCOL = ProRAG(byte_tokenizer())
QUERY, SUBANSWER, FINAL = (f"t</step>\n<{tag}>\nx</{tag}>" for tag in ("subquery", "subanswer", "answer"))


def turn(text: str, finish: str = "stop") -> Turn:
    ids = PROTOCOL.codec.control(text)
    return Turn("policy", (), ids, (0.0,) * len(ids), finish, "u", text=text)  # pyright: ignore[reportArgumentType]


def parsed(text: str) -> Action:
    return PROTOCOL.parse(Episode(question(), ()), turn(text))


def played(texts: list[str], documents: list[Document] | None = None, turns: int = 9) -> Episode:
    environment = RetrievalEnvironment(PROTOCOL, FixedRetriever(documents or [Document("d", "T", "text")]))
    generator = Scripted(PROTOCOL.codec.control, lambda e: texts[len(e.turns) % len(texts)])
    [episode] = rollout(environment, generator, [question()], seed=0)
    return episode


@pytest.mark.parametrize(("text", "kind"), [(QUERY, "query"), (SUBANSWER, "subanswer"), (FINAL, "answer")])
def test_each_kind_of_step_is_valid(text: str, kind: str) -> None:
    assert step_kind(text) == kind


@pytest.mark.parametrize(
    "text",
    [
        "t\n<subquery>\nq</subquery>",  # no </step>
        "t</step>\n<subquery>\n </subquery>",  # empty query
        " </step>\n<subquery>q</subquery>",  # empty thought
        "t</step><subquery>a</subquery><subquery>b</subquery>",  # two sub-queries
        "t</step><subquery>a<subquery>b</subquery>",
        "t</step><subquery>q</subquery><retrieval>made up</retrieval>",  # passages written by the policy
        "<retrieval>made up</retrieval>t</step><subquery>q</subquery>",
        "<step>t</step><subquery>q</subquery>",  # the scaffold's tag written again
        "t</step> and <subquery>q</subquery>",  # text between
        "t</step><subquery>q</subquery> and more",
        "t</step><subquery>q",  # never closed
        "t</STEP><subquery>q</subquery>",  # misspelt
        "t</step><subquery>q</ subquery >",
        "t</step><subquery>q</subanswer>",  # closed by another tag
        "<subquery>q</subquery>t</step>",  # wrong order
        "",
    ],
)
def test_anything_else_is_invalid(text: str) -> None:
    assert step_kind(text) is None


def test_html_of_no_protocol_is_ordinary_text() -> None:
    assert step_kind("is <i>x</i> < 3?</step><answer><b>42</b></answer>") == "answer"


@pytest.mark.parametrize(
    ("texts", "valid"),
    [
        ([QUERY, SUBANSWER, FINAL], True),
        ([FINAL], False),
        ([QUERY, FINAL], False),
        ([QUERY, SUBANSWER, QUERY, FINAL], False),
        ([QUERY, SUBANSWER, QUERY, SUBANSWER, FINAL], True),
        ([QUERY, QUERY, SUBANSWER, SUBANSWER, FINAL], False),
        ([QUERY, "t <subanswer>x</subanswer>", FINAL], False),
    ],
)
def test_whole_episodes(texts: list[str], valid: bool) -> None:
    assert PROTOCOL.valid(played(texts)) is valid


def test_the_released_codes_choice_accepts_an_answer_without_search() -> None:
    lenient = ProRAG(byte_tokenizer(), min_hops=0)
    assert lenient.valid(played([FINAL]))


def test_a_sloppy_turn_is_still_obeyed_but_not_valid() -> None:
    assert parsed("I search <subquery> who? </subquery>") == Action("query", "who?")
    assert parsed("<answer>Ada</answer>") == Action("answer", "Ada")
    assert parsed("t</step><subquery> </subquery>") == Action("invalid", "")
    assert parsed("no tags at all") == Action("invalid", "")


def test_the_answer_is_the_last_final_step() -> None:
    assert played([QUERY, "t</step><answer> Ada  </answer>"]).answer == "Ada"


def test_an_invalid_turn_goes_on_but_the_end_of_the_message_ends_the_episode() -> None:
    episode = Episode(question(), ())
    wrong = turn("mumble")
    wrong.action = parsed("mumble")
    episode.turns.append(wrong)
    assert isinstance(PROTOCOL.next(episode), Request)
    wrong.finish = "eos"
    assert PROTOCOL.next(episode) == Done("malformed")


def test_the_context_reads_as_the_format_says() -> None:
    episode = played([QUERY, SUBANSWER, FINAL], [Document("d", "Title", "body")])
    text = PROTOCOL.codec.decode(episode.context()[len(episode.prompt_ids) :])
    assert text == (
        "<step>\nt</step>\n<subquery>\nx</subquery>\n<retrieval>\nDoc 1(Title: Title) body\n</retrieval>"
        "\n<step>\nt</step>\n<subanswer>\nx</subanswer>\n<step>\nt</step>\n<answer>\nx</answer>"
    )


def test_the_prompt_comes_from_the_chat_template_and_holds_the_question() -> None:
    text = PROTOCOL.codec.decode(PROTOCOL.prompt(question("Who wrote <answer>?")))
    assert text.startswith("<|im_start|>user\nAnswer the question step by step.")
    assert text.endswith("Question: Who wrote &lt;answer>?<|im_end|>\n<|im_start|>assistant\n")


words = st.text(st.characters(exclude_characters="<>", exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@given(words, words, st.sampled_from([("search", "query"), ("read", "subanswer"), ("conclude", "answer")]))
def test_the_first_move_is_written_validly_and_parses_back(
    thought: str, text: str, kinds: tuple[MoveKind, str]
) -> None:
    move, kind = kinds
    written = PROTOCOL.say(Episode(question(), ()), [Move(move, text, thought), Move("search", "more", "next")])
    assert step_kind(written) == kind
    assert parsed(written) == Action(kind, text.strip())


@given(st.lists(st.sampled_from([*TAGS, "t", " ", "\n", "<", ">", "</", "step", "<i>", "</ Step>"]), max_size=9))
def test_no_text_is_both_unparsable_and_valid(parts: list[str]) -> None:
    text = "".join(parts)
    kind = step_kind(text)
    if kind is not None:
        assert parsed(text).kind == kind
        assert sum(text.count(tag) for tag in TAGS) == 3


def test_a_tag_in_what_a_teacher_writes_stays_text() -> None:
    written = PROTOCOL.say(Episode(question(), ()), [Move("conclude", "x</answer>y<answer>", "see <step>")])
    assert step_kind(written) == "answer"
    assert parsed(written).text == "x&lt;/answer>y&lt;answer>"


def test_a_step_shows_its_query_or_its_claim_and_what_was_said() -> None:
    search, claim, broken, answer = PROTOCOL.steps(played([QUERY, SUBANSWER, "mumble", FINAL]))
    assert (search.query, search.claim, search.said, len(search.hits)) == ("x", "", QUERY, 1)
    assert (claim.query, claim.claim, claim.said) == ("", "x", SUBANSWER)
    assert (broken.query, broken.claim, broken.said, broken.valid) == ("", None, "mumble", False)
    assert (answer.kind, answer.claim) == ("answer", "x")
