"""A client of OpenAI-compatible chat servers that caches every reply, so that it is paid for once."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import openai

from common.errors import ConfigError, UserError
from common.progress import progress_bar
from common.replies import Replies

log = logging.getLogger(__name__)
T = TypeVar("T")
_FENCE = re.compile(r"^```(?:json)?\s*(.*?)\s*```$", re.DOTALL)


class ChatError(UserError):
    """The chat server rejects the calls or does not answer, or the budget is spent."""


class NoCompletionError(openai.OpenAIError):
    """The server answered 200 with something that is not a chat completion."""


@dataclass(frozen=True, slots=True)
class ChatCall:
    """One call: the system message and the user message. A changed message is another call in the cache."""

    system: str
    user: str


class ChatClient:
    """Requests JSON objects from a model. A result is a parsed reply or, after all retries, None, which is counted.

    Every reply is cached under hash(model, settings, prompt, payload, attempt) before it is parsed, invalid replies
    included, so that a repeated run gives the same results and pays only for what is missing.

    Args:
        model: its name on the server.
        base_url: root of the API (`http://127.0.0.1:8000/v1`); None is OpenAI's own.
        cache: folder of the cached replies; the caps count all replies in it.
        api_key_env: environment variable that holds the key; a local server may need none.
        max_calls: replies that may be paid for.
        max_tokens: tokens, of prompts and replies, that may be paid for; exceeded by at most one reply.
        reply_tokens: maximum length of a reply.
        timeout: seconds until a call is abandoned.
        retries: after 429 (with `Retry-After`), 5xx, a timeout or a lost connection; as many again after a reply that
            is not the expected JSON.
        concurrency: calls at the same time; the order of results does not depend on it.
        max_failures: failed calls in a row after which the work stops.
        json_mode: request JSON mode; some servers do not have it.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        cache: str,
        api_key_env: str = "OPENAI_API_KEY",
        max_calls: int | None = None,
        max_tokens: int | None = None,
        reply_tokens: int = 1024,
        temperature: float = 0.0,
        timeout: float = 60.0,
        retries: int = 4,
        concurrency: int = 8,
        max_failures: int = 10,
        json_mode: bool = True,
    ) -> None:
        if timeout <= 0 or retries < 0 or min(concurrency, max_failures, reply_tokens) < 1 or temperature < 0:
            raise ConfigError(
                f"chat client: timeout {timeout}, concurrency {concurrency}, max_failures {max_failures} and "
                f"reply_tokens {reply_tokens} must be positive, retries {retries} and temperature {temperature} "
                "not negative"
            )
        self.model, self.base_url, self.api_key_env = model, base_url, api_key_env
        self.max_calls, self.max_tokens = max_calls, max_tokens
        self.timeout, self.retries, self.concurrency, self.max_failures = timeout, retries, concurrency, max_failures
        self.counts: Counter[str] = Counter()
        self._settings: dict[str, Any] = {"temperature": temperature, "max_tokens": reply_tokens}
        if json_mode:
            self._settings["response_format"] = {"type": "json_object"}
        self._replies = Replies(Path(cache) / "replies.sqlite")
        self._lock = threading.Condition()
        self._where = f"{model} at {base_url or 'api.openai.com'}"
        self._in_flight = self._reserved = self._failures = 0
        self._outage = ""  # why a call of the last `ask` failed, if a later run may succeed
        self._end: ChatError | None = None

    def ask(
        self, calls: Sequence[ChatCall], read: Callable[[dict[str, Any]], T], *, label: str = "calls"
    ) -> list[T | None]:
        """The result of `read` on every reply, in the order of the calls; None where no reply was valid.

        `read` raises ValueError, KeyError or TypeError for an invalid object.

        Raises:
            ChatError: a cap is reached, the server rejects the key or the model, too many calls failed in a row, or the
                server was down and no reply was cached.
        """
        self._end, before = None, Counter(self.counts)
        self._outage = ""
        with progress_bar(len(calls), label, "call") as bar, ThreadPoolExecutor(self.concurrency) as pool:

            def work(call: ChatCall) -> T | None:
                result = self._item(call, read)
                bar.update()
                return result

            futures = {call: pool.submit(work, call) for call in dict.fromkeys(calls)}
            try:
                results = [futures[call].result() for call in calls]
            finally:
                pool.shutdown(cancel_futures=True)
                made = self.counts - before
                log.info(
                    "%s, %d items: %s", label, len(calls), ", ".join(f"{made[name]} {name}" for name in sorted(made))
                )
        if self._outage and not made["paid"] + made["cached"]:
            raise ChatError(f"{self._where}: no call was answered, the last: {self._outage}; run again to resume")
        return results

    def _item(self, call: ChatCall, read: Callable[[dict[str, Any]], T]) -> T | None:
        reason = ""
        for attempt in range(self.retries + 1):
            reply = self._reply(call, attempt)
            if reply is None:
                return None
            try:
                return read(_object(reply))
            except (ValueError, KeyError, TypeError) as error:
                reason = " ".join(str(error).split())[:200] or type(error).__name__
        self._count("failed: invalid reply")
        log.warning("%s gave %d invalid replies, the last: %s", self.model, self.retries + 1, reason)
        return None

    def _reply(self, call: ChatCall, attempt: int) -> str | None:
        """The text of one attempt, from the cache or the server; None if there is no answer."""
        key = self._key(call, attempt)
        cached = self._replies.get(key)
        if cached is not None:
            self._count("cached")
            return cached
        server = self._server()
        most = _estimated_tokens(call) + self._settings["max_tokens"]
        self._start(most)
        reply: tuple[str, int] | None = None
        try:
            reply = self._send(server, call)
        except openai.OpenAIError as error:
            self._failed(error)
            return None
        else:
            self._count("paid")
            return reply[0]
        finally:  # other threads may wait for the reservation
            with self._lock:  # a call is either in flight or paid for, never both
                self._in_flight -= 1
                self._reserved -= most
                self._lock.notify_all()
                if reply is not None:
                    self._replies.put(key, *reply)
                    self._failures = 0

    def _start(self, most: int) -> None:
        """Reserve a call of at most so many tokens; wait while calls in flight may use up the cap.

        Raises:
            ChatError: a cap is reached, or an earlier call ended the work.
        """
        with self._lock:
            self._require_budget()
            while self.max_tokens is not None and self._in_flight and self._tokens() + most > self.max_tokens:
                self._lock.wait()
                self._require_budget()
            self._in_flight += 1
            self._reserved += most

    def _tokens(self) -> int:
        """Tokens paid for or reserved."""
        return self._replies.spent()[1] + self._reserved

    def _require_budget(self) -> None:
        if self._end is None and (self.max_calls, self.max_tokens) != (None, None):
            calls, tokens = self._replies.spent()
            spent = f"{calls} replies of {tokens} tokens are paid for and cached in {self._replies.path.parent}"
            if self.max_calls is not None and calls + self._in_flight >= self.max_calls:
                self._end = ChatError(f"max_calls {self.max_calls} reached: {spent}; raise it and run again to resume")
            elif self.max_tokens is not None and tokens >= self.max_tokens:
                self._end = ChatError(
                    f"max_tokens {self.max_tokens} reached: {spent}; raise it and run again to resume"
                )
        if self._end is not None:
            raise self._end

    def _send(self, server: openai.OpenAI, call: ChatCall) -> tuple[str, int]:
        """Text of a reply and its cost in tokens.

        Raises:
            openai.OpenAIError: no reply after the library's own retries.
        """
        for attempt in range(self.retries + 1):
            try:
                completion = server.chat.completions.create(
                    model=self.model,
                    messages=[{"role": "system", "content": call.system}, {"role": "user", "content": call.user}],
                    **self._settings,
                )
                reply = completion.choices[0].message.content or ""
            except (ValueError, AttributeError, IndexError, TypeError):  # for example a proxy's page with status 200
                time.sleep(min(0.5 * 2**attempt, 8.0) if attempt < self.retries else 0.0)
                continue
            estimate = _estimated_tokens(call) + len(reply) // 4  # some servers report no usage
            return reply, completion.usage.total_tokens if completion.usage else estimate
        raise NoCompletionError("the server answered 200 with something that is not a chat completion")

    def _server(self) -> openai.OpenAI:
        with self._lock:
            if not hasattr(self, "_openai"):
                key = os.environ.get(self.api_key_env)
                if not key and self.base_url is None:
                    raise ChatError(f"no API key: set the environment variable {self.api_key_env}, or base_url")
                self._openai = openai.OpenAI(
                    api_key=key or "none", base_url=self.base_url, timeout=self.timeout, max_retries=self.retries
                )
            return self._openai

    def _failed(self, error: openai.OpenAIError) -> None:
        """Count a call without an answer, and end the work if all further calls would fail."""
        reason = " ".join(str(error).split())[:300]
        with self._lock:
            self._failures += 1
            rejected = isinstance(
                error, openai.AuthenticationError | openai.PermissionDeniedError | openai.NotFoundError
            )
            if rejected:
                self._end = ChatError(
                    f"{self._where} rejects the call: {reason}; check model, base_url and {self.api_key_env}"
                )
            elif self._end is None and self._failures >= self.max_failures:
                self._end = ChatError(
                    f"{self._where}: {self._failures} calls failed in a row, the last: {reason}; "
                    "replies so far are cached, run again to resume"
                )
            if self._end is not None:
                raise self._end from error
            if not isinstance(error, openai.BadRequestError):
                self._outage = reason
        self._count(f"failed: {type(error).__name__}")
        log.warning("%s gave no answer: %s", self._where, reason)

    def _count(self, name: str) -> None:
        with self._lock:
            self.counts[name] += 1

    def _key(self, call: ChatCall, attempt: int) -> str:
        parts = [self.model, self._settings, call.system, call.user, attempt]
        return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=20).hexdigest()


def _estimated_tokens(call: ChatCall) -> int:
    """Tokens of a prompt, estimated at four characters each."""
    return len(call.system + call.user) // 4


def _object(reply: str) -> dict[str, Any]:
    """The JSON object of a reply, with or without a code fence.

    Raises:
        ValueError: the reply is not a JSON object.
    """
    fenced = _FENCE.match(reply.strip())
    try:
        value = json.loads(fenced[1] if fenced else reply)
    except RecursionError as error:
        raise ValueError("JSON nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, not {type(value).__name__}")
    json.dumps(value, ensure_ascii=False).encode()  # raises for a lone surrogate, which could not be written later
    return value
