"""Where a turn ends: at its last given token, at an end of message, a stop string or its limit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.requests import Request
from envs.types import Episode
from modules.samplers.running_request import RunningRequest, StopTags
from tests.tiny import byte_tokenizer, question

TEXTS = ["a", "b", "</", "x>", ">", "$"]
END = 5
TOKENIZER = byte_tokenizer()


def decode(ids: Any) -> str:
    return "".join(TEXTS[token] for token in ids)


def opened(limit: int = 9, stop: tuple[str, ...] = ("</x>",), **request: Any) -> RunningRequest:
    asked = Request(Episode(question(), (0, 0)), (1,), stop, **request)
    return RunningRequest(0, asked, asked.prefix(), limit, StopTags(stop, TEXTS, decode), 1.0, 1.0)


def taken(turn: RunningRequest, *ids: int) -> list[str | None]:
    """How the turn had ended after each token."""
    finishes = []
    for token in ids:
        turn.take(token, -1.0, frozenset([END]))
        finishes.append(turn.finish)
    return finishes


@pytest.mark.parametrize(
    ("turn", "ids", "finishes"),
    [
        (opened(), (0, 2, 3), [None, None, "stop"]),  # a stop string of two tokens
        (opened(), (2, 0, 3), [None, None, None]),
        (opened(), (0, END), [None, "eos"]),
        (opened(limit=3), (0, 1, 0), [None, None, "length"]),
        (opened(limit=2), (2, 3), [None, "stop"]),  # at the limit, but whole
        (opened(limit=1), (END,), ["eos"]),
        (opened(stop=("$",)), (END,), ["eos"]),  # both: the message is over
        (opened(forced_ids=(2, 3, END, 0)), (2, 3, END, 0), [None, None, None, "stop"]),
        (opened(limit=2, forced_ids=(0, 1, 0)), (0, 1, 0), [None, None, "stop"]),
        (opened(first_ids=(2, 3, 0)), (2, 3, 0, 2, 3), [None, None, None, None, "stop"]),
        (opened(first_ids=(0, 2, 3)), (0, 2, 3), [None, None, "stop"]),  # its beginning may be all of it
        (opened(limit=2, first_ids=(0, 1)), (0, 1), [None, "length"]),
        (opened(limit=3, first_ids=(0, 1)), (0, 1, 0), [None, None, "length"]),
        (opened(first_ids=(0, END)), (0, END), [None, "eos"]),
    ],
)
def test_a_turn_ends_where_it_should(turn: RunningRequest, ids: tuple[int, ...], finishes: list[str | None]) -> None:
    assert taken(turn, *ids) == finishes


def test_a_turn_that_restarts_has_its_prefix_and_what_is_given_alone() -> None:
    turn = opened(first_ids=(0, 1))
    taken(turn, 0, 1, END)
    assert (turn.tokens, turn.logps, turn.finish) == (6, [-1.0] * 3, "eos")
    turn.restart()
    assert (turn.tokens, turn.ids, turn.logps, turn.finish, turn.end, turn.given) == (3, [], [], None, None, (0, 1))
    assert opened(forced_ids=(1,)).given == (1,)
    assert opened().given == ()


def test_stop_tags_are_found_as_tokens_and_across_token_borders() -> None:
    texts = TOKENIZER.batch_decode([[i] for i in range(len(TOKENIZER))])
    stops = StopTags(("</answer>", "end."), texts, TOKENIZER.decode)
    token, plain = TOKENIZER("x</answer>").input_ids, TOKENIZER("x</answer>", split_special_tokens=True).input_ids
    assert len(token) == 2
    assert len(plain) == 10
    for ids in (token, plain, TOKENIZER("the end.").input_ids):
        assert [stops.ended(ids[: i + 1]) for i in range(len(ids))] == [False] * (len(ids) - 1) + [True]
    assert not stops.ended(TOKENIZER("a > b", split_special_tokens=True).input_ids[:3])


@given(st.text("</answer>xd.n ", max_size=30))
def test_a_turn_ends_at_the_first_moment_a_stop_string_is_complete(text: str) -> None:
    texts = TOKENIZER.batch_decode([[i] for i in range(len(TOKENIZER))])
    stops = StopTags(("</answer>", "end."), texts, TOKENIZER.decode)
    ids = TOKENIZER(text, split_special_tokens=True).input_ids
    first = next((i for i in range(len(ids)) if stops.ended(ids[: i + 1])), None)
    ends = [i for i in range(len(text)) if text[: i + 1].endswith(("</answer>", "end."))]
    assert first == (ends[0] if ends else None)


def test_a_token_that_runs_past_the_tag_still_stops() -> None:
    pieces = {0: "</ans", 1: "wer>\n", 2: ">", 3: "x"}
    stops = StopTags(("</answer>",), list(pieces.values()), lambda ids: "".join(pieces[i] for i in ids))
    assert [stops.ended(ids) for ids in ([0], [0, 1], [3, 2], [0, 2])] == [False, True, False, False]
