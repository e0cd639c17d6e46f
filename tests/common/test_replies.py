"""Replies that several clients share: each call is paid once, caps hold for all, and a kill leaves no claim."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from common.chat_client import ChatError
from common.replies import CapReached, Caps, Replies, Reply
from tests.chat_server import chat_server
from tests.common.test_chat_client import calls, client, echo, said

FREE = Caps(None, None)
SIXTY = [str(number) for number in range(60)]
SCRIPT = """
import json, sys
from pathlib import Path
from common.chat_client import ChatError
from tests.common.test_chat_client import calls, client, said
url, folder, settings = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
try:
    print(client(url, folder, timeout=60.0, **settings).ask(calls(*map(str, range(60))), said))
except ChatError as error:
    print(error)
"""


def process(url: str, folder: Path, settings: str = "{}") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, url, str(folder), settings]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": "."}, stdout=subprocess.PIPE, text=True)


def slowly(user: str) -> dict[str, str]:
    time.sleep(0.03)
    return echo(user)


def test_processes_with_one_cache_pay_for_each_call_once(tmp_path: Path) -> None:
    with chat_server(slowly) as server:
        both = [process(server.url, tmp_path) for _ in range(2)]
        outputs = [one.communicate(timeout=60)[0] for one in both]
        assert outputs == [f"{SIXTY}\n"] * 2
        assert len(server.calls) == 60


def test_a_cap_holds_for_all_processes_together(tmp_path: Path) -> None:
    with chat_server(slowly) as server:
        both = [process(server.url, tmp_path, '{"max_calls": 30}') for _ in range(2)]
        for one in both:
            assert "max_calls 30 reached: 30 replies of 300 tokens" in one.communicate(timeout=60)[0]
        assert len(server.calls) == 30


def test_a_killed_process_leaves_no_claim_and_no_file(tmp_path: Path) -> None:
    def stuck(user: str) -> dict[str, str]:
        time.sleep(0 if int(user) < 5 else 30)
        return echo(user)

    with chat_server(stuck) as server, process(server.url, tmp_path, '{"concurrency": 8}') as first:
        while len(server.calls) < 13:
            assert first.poll() is None
            time.sleep(0.02)
        first.send_signal(signal.SIGKILL)
    with chat_server(echo) as server:
        start = time.monotonic()
        assert client(server.url, tmp_path, max_calls=60).ask(calls(*SIXTY), said) == SIXTY
        assert time.monotonic() - start < 20, "no waiting for the dead"
        assert len(server.calls) == 55
    assert not list((tmp_path / "cache").glob("replies.sqlite.*.lock"))


@pytest.fixture
def store(tmp_path: Path) -> Replies:
    return Replies(tmp_path / "replies.sqlite")


def test_a_call_is_claimed_once_until_it_is_paid_or_released(store: Replies) -> None:
    with store.owner() as one, store.owner() as other:
        assert store.claim("a", one, 10, FREE)
        assert not store.claim("a", other, 10, FREE)
        assert not store.claim("a", one, 10, FREE), "nor twice by one: another thread makes it"
        store.release("a")
        assert store.claim("a", other, 10, FREE)
        store.put("a", "text", 7, cut=True)
        assert not store.claim("a", one, 10, FREE)
        assert store.get("a") == Reply("text", cut=True)
        store.put("b", "text", 7)
        assert store.get("b") == Reply("text", cut=False)


def test_what_a_killed_owner_left_is_dropped_and_nothing_of_others(store: Replies) -> None:
    left = store.path.with_name("replies.sqlite.1-abc.lock")
    left.touch()
    with store.opened() as db:
        db.execute("insert into claims values ('a', '1-abc', 10)")
    with store.owner() as one, store.owner() as other:
        assert not left.exists()
        assert store.path.with_name(f"replies.sqlite.{one}.lock").exists()
        assert store.claim("a", one, 10, FREE)
        assert not store.claim("a", other, 10, FREE)


def test_what_an_owner_leaves_is_free(store: Replies) -> None:
    with store.owner() as one:
        assert store.claim("a", one, 10, FREE)
    assert not list(store.path.parent.glob("replies.sqlite.*.lock"))
    with store.owner() as other:
        assert store.claim("a", other, 10, FREE)


def test_claims_count_against_a_cap_on_calls(store: Replies) -> None:
    with store.owner() as one, store.owner() as other:
        assert store.claim("a", one, 10, Caps(2, None))
        assert store.claim("b", one, 10, Caps(2, None))
        assert not store.claim("c", other, 10, Caps(2, None)), "a call in flight may fail"
        store.release("b")
        store.put("a", "text", 7)
        assert store.claim("c", other, 10, Caps(2, None))
        store.put("c", "text", 7)
        with pytest.raises(CapReached, match=r"^max_calls 2 reached: 2 replies of 14 tokens are paid for"):
            store.claim("d", one, 10, Caps(2, None))


def test_claims_count_against_a_cap_on_tokens(store: Replies) -> None:
    caps = Caps(None, 20)
    with store.owner() as one, store.owner() as other:
        assert store.claim("a", one, 99, caps), "exceeded by at most one reply"
        assert not store.claim("b", other, 1, caps)
        store.put("a", "text", 7)
        assert store.claim("b", other, 10, caps)
        assert store.claim("c", other, 3, caps), "7 paid for and 10 in flight leave 3"
        assert not store.claim("d", other, 1, caps)
        store.put("b", "text", 13)
        with pytest.raises(CapReached, match=r"^max_tokens 20 reached: 2 replies of 20 tokens"):
            store.claim("d", one, 10, caps)


def test_a_cache_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "replies.sqlite")) as db, db:
        db.execute("create table replies (key text primary key, reply text, tokens integer) without rowid")
        db.execute("insert into replies values ('a', 'text', 7)")
    assert Replies(tmp_path / "replies.sqlite").get("a") == Reply("text", cut=False)


def test_two_clients_of_one_process_pay_once_and_a_failed_call_is_made_by_the_other(tmp_path: Path) -> None:
    with chat_server(slowly) as server, ThreadPoolExecutor(2) as pool:
        work = [pool.submit(client(server.url, tmp_path).ask, calls(*SIXTY[:20]), said) for _ in range(2)]
        assert [one.result() for one in work] == [SIXTY[:20]] * 2
        assert len(server.calls) == 20
        server.faults[:] = [400]
        work = [pool.submit(client(server.url, tmp_path).ask, calls("new"), said) for _ in range(2)]
        assert sorted(map(str, (one.result() for one in work))) == ["['new']", "[None]"]


def test_a_cap_waits_for_calls_in_flight_and_says_what_is_paid(tmp_path: Path) -> None:
    with chat_server(slowly, None, 400) as server:
        one = client(server.url, tmp_path, max_calls=3, concurrency=8, retries=0)
        with pytest.raises(ChatError, match="max_calls 3 reached: 3 replies of 30 tokens"):
            one.ask(calls(*"abcde"), said)
        assert len(server.calls) == 4, "the one that failed was not paid for"


def test_useless_replies_are_paid_once_by_two_clients_too(tmp_path: Path) -> None:
    def useless(user: str) -> str:
        time.sleep(0.5 if len(server.calls) == 1 else 0.0)  # until the other client has come too
        return "no JSON"

    with chat_server(useless) as server, ThreadPoolExecutor(2) as pool:
        work = [pool.submit(client(server.url, tmp_path).ask, calls("a"), said) for _ in range(2)]
        assert [one.result() for one in work] == [[None]] * 2
        assert len(server.calls) == 3
