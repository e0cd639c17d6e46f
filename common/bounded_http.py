"""HTTP client with a deadline and a maximum size for each call as a whole: name look-up included, after decompression.

httpx limits each read alone, so a server that sends a byte now and then, or never ends, would hold a run for ever.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import logging
import re
import socket
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from queue import Empty, SimpleQueue
from threading import Thread
from time import sleep

import httpx

from common.cancellable_request import CancellableRequest
from common.errors import ConfigError
from common.masking import Secrets

LONGEST_WAIT = 60.0  # seconds between two tries, also where `Retry-After` is longer
MOST_BYTES = 64 * 2**20
_CONNECT = 10.0  # seconds
for _name in ("httpx", "httpcore"):  # each logs a line a call, with words of the server's
    logging.getLogger(_name).setLevel(logging.WARNING)


class HTTPFailure(Exception):
    """A call without a usable answer; `kind` is its name in counts. Where it `lasts`, another try would not help."""

    def __init__(self, kind: str, reason: str, *, lasts: bool = False) -> None:
        super().__init__(reason)
        self.kind, self.lasts = kind, lasts


class BoundedHTTP:
    """Calls of one server, which may be made by several threads. Redirects are answers and are not followed.

    Loopback addresses are called directly; others through the proxies of the environment (`HTTPS_PROXY`, `NO_PROXY`).

    Args:
        address: root of the server; a `user:password@` in it is sent and never shown.
        what: name of the server in messages.
        key: sent as `Authorization: Bearer`, where the address has no password; never shown.
        key_header: another header, which gets the bare key; empty where the caller sends it.
        most_bytes: of an answer, after decompression.
        proxies: whether to use those of the environment.

    Raises:
        ConfigError: the address is no http or https address, or a proxy or certificate of the environment is unusable.
    """

    def __init__(
        self,
        address: str,
        *,
        what: str,
        key: str = "",
        key_header: str = "Authorization",
        most_bytes: int = MOST_BYTES,
        proxies: bool = True,
    ) -> None:
        url = parsed_address(address, what)
        login = f"{url.username}:{url.password}" if url.userinfo else ""
        self.secrets = Secrets(key, login, url.password or url.username)
        self.address = str(url.copy_with(username=None, password=None) if login else url).rstrip("/")
        self._headers = {"Accept-Encoding": "gzip", "Content-Type": "application/json"}
        if login:
            self._headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        elif key and key_header:
            self._headers[key_header] = f"Bearer {key}" if key_header == "Authorization" else key
        self._most = most_bytes
        direct = not proxies or _is_loopback(url.host)
        try:
            # A connection a call, so that a call that takes too long can end its own.
            self._http = httpx.Client(
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
                trust_env=not direct,
                # Loading certificates is slow, and a direct call without encryption needs none.
                verify=False if direct and url.scheme == "http" else httpx.create_ssl_context(),
            )
        except (ImportError, ValueError, OSError, httpx.InvalidURL) as error:  # socksio is missing, no such scheme, …
            raise ConfigError(
                f"{what} {self.address}: the environment's proxy or certificates cannot be used: "
                f"{self.secrets.shown(error)}; fix or unset ALL_PROXY, HTTPS_PROXY, HTTP_PROXY or SSL_CERT_FILE, "
                "or add the host to NO_PROXY and unset ALL_PROXY"
            ) from error

    def send(
        self, method: str, path: str, body: object = None, *, timeout: float, call: CancellableRequest | None = None
    ) -> httpx.Response:
        """One whole answer, of any status.

        Args:
            path: after the root of the server.
            body: sent as JSON; a text as it is.
            timeout: seconds until the call is abandoned.
            call: lets another thread cancel the request.

        Raises:
            HTTPFailure: no whole answer came in time, or it is too long.
        """
        sent = body if body is None or isinstance(body, str) else json.dumps(body, allow_nan=False)
        return self.answer(self._http.build_request(method, self.address + path, content=sent), timeout, call)

    def answer(self, request: httpx.Request, timeout: float, call: CancellableRequest | None = None) -> httpx.Response:
        """The whole answer to a request, which is given this client's headers; arguments and errors as in `send`."""
        own, outcome = CancellableRequest(), SimpleQueue[httpx.Response | Exception]()

        def trace(event: str, info: Mapping[str, object]) -> None:
            own.trace(event, info)
            if call is not None:
                call.trace(event, info)

        request.headers.update(self._headers)
        limits = httpx.Timeout(timeout, connect=min(timeout, _CONNECT))
        request.extensions = {"trace": trace, "timeout": limits.as_dict()}

        def work() -> None:
            try:
                outcome.put(self._exchange(request))
            except Exception as error:  # raised below
                outcome.put(error)

        # A thread of its own, since nothing can interrupt the look-up of a name.
        Thread(target=work, daemon=True, name=f"call of {self.address}").start()
        try:
            answer = outcome.get(timeout=timeout)
        except Empty:
            raise HTTPFailure("timeout", f"no complete answer in {timeout:g} s") from None
        finally:
            own.give_up()
        if isinstance(answer, httpx.ConnectTimeout):
            raise HTTPFailure("timeout", f"no connection in {min(timeout, _CONNECT):g} s") from answer
        if isinstance(answer, httpx.TimeoutException):
            raise HTTPFailure("timeout", f"no complete answer in {timeout:g} s") from answer
        if isinstance(answer, (httpx.HTTPError, httpx.InvalidURL, zlib.error, UnicodeError)):  # the last: of a name
            reason = self.secrets.shown(answer) or type(answer).__name__
            raise HTTPFailure("connection lost", reason) from answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _exchange(self, request: httpx.Request) -> httpx.Response:
        content = bytearray()
        with closing(self._http.send(request, stream=True)) as response:
            packing = response.headers.get("content-encoding", "identity").strip().lower()
            unpack = _Unpacked(packing)
            for part in response.iter_raw():
                content += unpack(part, self._most + 1 - len(content))
                if len(content) > self._most:
                    reason = f"an answer of more than {self._most / 2**20:g} MiB"
                    raise HTTPFailure("answer too long", reason, lasts=True)
            if content and not unpack.whole:
                raise HTTPFailure("connection lost", "a packed answer breaks off, or continues after its end")
        headers = {name: response.headers[name] for name in ("location", "retry-after") if name in response.headers}
        return httpx.Response(
            response.status_code, headers=headers, content=bytes(content), extensions=response.extensions
        )

    def summary(self, response: httpx.Response) -> str:
        """An answer in one line, without secrets."""
        where = f" to {response.headers['location']}" if "location" in response.headers else ""
        hint = ": redirects are not followed, give the final address" if response.is_redirect else ""
        said = _message(response)
        return self.secrets.shown(f"{response.status_code} {response.reason_phrase}{where}{hint}: {said}".rstrip(": "))

    def settled(
        self, send: Callable[[], httpx.Response], retries: int, pause: Callable[[int], float]
    ) -> httpx.Response:
        """Send with retries: the first answer that another try would not change, of at most `retries` + 1 tries.

        Args:
            send: one try.
            pause: seconds to wait after the given try, counted from 1; `Retry-After` may make it longer.

        Raises:
            HTTPFailure: no try gave one.
        """
        failure = HTTPFailure("", "")
        for tries in range(1, retries + 2):
            wait = 0.0
            try:
                response = send()
                if not may_pass(response.status_code):
                    return response
                failure = HTTPFailure(f"status {response.status_code}", self.summary(response))
                wait = retry_after(response)
            except HTTPFailure as error:
                if error.lasts:
                    raise
                failure = error
            if tries <= retries:
                sleep(min(max(pause(tries), wait), LONGEST_WAIT))
        raise HTTPFailure(failure.kind, f"gave up after try {retries + 1}: {failure}")


