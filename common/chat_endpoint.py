"""One call of an OpenAI-compatible chat server: the request, and the text and cost of its completion."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from random import random
from typing import Any, cast

import httpx
import openai

from common.bounded_http import BoundedHTTP, HTTPFailure
from common.errors import UserError

_OPENAI = "https://api.openai.com/v1"
_MOST_BYTES = 8 * 2**20
_REJECTED = (401, 403, 404)
_PASSED_ON = 16  # characters of the key in a row that are masked in a reply: fewer may be words


class ChatError(UserError):
    """The chat server rejects the calls or gives no usable reply, or the budget is spent."""


class ChatRejection(Exception):
    """The server refuses this call; where `final`, it would refuse all others too."""

    def __init__(self, status: int, reason: str, *, final: bool) -> None:
        super().__init__(reason)
        self.kind, self.final = f"status {status}", final


@dataclass(frozen=True, slots=True)
class ChatCall:
    """One call: the system message and the user message. A changed message is another call in the cache."""

    system: str
    user: str

    @property
    def estimated_tokens(self) -> int:
        """Tokens of the prompt, estimated at four characters each."""
        return len(self.system + self.user) // 4


@dataclass(frozen=True, slots=True)
class Completion:
    """Text of a reply, its cost with the part of the reply alone, whether that is an estimate, and whether
    `reply_tokens` cut it.
    """

    text: str
    tokens: int
    completion_tokens: int
    estimated: bool = False
    cut: bool = False


class ChatEndpoint:
    """The `/chat/completions` of a server.

    Args:
        model, base_url, api_key_env, timeout, retries: see `ChatClient`.
        settings: other fields of the request; `max_tokens` bounds a reply.

    Raises:
        ChatError: the key is missing or cannot be sent.
        ConfigError: `base_url` is no address, or a proxy of the environment is unusable.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None,
        *,
        api_key_env: str,
        timeout: float,
        retries: int,
        settings: Mapping[str, Any],
    ) -> None:
        key = os.environ.get(api_key_env, "").strip()
        if not key and base_url is None:
            raise ChatError(f"no API key: set the environment variable {api_key_env}, or base_url")
        if not (key.isascii() and key.isprintable()):
            raise ChatError(f"the environment variable {api_key_env} holds characters that no API key has")
        self._model, self._retries, self._settings = model, retries, settings
        self._http = BoundedHTTP(base_url or _OPENAI, what="chat server", key=key, most_bytes=_MOST_BYTES)
        self.secrets = self._http.secrets
        transport: Any = httpx.Client(transport=_Bounded(self._http, timeout), trust_env=False)  # redirects are answers
        self._openai = openai.OpenAI(
            api_key=key or "none", base_url=self._http.address, max_retries=0, http_client=transport
        )

    def complete(self, call: ChatCall) -> Completion:
        """The reply to a call.

        Raises:
            HTTPFailure: none came after all tries.
            ChatRejection: the server refuses the call.
        """
        found: list[Completion] = []

        def send() -> httpx.Response:
            response = self._send(call)
            if response.is_success:
                found.append(self._read(response, call))
            return response

        response = self._http.settled(send, self._retries, _pause)
        if found:
            return found[-1]
        final = response.status_code in _REJECTED or response.is_redirect
        raise ChatRejection(response.status_code, self._http.summary(response), final=final)

    def _send(self, call: ChatCall) -> httpx.Response:
        """The answer to a call, of any status.

        Raises:
            HTTPFailure: none came.
        """
        completions: Any = self._openai.chat.completions.with_raw_response
        texts = {"system": call.system, "user": call.user}
        messages = [{"role": role, "content": _sendable(text)} for role, text in texts.items()]
        try:
            return completions.create(model=self._model, messages=messages, **self._settings).http_response
        except openai.APIStatusError as error:
            return cast(Any, error.response)

    def _read(self, response: httpx.Response, call: ChatCall) -> Completion:
        """The first choice of a completion.

        Raises:
            HTTPFailure: it is none, for example a proxy's page; worth another try.
        """
        try:
            completion = response.json()
            choice = completion["choices"][0]
            text = _text(choice["message"].get("content"))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            said = self._http.secrets.shown(response.text[:10_000], 100)
            reason = f"the server answered {response.status_code} with something that is not a chat completion: {said}"
            raise HTTPFailure("no completion", reason) from error
        text = self.secrets.without(text, part=_PASSED_ON)
        text = text.encode("utf-8", "backslashreplace").decode()  # half a character cannot be stored
        reported = _reported_tokens(completion, len(text) + len(call.system + call.user), self._settings["max_tokens"])
        tokens = reported or call.estimated_tokens + len(text) // 4 + 1
        own = _completion_tokens(completion, tokens, len(text) // 4 + 1)
        return Completion(text, tokens, own, estimated=reported is None, cut=choice.get("finish_reason") == "length")


class _Bounded(httpx.BaseTransport):
    """Carries the requests of the OpenAI library, in place of its own time-outs, which bound each read alone."""

    def __init__(self, http: BoundedHTTP, timeout: float) -> None:
        self._http, self._timeout = http, timeout

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._http.answer(request, self._timeout)


def _sendable(text: str) -> str:
    """The text with lone surrogates replaced, which UTF-8 cannot encode."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _text(content: object) -> str:
    """The content of a message, a text or a list of parts.

    Raises:
        TypeError: it is neither.
    """
    if content is None:  # all of it is reasoning, a refusal or a call of a tool
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise TypeError(f"content is {type(content).__name__}")
    parts = [part["text"] for part in content if part["type"] == "text"]
    if not all(isinstance(part, str) for part in parts):
        raise TypeError("a part's text is none")
    return "".join(parts)


def _reported_tokens(completion: Mapping[str, Any], characters: int, reply_tokens: int) -> int | None:
    """The cost that the server reports; None where it reports none, or one that cannot be.

    A text has at most four tokens a character (its bytes), and a template or hidden reasoning adds some.
    """
    usage = completion.get("usage")
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    most = 4 * characters + 8 * reply_tokens + 10_000
    return total if type(total) is int and 0 < total <= most else None


def _completion_tokens(completion: Mapping[str, Any], tokens: int, estimated: int) -> int:
    """The part of the cost that is the reply's, hidden reasoning included."""
    usage = completion.get("usage")
    own = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return own if type(own) is int and 0 <= own <= tokens else min(estimated, tokens)


def _pause(tries: int) -> float:
    """Seconds before the next try, with a jitter so that threads do not retry at the same moment."""
    return min(0.5 * 2 ** (tries - 1), 8.0) * (0.75 + random() / 4)
