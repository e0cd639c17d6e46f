"""Which addresses are called, whether through a proxy, and that their passwords are masked."""

from __future__ import annotations

import sys

import pytest

from common.bounded_http import BoundedHTTP
from common.errors import ConfigError
from tests.raw_server import HEAD, raw_server

NO_ADDRESSES = (
    "|127.0.0.1:8000|ftp://host|http://|http://[::1|http://host:x|http://host/?key=1|http://h/#a|http://h:65536"
)


@pytest.mark.parametrize("address", NO_ADDRESSES.split("|"))
def test_an_address_that_cannot_be_one_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(ConfigError, match=r"^server: give an address like http://127\.0\.0\.1:8000"):
        BoundedHTTP(address, what="server")


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1080", "socks4://127.0.0.1:1080", "http://[::1"])
def test_a_proxy_that_cannot_be_used_is_one_line(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(ConfigError, match=r"^server http://search\.example: the environment's proxy.*unset ALL_PROXY"):
        BoundedHTTP("http://search.example", what="server")


def test_certificates_that_are_not_there_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/at/all.pem")
    with pytest.raises(ConfigError, match="SSL_CERT_FILE"):
        BoundedHTTP("https://search.example", what="server")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "[::1]", "[::ffff:127.0.0.1]", "a.localhost"])
def test_loopback_is_called_directly_whatever_proxies_there_are(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    BoundedHTTP(f"http://{host}:9", what="server")
    with raw_server(lambda connection: connection.sendall(HEAD + b"Content-Length: 2\r\n\r\nok")) as url:
        assert BoundedHTTP(url, what="server").send("GET", "/", timeout=5).text == "ok"


def test_other_addresses_are_called_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with raw_server(lambda connection: connection.sendall(HEAD + b"Content-Length: 2\r\n\r\nok")) as url:
        monkeypatch.setenv("HTTP_PROXY", url)
        assert BoundedHTTP("http://search.example", what="server").send("GET", "/", timeout=5).text == "ok"


@pytest.mark.parametrize("login", ["me:pa55", "pa55"])
def test_a_short_password_is_masked(login: str) -> None:
    client = BoundedHTTP(f"http://{login}@127.0.0.1:9", what="server")
    assert client.secrets.shown("pa55 is wrong") == "*** is wrong"
