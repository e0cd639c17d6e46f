"""Costs of chat models: what a stage used, in this life and before, and what it paid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common import progress
from common.api_costs import api_costs, api_text
from common.errors import ConfigError
from common.progress import Progress
from common.replies import Replies, Use
from tests.chat_server import chat_server
from tests.common.test_chat_client import calls, client, echo, said

PRICE = {"prompt": 2.5, "completion": 10.0}


def working(monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    monkeypatch.setattr(progress, "_CURRENT", Progress("stage", work))


def test_a_stage_counts_each_call_once_and_pays_for_what_was_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with chat_server(echo) as server:
        working(monkeypatch, "teach-1")
        client(server.url, tmp_path).ask(calls("a", "b"), said)
        again = client(server.url, tmp_path, price=PRICE)  # the same stage after a kill
        again.ask(calls("a", "b", "c"), said)
        first = api_costs([again, "another component", client(server.url, tmp_path)], "teach-1")
        working(monkeypatch, "judge-2")
        again.ask(calls("c", "d"), said)
        second = api_costs([again], "judge-2")
        assert api_costs([again], "another") == {}
    [[prompt, completion]] = {
        (one["prompt_tokens"] // one["calls"], one["completion_tokens"] // one["calls"])
        for one in (first["m"], second["m"])
    }
    assert prompt + completion == 10
    cost = (2.5 * prompt + 10.0 * completion) / 1e6
    assert [*first["m"].values()][:5] == [3, 0, 3 * prompt, 3 * completion, 0]
    assert (second["m"]["calls"], second["m"]["cached_calls"], second["m"]["cached_tokens"]) == (2, 1, 10)
    assert (first["m"]["usd"], second["m"]["usd"]) == pytest.approx((3 * cost, cost), abs=1e-6)


def test_replies_of_earlier_versions_are_split_by_their_length(tmp_path: Path) -> None:
    replies = Replies(tmp_path / "replies.sqlite")
    replies.put("old", "x" * 40, 100)
    with replies.opened() as db:
        db.execute("delete from completions")
    replies.note(["old"], Use("stage", "m"))
    used = replies.spent(Use("stage", "m"))
    assert (used.calls, used.prompt_tokens, used.completion_tokens, used.paid_calls) == (1, 89, 11, 0)


def test_the_phrase_of_a_report() -> None:
    spent: dict[str, Any] = {"calls": 1200, "cached_calls": 20, "prompt_tokens": 130_000, "completion_tokens": 9000}
    text = "gpt: 1,200 calls (20 cached), 130,000 prompt and 9,000 completion tokens"
    assert api_text({"gpt": spent}) == [text]
    assert api_text({"gpt": spent | {"usd": 0.415}}) == [f"{text}, $0.41"]


@pytest.mark.parametrize(
    "price", [{"prompt": 1}, {"prompt": -1, "completion": 1}, {"prompt": 1, "completion": 1, "x": 1}]
)
def test_a_price_names_both_kinds_of_tokens(tmp_path: Path, price: dict[str, float]) -> None:
    with pytest.raises(
        ConfigError, match=r"price .* must be \{prompt: dollars, completion: dollars\} a million tokens"
    ):
        client("http://127.0.0.1:1/v1", tmp_path, price=price)
