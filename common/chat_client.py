"""A client of OpenAI-compatible chat servers that caches every reply, so that it is paid for once."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from time import sleep
from typing import Any, TypeVar

from pydantic import ValidationError

from common.bounded_http import HTTPFailure, parsed_address
from common.chat_endpoint import ChatCall, ChatEndpoint, ChatError, ChatRejection
from common.errors import ConfigError
from common.json_replies import json_object
from common.masking import Secrets
from common.progress import current, progress_bar
from common.replies import CapReached, Caps, Replies, Reply, Spending, Use

log = logging.getLogger(__name__)
T = TypeVar("T")


class ChatClient:
    """Requests JSON objects from a model. A result is a parsed reply or, after all retries, None, which is counted.

    Every reply is cached under hash(model, settings, prompt, payload, attempt) before it is parsed, invalid replies
    included, so that a repeated run gives the same results and pays only for what is missing. A call whose replies
    were all invalid is missing too: another client asks again, as often as `retries` allows, and this one does not.
    Clients that share a cache, in any thread or process, pay for a call once and keep the caps together.

    Args:
        model: its name on the server.
        base_url: root of the API (`http://127.0.0.1:8000/v1`), a `user:password@` in it is sent and never shown; None
            is OpenAI's own.
        cache: folder of the cached replies; the caps count all replies in it.
        api_key_env: environment variable that holds the key; a local server may need none.
        price: US dollars for a million tokens, `{prompt: 2.5, completion: 10}`; what a stage pays is in its costs.
        max_calls: replies that may be paid for.
        max_tokens: tokens, of prompts and replies, that may be paid for; exceeded by at most one reply.
        reply_tokens: maximum length of a reply.
        timeout: seconds until a call is abandoned, from the look-up of the server's name to the last byte.
        retries: after 429 (with `Retry-After`), 5xx, a timeout or a lost connection; as many again after a reply that
            is not the expected JSON.
        concurrency: calls at the same time; the order of results does not depend on it.
        max_failures: failed calls in a row after which the work stops; one whose replies are all invalid has failed.
        json_mode: request JSON mode; some servers do not have it.

    Raises:
        ConfigError: a number is out of range, or `base_url` is no address.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        cache: str,
        api_key_env: str = "OPENAI_API_KEY",
        price: dict[str, float] | None = None,
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
        numbers = (timeout, temperature, retries, concurrency, max_failures, reply_tokens)
        if (
            not all(math.isfinite(number) for number in numbers)
            or timeout <= 0
            or retries < 0
            or min(concurrency, max_failures, reply_tokens) < 1
            or temperature < 0
        ):
            raise ConfigError(
                f"chat client: timeout {timeout}, concurrency {concurrency}, max_failures {max_failures} and "
                f"reply_tokens {reply_tokens} must be positive, retries {retries} and temperature {temperature} "
                "not negative"
            )
        if price is not None and (price.keys() != {"prompt", "completion"} or not min(price.values()) >= 0):
            raise ConfigError(
                f"chat client: price {price} must be {{prompt: dollars, completion: dollars}} a million tokens"
            )
        if base_url is not None:
            parsed_address(base_url, "chat client")
        self.model, self.retries, self.concurrency, self.max_failures = model, retries, concurrency, max_failures
        self.where = Secrets().shown(f"{model} at {base_url or 'api.openai.com'}")
        self.counts: Counter[str] = Counter()
        self.price, self.cache = price, Path(cache).resolve()
        self._base_url, self._api_key_env, self._timeout = base_url, api_key_env, timeout
        self._settings: dict[str, Any] = {"temperature": temperature, "max_tokens": reply_tokens}
        if json_mode:
            self._settings["response_format"] = {"type": "json_object"}
        self._replies, self._caps = Replies(Path(cache) / "replies.sqlite"), Caps(max_calls, max_tokens)
        self._endpoint: ChatEndpoint | None = None
        self._lock = threading.Lock()
        self._failures = 0
        self._useless: set[ChatCall] = set()  # calls whose replies were all invalid
        self._outage = ""  # why a call of the last `ask` failed, if a later run may succeed
        self._end: Exception | None = None
        self._use = Use("", model)
        self._cached: set[str] = set()  # keys of the replies of the last `ask` that were not new

    def spent(self, work: str) -> Spending:
        """What a piece of work, such as a stage, has used of this model, in this process and before."""
        return self._replies.spent(Use(work, self.model))

    def ask(
        self, calls: Sequence[ChatCall], read: Callable[[dict[str, Any]], T], *, label: str = "calls"
    ) -> list[T | None]:
        """The result of `read` on every reply, in the order of the calls; None where no reply was valid.

        `read` raises ValueError, KeyError or TypeError for an invalid object.

        Raises:
            ChatError: a cap is reached, the server rejects the key or the model, too many calls failed in a row, or the
                server was down and no reply was cached.
        """
        self._end, self._outage, before = None, "", Counter(self.counts)
        self._use, self._cached = Use(current().work, self.model), set[str]()
        with (
            self._replies.owner() as owner,
            progress_bar(len(calls), label, "call") as bar,
            ThreadPoolExecutor(self.concurrency) as pool,
        ):

            def work(call: ChatCall) -> T | None:
                try:
                    result = self._item(call, read, owner)
                except Exception as error:
                    self._end = self._end or error  # the other threads need not pay any more
                    raise
                bar.update()
                return result

            futures = {call: pool.submit(work, call) for call in dict.fromkeys(calls)}
            try:
                results = [futures[call].result() for call in calls]
            except KeyboardInterrupt:
                self._end = ChatError(f"{self.where}: interrupted")
                raise
            finally:
                pool.shutdown(cancel_futures=True)
                self._replies.note(self._cached, self._use)
                made = self.counts - before
                log.info(
                    "%s, %d items: %s", label, len(calls), ", ".join(f"{made[name]} {name}" for name in sorted(made))
                )
        if self._outage and not made["paid"] + made["cached"]:
            raise ChatError(f"{self.where}: no call was answered, the last: {self._outage}; run again to resume")
        return results

    def _item(self, call: ChatCall, read: Callable[[dict[str, Any]], T], owner: str) -> T | None:
        reason, fresh = "", False
        try:
            for reply, fresh in self._replies_to(call, owner):
                try:
                    result = read(json_object(reply.text, cut=reply.cut))
                except (ValueError, KeyError, TypeError) as error:
                    reason = f"{_reason(error)} in the reply {reply.text[:2000]!r}"
                else:
                    if fresh:
                        self._failures = 0
                    return result
        except (HTTPFailure, ChatRejection) as error:
            self._no_answer(error)
            return None
        self._count("failed: invalid reply")
        self._useless.add(call)
        if fresh:
            self._failed(
                f"invalid replies, such as: {reason}",
                f"check json_mode, reply_tokens {self._settings['max_tokens']} and whether the model follows the "
                "format that it is asked for",
            )
        return None

    def _replies_to(self, call: ChatCall, owner: str) -> Iterator[tuple[Reply, bool]]:
        """The cached replies to a call and, while these are invalid, new ones; with whether each is new."""
        known = 0
        while cached := self._replies.get(key := self._key(call, known)):
            self._count("cached")
            self._cached.add(key)
            yield cached, False
            known += 1
        if call not in self._useless:
            for attempt in range(known, known + self.retries + 1):
                yield self._new(call, attempt, owner), True

    def _new(self, call: ChatCall, attempt: int, owner: str) -> Reply:
        """The reply of one attempt, from the server or from another client that makes the same call.

        Raises:
            ChatError: a cap is reached, or an earlier call ended the work.
            HTTPFailure, ChatRejection: there is no reply.
        """
        key, endpoint = self._key(call, attempt), self._server()
        most = call.estimated_tokens + self._settings["max_tokens"]
        for waits in count():
            if self._end is not None:
                raise self._end
            try:
                if self._replies.claim(key, owner, most, self._caps):
                    break
            except CapReached as error:
                raise ChatError(f"{error}; raise it and run again to resume") from error
            if reply := self._replies.get(key):
                self._count("cached")
                self._cached.add(key)
                return reply
            if waits == 100:
                log.warning("%s: waiting for calls in flight of this and other runs with the same cache", self.where)
            sleep(min(0.01 * 2 ** min(waits, 6), 0.5))
        try:
            completion = endpoint.complete(call)
            own = completion.completion_tokens
            self._replies.put(
                key, completion.text, completion.tokens, completion=own, cut=completion.cut, use=self._use
            )
        except BaseException:
            self._replies.release(key)
            raise
        self._count("paid")
        if completion.estimated:
            self._count("costs estimated")
        return Reply(completion.text, completion.cut)

    def _server(self) -> ChatEndpoint:
        with self._lock:
            if self._endpoint is None:
                self._endpoint = ChatEndpoint(
                    self.model,
                    self._base_url,
                    api_key_env=self._api_key_env,
                    timeout=self._timeout,
                    retries=self.retries,
                    settings=self._settings,
                )
            return self._endpoint

    def _no_answer(self, error: HTTPFailure | ChatRejection) -> None:
        """Count a call without an answer, and end the work if all further calls would fail."""
        if isinstance(error, ChatRejection) and error.final:
            raise ChatError(
                f"{self.where} rejects the call: {error}; check model, base_url and {self._api_key_env}"
            ) from error
        if isinstance(error, HTTPFailure):
            self._outage = str(error)
        self._count(f"failed: {error.kind}")
        self._failed(str(error))

    def _failed(self, reason: str, advice: str = "") -> None:
        """Note a failed call, and end the work after too many in a row."""
        reason = self._server().secrets.shown(reason)
        log.warning("%s, a call failed: %s", self.where, reason)
        with self._lock:
            self._failures += 1
            if self._failures >= self.max_failures:
                self._end = self._end or ChatError(
                    f"{self.where}: {self._failures} calls failed in a row, the last: {reason}; "
                    f"{advice and advice + '; '}replies so far are cached, run again to resume"
                )
                raise self._end

    def _count(self, name: str) -> None:
        with self._lock:
            self.counts[name] += 1

    def _key(self, call: ChatCall, attempt: int) -> str:
        parts = [self.model, self._settings, call.system, call.user, attempt]
        return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=20).hexdigest()


def _reason(error: Exception) -> str:
    """Reason why a reply is invalid, in a few words."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
    if isinstance(error, KeyError):
        return f"no {error}"
    return str(error) or type(error).__name__
