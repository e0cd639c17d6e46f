"""HTTP client of a vLLM server: token ids in and out, and weight updates."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import httpx

from common.bounded_http import BoundedHTTP, HTTPFailure
from common.cancellable_request import CancellableRequest
from common.errors import EngineError

_BUSY = (429, 503)


class NoAnswer(Exception):
    """No answer came: the server is dead, too slow or busy. The same request may be sent again."""


@dataclass(frozen=True, slots=True)
class Generated:
    """Sampled token ids with their log-probs; `stop` is the string that ended them, `finish` vLLM's own word.

    `prompt_logps` are those of the prompt's tokens but the first, where `prompt_logprobs` asked for them.
    """

    ids: tuple[int, ...]
    logps: tuple[float, ...]
    finish: str
    stop: str | None
    prompt_logps: tuple[float, ...] = ()


class VLLMClient:
    """One vLLM server.

    Args:
        url: its root.
        timeout: seconds for an answer.
    """

    def __init__(self, url: str, *, timeout: float) -> None:
        # A connection a call also suits vLLM, which drops connections on which a route failed.
        self._http = BoundedHTTP(url, what="vLLM", proxies=False)
        self.url, self.timeout = self._http.address, timeout

    def healthy(self) -> bool:
        """Whether the server answers and is well."""
        try:
            return self._http.send("GET", "/health", timeout=5.0).is_success
        except HTTPFailure:
            return False

    def version(self) -> str:
        """vLLM's own version."""
        return str(self._json("GET", "/version").get("version"))

    def context(self) -> int:
        """Tokens of the longest sequence that the server takes.

        Raises:
            NoAnswer: it may be asked again.
            EngineError: it does not say.
        """
        answer = self._json("GET", "/v1/models")
        try:
            return int(answer["data"][0]["max_model_len"])
        except (LookupError, TypeError, ValueError) as error:
            shown = self._http.secrets.shown(answer)
            raise EngineError(f"vLLM at {self.url} does not say how long a sequence may be: {shown}") from error

    def generate(
        self,
        ids: Sequence[int],
        sampling: Mapping[str, Any],
        *,
        weights: str,
        adapter: str | None = None,
        call: CancellableRequest | None = None,
    ) -> Generated:
        """Continue token ids.

        Args:
            ids: the prompt.
            sampling: fields of vLLM's `SamplingParams`.
            weights: the version of the weights that every token must have been sampled by.
            adapter: the name under which the adapter was loaded that must have sampled it; None for the model alone.
            call: by which it may be given up.

        Raises:
            NoAnswer: it may be sent again, unless it was given up.
            EngineError: the answer says that the request is wrong, or is not what was asked for.
        """
        named = {} if adapter is None else {"model": adapter}
        body = {"token_ids": list(ids), "sampling_params": {"logprobs": 0, **sampling}, **named}
        answer = self._json("POST", "/inference/v1/generate", body, call)
        try:
            if adapter is not None and answer["model"] != adapter:
                raise ValueError(f"sampled by {answer['model']}, not by adapter {adapter}")
            prompt_logps = () if "prompt_logprobs" not in sampling else _of_prompt(answer["prompt_logprobs"], ids)
            return replace(_generated(answer["choices"][0], weights), prompt_logps=prompt_logps)
        except (LookupError, TypeError, ValueError) as error:
            raise EngineError(f"vLLM at {self.url}: unusable answer: {error}") from error

    def update(self, folder: str, version: str) -> None:
        """Load the weights of a folder, under a new version, and forget all that is cached of earlier ones.

        Where it fails the server stays paused, as it must: vLLM crashes on half of the weights. The next update repairs
        it, also one of another run.

        Raises:
            NoAnswer: the server may have half of the weights: update again.
            EngineError: it rejects them.
        """
        self._json("POST", "/pause?mode=wait")  # clears the prefix cache too
        self._start_update()
        self._json("POST", "/update_weights", {"update_info": {"folder": folder}})
        self._json("POST", "/finish_weight_update", {"weight_version": version})
        self._json("POST", "/resume")

    def _start_update(self) -> None:
        """Start an update; one that was broken off, say by a run that was killed, has to be finished first."""
        try:
            self._json("POST", "/start_weight_update")
        except NoAnswer:
            self._json("POST", "/finish_weight_update")
            self._json("POST", "/start_weight_update")

    def load_adapter(self, folder: str, name: str, version: str) -> None:
        """Load the adapter of a folder under a name that is new to the server, as this version of its weights.

        What is cached of earlier adapters is forgotten, and vLLM's cache distinguishes adapters by their names anyway.

        Raises:
            NoAnswer: it may be loaded or not: load it under another name.
            EngineError: the server rejects it.
        """
        self._json("POST", "/pause?mode=wait")
        self._request("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder}, None)  # says no JSON
        self.name_weights(version)
        self._json("POST", "/resume")

    def unload_adapter(self, name: str) -> None:
        """Have the server forget an adapter that is no longer asked for; one started since does not have it."""
        with suppress(NoAnswer, EngineError):
            self._request("POST", "/v1/unload_lora_adapter", {"lora_name": name}, None)  # says no JSON

    def name_weights(self, version: str) -> None:
        """Give the weights that the server has loaded a version."""
        self._json("POST", "/update_weight_version", {"new_version": version})

    def sleep(self) -> None:
        """Move the server's weights to the machine's memory and drop its cache, once its open turns are done."""
        self._json("POST", "/sleep?level=1&mode=wait")

    def wake_up(self) -> None:
        """Move its weights back; a server that is awake stays as it is."""
        self._json("POST", "/wake_up")

    def _json(
        self, method: str, path: str, body: object = None, call: CancellableRequest | None = None
    ) -> dict[str, Any]:
        response = self._request(method, path, body, call)
        try:
            answer = response.json()
        except (ValueError, RecursionError) as error:
            raise NoAnswer(f"{path} answered {response.status_code} without JSON") from error
        if not isinstance(answer, dict):
            raise NoAnswer(f"{path} answered {response.status_code} with {type(answer).__name__}, not an object")
        return answer

    def _request(self, method: str, path: str, body: object, call: CancellableRequest | None) -> httpx.Response:
        """One answer. A busy server is asked again until the time is up, or the call given up."""
        deadline, pause = time.monotonic() + self.timeout, 0.1
        while True:
            try:
                left = max(deadline - time.monotonic(), 0.1)
                response = self._http.send(method, path, body, timeout=left, call=call)
            except HTTPFailure as error:
                if error.lasts:
                    raise EngineError(f"vLLM at {self.url}{path}: {error}") from error
                raise NoAnswer(f"{path}: {error}") from error
            if response.is_success:
                return response
            said = f"{path} answered {self._http.summary(response)}"
            waited_for = call is None or not call.given_up
            if response.status_code in _BUSY and waited_for and time.monotonic() + pause < deadline:
                time.sleep(pause)
                pause = min(2 * pause, 5.0)
            elif response.status_code in _BUSY or response.status_code >= 500:
                raise NoAnswer(said)
            else:
                raise EngineError(f"vLLM at {self.url}{said}")


def _generated(choice: Mapping[str, Any], weights: str) -> Generated:
    """Read a choice.

    Raises:
        LookupError, TypeError, ValueError: it lacks something, or other weights have sampled a part of it.
    """
    ids = tuple(int(token) for token in choice["token_ids"])
    logps = tuple(float(entry["logprob"]) for entry in choice["logprobs"]["content"])
    if not ids or len(ids) != len(logps):
        raise ValueError(f"{len(ids)} token ids with {len(logps)} log-probs")
    if wrong := [logp for logp in logps if not math.isfinite(logp) or logp < -9998.0]:  # vLLM writes -inf as -9999
        raise ValueError(f"a sampled token has log-prob {wrong[0]}")
    versions = {str(span["version"]) for span in choice["weight_versions"] or ()}
    if versions != {weights}:
        raise ValueError(f"sampled by weights {', '.join(sorted(versions)) or 'without a version'}, not {weights}")
    stop = choice["stop_reason"]
    return Generated(ids, logps, str(choice["finish_reason"]), stop if isinstance(stop, str) else None)


def _of_prompt(entries: Sequence[Mapping[str, Any]], ids: Sequence[int]) -> tuple[float, ...]:
    """Log-probs of a prompt's tokens but the first, which has none.

    Raises:
        LookupError, TypeError, ValueError: one is missing or no number.
    """
    if len(entries) != len(ids):
        raise ValueError(f"log-probs of {len(entries)} tokens for a prompt of {len(ids)}")
    logps = tuple(float(entry[str(token)]["logprob"]) for entry, token in zip(entries[1:], ids[1:], strict=True))
    if wrong := [logp for logp in logps if not math.isfinite(logp)]:
        raise ValueError(f"a token of the prompt has log-prob {wrong[0]}")
    return logps
