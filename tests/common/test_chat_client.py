"""The chat client against a server that misbehaves."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.chat_client import ChatCall, ChatClient, ChatError
from common.errors import ConfigError
from tests.chat_server import chat_server, completion


def calls(*texts: str) -> list[ChatCall]:
    return [ChatCall("Say it back.", text) for text in texts]


def said(reply: dict) -> str:
    return reply["said"]


def echo(user: str) -> dict[str, str]:
    return {"said": user}


def client(url: str, tmp_path: Path, **settings) -> ChatClient:
    return ChatClient("m", url, **{"cache": str(tmp_path / "cache"), "retries": 2, "timeout": 5.0} | settings)


def test_replies_come_in_the_order_of_the_calls_whatever_arrives_first(tmp_path: Path) -> None:
    def slow_first(user: str) -> dict[str, str]:
        time.sleep(0.2 if user == "a" else 0.0)
        return echo(user)

    with chat_server(slow_first) as server:
        assert client(server.url, tmp_path).ask(calls(*"abcdefgh"), said) == list("abcdefgh")
        [first, *_] = server.calls
    assert first["model"] == "m"
    assert first["temperature"] == 0
    assert first["response_format"] == {"type": "json_object"}
    assert first["messages"][0] == {"role": "system", "content": "Say it back."}


def test_a_second_run_pays_only_for_what_is_missing(tmp_path: Path) -> None:
    with chat_server(echo) as server:
        client(server.url, tmp_path).ask(calls("a", "b"), said)
        again = client(server.url, tmp_path)
        assert again.ask(calls("a", "b", "c", "c"), said) == ["a", "b", "c", "c"]
        assert len(server.calls) == 3
    assert again.counts == {"cached": 2, "paid": 1}


def test_model_prompt_and_settings_are_part_of_the_question(tmp_path: Path) -> None:
    with chat_server(echo) as server:
        one = client(server.url, tmp_path)
        one.ask(calls("a"), said)
        one.ask([ChatCall("Say it back again.", "a")], said)
        client(server.url, tmp_path, temperature=0.5).ask(calls("a"), said)
        ChatClient("other", server.url, cache=str(tmp_path / "cache")).ask(calls("a"), said)
        assert len(server.calls) == 4


@pytest.mark.parametrize("fault", [429, 500, 503, "late", "nonsense", "cut"])
def test_passing_faults_and_useless_replies_are_tried_again(tmp_path: Path, fault: int | str) -> None:
    with chat_server(echo, fault) as server:
        assert client(server.url, tmp_path, timeout=1.0 if fault == "late" else 5.0).ask(calls("a"), said) == ["a"]
        assert len(server.calls) == 2


@pytest.mark.parametrize("reply", ["[1]", "no JSON", {"other": 1}, ""])
def test_a_reply_that_stays_useless_is_a_counted_failure_and_asked_for_again_by_a_later_run(
    tmp_path: Path, reply: object
) -> None:
    with chat_server(lambda user: reply if user == "bad" else echo(user)) as server:
        one = client(server.url, tmp_path)
        assert one.ask(calls("a", "bad", "b"), said) == ["a", None, "b"]
        assert one.counts["failed: invalid reply"] == 1
        assert len(server.calls) == 5
        assert one.ask(calls("a", "bad", "b"), said) == ["a", None, "b"]
        assert len(server.calls) == 5, "not by the same client"
        with pytest.raises(ChatError, match="max_calls 6 reached"):
            client(server.url, tmp_path, max_calls=6).ask(calls("bad"), said)
        assert len(server.calls) == 6, "within the caps"
    with chat_server(echo) as mended:
        later = client(mended.url, tmp_path)
        assert later.ask(calls("a", "bad", "b"), said) == ["a", "bad", "b"]
        assert later.counts == {"cached": 6, "paid": 1}
        assert client(mended.url, tmp_path).ask(calls("bad"), said) == ["bad"]
        assert len(mended.calls) == 1


def test_useless_replies_without_end_stop_the_work_and_show_one(tmp_path: Path) -> None:
    steps = calls(*(f"step {number}" for number in range(200)))
    with chat_server(lambda user: "I would say:\x1b[2J 80 of 100 \u202e" + "!" * 400) as server:
        one = client(server.url, tmp_path, retries=4, concurrency=1)
        for step in steps[:9]:  # an `ask` a step, as an agent is judged
            assert one.ask([step], said) == [None]
        with pytest.raises(ChatError) as caught:
            one.ask([steps[9]], said)
        assert len(server.calls) == 10 * 5
        with pytest.raises(ChatError, match="10 calls failed in a row"):
            client(server.url, tmp_path / "other", retries=4, concurrency=8).ask(steps, said)
        assert len(server.calls) <= 50 + 10 * 5 + 7 * 5
    line = str(caught.value)
    assert re.search(r"^m at http\S+: 10 calls failed in a row, the last: invalid replies, such as: no JSON", line)
    assert r"I would say:\x1b[2J 80 of 100 \u202e!!" in line
    assert "check json_mode, reply_tokens 1024 and whether the model follows the format" in line
    assert line.endswith("replies so far are cached, run again to resume")
    assert len(line) < 700
    assert line.isprintable()


def test_failures_count_in_a_row_and_a_success_starts_the_count_anew(tmp_path: Path) -> None:
    with chat_server(echo, *[500, 500, None] * 2, 500, 400, 500) as server:
        one = client(server.url, tmp_path, retries=0, concurrency=1, max_failures=3)
        with pytest.raises(ChatError, match="3 calls failed in a row"):
            one.ask(calls(*"abcdefghijk"), said)
        assert len(server.calls) == 9


def test_failures_count_over_several_rounds(tmp_path: Path) -> None:
    with chat_server(echo, 500, None, 500, None, 500, 500) as server:
        one = client(server.url, tmp_path, retries=0, concurrency=1, max_failures=2)
        assert [one.ask(calls(*pair), said) for pair in ("ab", "cd")] == [[None, "b"], [None, "d"]]
        with pytest.raises(ChatError, match="no call was answered"):
            one.ask(calls("e"), said)
        with pytest.raises(ChatError, match="2 calls failed in a row"):
            one.ask(calls("f"), said)


@pytest.mark.parametrize("between", ["known", "useless"])
def test_neither_a_cached_nor_a_useless_reply_is_a_success(tmp_path: Path, between: str) -> None:
    with chat_server(lambda user: "no JSON" if user == "useless" else echo(user)) as server:
        client(server.url, tmp_path).ask(calls("known"), said)
        server.faults += [500, 500] if between == "known" else [500, None, 500]
        one = client(server.url, tmp_path, retries=0, concurrency=1, max_failures=2 if between == "known" else 3)
        with pytest.raises(ChatError, match=r"calls failed in a row, the last: .*fault 500"):
            one.ask(calls("a", between, "c", "d"), said)


def test_a_draft_in_a_reply_that_was_cut_is_no_reply_now_nor_from_the_cache(tmp_path: Path) -> None:
    body = completion('Perhaps {"said": "draft"} but')
    body["choices"][0]["finish_reason"] = "length"
    with chat_server(echo, body) as server:
        assert client(server.url, tmp_path, retries=0).ask(calls("a"), said) == [None]
        assert client(server.url, tmp_path).ask(calls("a"), said) == ["a"]


def test_a_page_in_place_of_a_completion_is_never_kept_as_a_reply(tmp_path: Path) -> None:
    with chat_server(echo, "nonsense") as server:
        one = client(server.url, tmp_path, retries=0)
        with pytest.raises(ChatError, match=r"no call was answered, .*: the server answered 200 with something"):
            one.ask(calls("a"), said)
        assert one.counts == {"failed: no completion": 1}
        assert client(server.url, tmp_path).ask(calls("a"), said) == ["a"]


def test_an_item_without_an_answer_is_none_and_asked_for_again_next_time(tmp_path: Path) -> None:
    with chat_server(echo, 500, 500) as server:
        one = client(server.url, tmp_path, retries=1, concurrency=1)
        assert one.ask(calls("a", "b"), said) == [None, "b"]
        assert one.counts == {"failed: status 500": 1, "paid": 1}
        assert client(server.url, tmp_path).ask(calls("a", "b"), said) == ["a", "b"]


def test_an_outage_of_a_whole_round_is_no_failure_of_its_items(tmp_path: Path) -> None:
    with chat_server(lambda user: "no JSON" if user == "bad" else echo(user), *[500] * 2) as server:
        one = client(server.url, tmp_path, retries=0)
        with pytest.raises(ChatError, match=r"^m at http\S+: no call was answered, .*fault 500; run again to resume$"):
            one.ask(calls("a", "bad"), said)
        assert one.ask(calls("bad"), said) == [None]
        assert one.ask(calls("bad"), said) == [None]  # useless for good: kept, and no outage


def test_an_outage_ends_the_work_with_one_clear_line(tmp_path: Path) -> None:
    with chat_server(echo, *[500] * 99) as server:
        one = client(server.url, tmp_path, retries=0, concurrency=1, max_failures=3)
        with pytest.raises(ChatError, match=r"^m at http\S+: 3 calls failed in a row.*fault 500.*run again to resume$"):
            one.ask(calls(*"abcdefgh"), said)
        assert len(server.calls) == 3


def test_a_server_that_is_not_there_is_the_same(tmp_path: Path) -> None:
    with chat_server(echo) as server:
        url = server.url
    with pytest.raises(ChatError, match="2 calls failed in a row"):
        client(url, tmp_path, retries=0, max_failures=2).ask(calls("a", "b", "c"), said)


def test_a_refused_key_ends_the_work_at_once(tmp_path: Path) -> None:
    with chat_server(echo, *[401] * 99) as server:
        with pytest.raises(ChatError, match=r"rejects the call: .*fault 401; check model, base_url and OPENAI_API_KEY"):
            client(server.url, tmp_path, concurrency=1).ask(calls(*"abcd"), said)
        assert len(server.calls) == 1


def test_the_key_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    with chat_server(echo) as server:
        client(server.url, tmp_path, api_key_env="MY_KEY").ask(calls("a"), said)
        assert server.keys == ["Bearer secret"]
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(ChatError, match="set the environment variable MY_KEY"):
        ChatClient("m", cache=str(tmp_path / "other"), api_key_env="MY_KEY").ask(calls("a"), said)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_cap_on_calls_ends_the_work_and_a_raised_one_goes_on(tmp_path: Path, concurrency: int) -> None:
    with chat_server(echo) as server:
        with pytest.raises(ChatError, match=r"^max_calls 3 reached: \d replies of \d+ tokens are paid for.*run again"):
            client(server.url, tmp_path, max_calls=3, concurrency=concurrency).ask(calls(*"abcde"), said)
        assert len(server.calls) == 3
        with pytest.raises(ChatError, match="max_calls 3 reached: 3 replies of 30 tokens"):  # by a restart too
            client(server.url, tmp_path, max_calls=3).ask(calls(*"abcde"), said)
        assert client(server.url, tmp_path, max_calls=5).ask(calls(*"abcde"), said) == list("abcde")
        assert len(server.calls) == 5


def test_what_is_cached_costs_nothing_under_a_cap(tmp_path: Path) -> None:
    with chat_server(echo) as server:
        for _ in range(2):
            assert client(server.url, tmp_path, max_calls=2, max_tokens=20).ask(calls("a", "b"), said) == ["a", "b"]


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_cap_on_tokens_ends_the_work(tmp_path: Path, concurrency: int) -> None:
    with chat_server(echo) as server:
        with pytest.raises(ChatError, match="max_tokens 25 reached: 3 replies of 30 tokens"):
            client(server.url, tmp_path, max_tokens=25, concurrency=concurrency).ask(calls(*"abcde"), said)
        assert len(server.calls) == 3


def test_a_call_may_cost_its_prompt_and_its_longest_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with chat_server(echo) as server:
        one, reserved = client(server.url, tmp_path, reply_tokens=100), []
        monkeypatch.setattr(one._replies, "claim", lambda key, owner, tokens, caps: reserved.append(tokens) or True)
        one.ask([ChatCall("s" * 17, "u" * 23)], said)
    assert reserved == [10 + 100]


def test_a_killed_run_keeps_every_reply_that_arrived(tmp_path: Path) -> None:
    def stuck_at_e(user: str) -> dict[str, str]:
        time.sleep(30 if user == "e" else 0)
        return echo(user)

    script = (
        "import sys; from tests.common.test_chat_client import *; "
        "client(sys.argv[1], Path(sys.argv[2]), concurrency=1, timeout=60.0).ask(calls(*'abcdefg'), said)"
    )
    with chat_server(stuck_at_e) as server:
        command = [sys.executable, "-c", script, server.url, str(tmp_path)]
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": "."}) as process:
            while len(server.calls) < 5:
                assert process.poll() is None
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
    with chat_server(echo) as server:
        assert client(server.url, tmp_path).ask(calls(*"abcdefg"), said) == list("abcdefg")
        assert len(server.calls) == 3


@pytest.mark.parametrize(
    "setting", [{"timeout": 0}, {"timeout": math.nan}, {"concurrency": 0}, {"retries": -1}, {"temperature": -1}]
)
def test_settings_out_of_range_are_refused(tmp_path: Path, setting: dict) -> None:
    with pytest.raises(ConfigError, match="chat client"):
        client("http://127.0.0.1:9/v1", tmp_path, **setting)


@pytest.mark.parametrize("url", ["127.0.0.1:8000/v1", "http://", "http://host/v1?key=1", "http://host:99999/v1"])
def test_an_address_that_cannot_be_one_is_refused_at_once(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="chat client: give an address like"):
        client(url, tmp_path)
    assert not (tmp_path / "cache").exists()


def test_a_reply_that_cannot_be_kept_ends_the_work_and_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("disk full")

    with chat_server(echo) as server:
        one = client(server.url, tmp_path, max_tokens=2000, concurrency=4)
        monkeypatch.setattr(one._replies, "put", full)
        with pytest.raises(OSError, match="disk full"):
            one.ask(calls(*"abcdef"), said)