class _Unpacked:
    """Decompressed body, with a bound on each part."""

    def __init__(self, packing: str) -> None:
        if packing not in ("identity", "gzip", "x-gzip", "deflate"):
            reason = f"an answer packed as {packing[:40]!r}, which was not asked for"
            raise HTTPFailure("answer unreadable", reason, lasts=True)
        self._stream = None if packing == "identity" else zlib.decompressobj(zlib.MAX_WBITS | 32)

    def __call__(self, part: bytes, most: int) -> bytes:
        return part if self._stream is None else self._stream.decompress(part, most)

    @property
    def whole(self) -> bool:
        return self._stream is None or (self._stream.eof and not self._stream.unused_data)


def may_pass(status: int) -> bool:
    """Whether a retry may change an answer of this status."""
    return status in (408, 409, 429) or (status >= 500 and status != 501)  # 501: the server has no such method


def retry_after(response: httpx.Response) -> float:
    """Seconds that the server asks to wait; 0 where it does not say."""
    text = response.headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):  # a date without a zone cannot be subtracted
        return 0.0


def _message(response: httpx.Response) -> str:
    """The error message of an OpenAI-compatible server, else the whole body."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return response.text[:10_000]


def parsed_address(address: str, what: str) -> httpx.URL:
    """The address of a server.

    Raises:
        ConfigError: it is none of http or https.
    """
    wrong = f"{what}: give an address like http://127.0.0.1:8000, with neither `?` nor `#`"
    try:
        url = httpx.URL(address)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ConfigError(wrong) from error
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment or (url.port or 0) > 65535:
        raise ConfigError(wrong)
    return url


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(socket.inet_ntoa(socket.inet_aton(host)) if ":" not in host else host)
    except (ValueError, OSError):
        return host == "localhost" or host.endswith(".localhost")
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified
