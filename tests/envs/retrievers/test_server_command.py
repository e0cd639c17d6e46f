"""The command that serves a corpus: from start to stop, and every wrong way to start it."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from envs.retrievers.http import HTTPRetriever
from envs.retrievers.server import _component, listen, main
from envs.types import Document, Hit

RIVERS = [
    Document("1", "Nile", "The Nile is a river of Africa."),
    Document("2", "Danube", "It flows through Vienna."),
    Document("3", "Amazon", "No river carries more water."),
]


def start(*arguments: str, files: int | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "envs.retrievers.server", *arguments, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if files is not None:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (files, files))
    return server


def test_the_command_serves_a_corpus_until_it_is_told_to_stop(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": d.id, "title": d.title, "text": d.text}) + "\n" for d in RIVERS))
    server = start("bm25", "--corpus", str(corpus), "--cache", str(tmp_path / "cache"))
    assert server.stdout is not None
    url = server.stdout.readline().split()[-1]
    client = HTTPRetriever(url, backoff=0.05)
    assert [[hit.document for hit in hits] for hits in client.search(["nile", "through Vienna"], 1)] == [
        [RIVERS[0]],
        [RIVERS[1]],
    ]
    assert client.identity.startswith("bm25-")
    server.send_signal(signal.SIGTERM)
    assert server.communicate(timeout=10) == ("", "")
    assert server.returncode == 0


def test_half_open_connections_beyond_its_files_neither_stop_it_nor_fill_its_log(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": d.id, "title": d.title, "text": d.text}) + "\n" for d in RIVERS))
    server = start("bm25", "--corpus", str(corpus), "--cache", str(tmp_path / "cache"), files=200)
    assert server.stdout is not None
    url = server.stdout.readline().split()[-1]
    host, port = url.removeprefix("http://").removesuffix("/retrieve").split(":")
    head = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
    with ExitStack() as stack:
        for number in range(400):
            connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            with suppress(ConnectionError):  # it may have made room already
                connection.sendall(head if number % 2 else b"")
        hits = HTTPRetriever(url, retries=0).search(["nile"], 1)
        assert [hit.document for hit in hits[0]] == RIVERS[:1]
        began = time.monotonic()
        server.send_signal(signal.SIGTERM)
        assert server.communicate(timeout=10) == ("", "")
        assert time.monotonic() < began + 4
    assert server.returncode == 0


def test_a_search_that_never_ends_does_not_keep_a_stopped_server_alive(tmp_path: Path) -> None:
    spec = {"target": "tests.envs.retrievers.test_server_command:Endless"}
    server = start("component", "--json", json.dumps(spec))
    assert server.stdout is not None
    url = server.stdout.readline().split()[-1]
    host, port = url.removeprefix("http://").removesuffix("/retrieve").split(":")
    body = b'{"queries": ["a"]}'
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert server.stdout.readline() == "searching\n"
        server.send_signal(signal.SIGTERM)
        assert b'{"error": "the server stops"}' in b"".join(iter(lambda: client.recv(4096), b""))
    assert server.communicate(timeout=10) == ("", "")
    assert server.returncode == 0


def test_a_component_may_be_made_of_others(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": d.id, "title": d.title, "text": d.text}) + "\n" for d in RIVERS))
    parts = {
        name: {"target": "envs.retrievers.bm25:BM25", "corpus": str(corpus), "k1": k1}
        for name, k1 in (("a", 1), ("b", 2))
    }
    hybrid = _component(json.dumps({"target": "envs.retrievers.hybrid:Hybrid", "parts": parts}))
    assert hybrid.search(["through Vienna"], 1) == [[Hit(RIVERS[1], 2 / 61)]]


class Endless:
    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        print("searching", flush=True)
        threading.Event().wait()
        return []


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_seconds_that_are_no_time_are_refused(seconds: str, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["bm25", "--corpus", "nowhere.jsonl", "--request-seconds", seconds])
    assert "argument --request-seconds: invalid" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["bm25", "--corpus", "nowhere.jsonl"], "nowhere.jsonl"),
        (["component", "--json", "{"], "JSONDecodeError"),
        (["component", "--json", "[]"], 'expected {"target": "package.module:name", ...}'),
        (["component", "--json", "{}"], 'expected {"target": "package.module:name", ...}'),
        (["component", "--json", '{"target": "no.such:Thing"}'], "No module named 'no'"),
        (["component", "--json", '{"target": "envs.retrievers.http:Thing"}'], "no attribute 'Thing'"),
        (["component", "--json", '{"target": "envs.retrievers.http:HTTPRetriever"}'], "'url'"),
        (
            ["component", "--json", '{"target": "envs.retrievers.http:HTTPRetriever", "url": 3}'],
            '"url": 3}: TypeError: ',
        ),
        (["component", "--json", '{"target": "collections:Counter"}'], "Counter has no method search(queries, k)"),
    ],
)
def test_a_wrong_command_ends_in_one_line(arguments: list[str], complaint: str, capsys) -> None:
    assert main([*arguments, "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert complaint in error
    assert error.count("\n") == 1


def test_bars_of_libraries_are_quiet_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "")  # restored after the test
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert main(["bm25", "--corpus", "nowhere.jsonl", "--port", "0"]) == 2
    assert os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] == "1"


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 99999), ("no.such.host.invalid", 0)])
def test_an_address_that_cannot_be_served_is_named(host: str, port: int, capsys) -> None:
    assert main(["bm25", "--corpus", "nowhere.jsonl", "--host", host, "--port", str(port)]) == 2
    assert f"error: cannot serve at {host}:{port}: " in capsys.readouterr().err


def test_a_port_that_is_taken_is_found_before_the_corpus_is_read(capsys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["bm25", "--corpus", "nowhere.jsonl", "--port", str(port)]) == 2
    assert f"cannot serve at 127.0.0.1:{port}: " in capsys.readouterr().err


def test_no_answer_waits_for_the_packet_before_it() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
