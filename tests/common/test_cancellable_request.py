"""A call that is given up ends its connection, with and without encryption."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import httpx
import pytest

from common.cancellable_request import CancellableRequest

Wrap = Callable[[socket.socket], socket.socket]


def certified(folder: Path) -> ssl.SSLContext:
    """A server's side of TLS, with a certificate that it has signed itself."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    names = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem"))
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost")
    subprocess.run(["openssl", "req", "-x509", *curve, *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_call_that_is_given_up_ends_its_connection(tmp_path: Path, scheme: str) -> None:
    """The server reads a request and never answers; it sees that its client is gone, who gets an error."""
    context = certified(tmp_path) if scheme == "https" else None
    listener = socket.create_server(("127.0.0.1", 0))
    asked, gone, failed = Event(), Event(), Event()
    call = CancellableRequest()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection if context is None else context.wrap_socket(connection, server_side=True) as stream:
            stream.recv(65536)
            asked.set()
            while stream.recv(65536):
                pass
            gone.set()

    def ask() -> None:
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/"
        with httpx.Client(verify=False, trust_env=False, timeout=60.0) as client:
            with pytest.raises(httpx.HTTPError):
                client.get(url, extensions={"trace": call.trace})
            failed.set()

    with listener:
        for work in (serve, ask):
            Thread(target=work, daemon=True).start()
        assert asked.wait(10.0)
        call.give_up()
        assert failed.wait(10.0)
        assert gone.wait(10.0)


def test_a_call_that_was_given_up_before_it_connects_ends_at_once() -> None:
    call = CancellableRequest()
    call.give_up()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        httpx.Client(trust_env=False, timeout=60.0) as client,
        pytest.raises(httpx.HTTPError),
    ):
        client.get(f"http://127.0.0.1:{listener.getsockname()[1]}/", extensions={"trace": call.trace})
