"""A vLLM server that samples from one policy: started here or running elsewhere, updated, watched, started again.

vLLM contradicts the suite's versions, so it runs in an environment of its own (`make engine`) and is talked to over
HTTP. What it can do, and its traps, were measured: docs/decisions/vllm.md.
"""

from __future__ import annotations

import copy
import logging
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from common.cancellable_request import CancellableRequest
from common.errors import ConfigError, EngineError
from modules.policy import Dtype, Policy
from modules.samplers.vllm.client import Generated, NoAnswer, VLLMClient
from modules.samplers.vllm.command import environment, free_port, installed_version, require_room, server_command
from modules.samplers.vllm.served_weights import WeightProof, write_weights
from modules.samplers.vllm.watched_process import WatchedProcess

log = logging.getLogger(__name__)

ENGINE_PYTHON = Path(__file__).parents[3] / ".engine/bin/python"  # `make engine`


class VLLMEngine:
    """One vLLM server and the policy that it samples from. Samplers of the same policy share it.

    Nothing happens before the first request: then the server is started with the policy's weights. After `load` the
    next request waits until the server has the weights of that moment and fixed prompts have proved it. Each rank of
    a run has a server of its own.

    Args:
        context: tokens of the longest sequence, prompt and reply; at least `limits.total_tokens`.
        dtype: that it computes in. In bfloat16 most of what an adapter adds is rounded away as it is merged.
        urls: servers that run already, one a rank; None starts one. They see `scratch` under the same path.
        cache_gib: memory for keys and values, in GiB.
        rows: sequences that it decodes at once.
        options: more of vLLM's own flags.
        python: the interpreter of the engine's environment; None is that of `make engine`.
        scratch: folder for the weights that are handed over, twice the model's size; None is a temporary one.
        restarts: how often in its life it may be started again, also where a start failed; its open turns are asked
            again with the same seeds.
        timeout: seconds for one turn.
        start_timeout: seconds for a start.

    Raises:
        ConfigError: a setting is out of range, or there is no engine.
    """

    def __init__(
        self,
        context: int,
        *,
        dtype: Dtype = "bfloat16",
        urls: list[str] | None = None,
        cache_gib: int = 1,
        rows: int = 64,
        options: list[str] | None = None,
        python: str | None = None,
        scratch: str | None = None,
        restarts: int = 2,
        timeout: float = 600.0,
        start_timeout: float = 600.0,
    ) -> None:
        if min(context, cache_gib, rows) < 1 or restarts < 0 or min(timeout, start_timeout) <= 0:
            raise ConfigError(
                f"vLLM: context {context}, cache_gib {cache_gib}, rows {rows}, timeout {timeout:g} and start_timeout "
                f"{start_timeout:g} must be positive, restarts {restarts} not negative"
            )
        self._settings: dict[str, Any] = {name: value for name, value in locals().items() if name != "self"}
        self.dtype: Dtype = dtype
        self.context, self.rows, self.restarts = context, rows, restarts
        self.timeout, self.start_timeout = timeout, start_timeout
        self._cache_gib, self._options = cache_gib, options or []
        self._url = None if urls is None else _own_url(urls)
        self._python = Path(python or ENGINE_PYTHON)
        if urls is None and not self._python.exists():
            raise ConfigError(f"no vLLM at {self._python}: run `make engine`, or give the engine `urls`")
        if urls is not None and scratch is None:
            raise ConfigError("an engine at `urls` reads weights from files: give it `scratch`, a folder that it sees")
        self._scratch_root = scratch
        self._url_version = "that was not asked"
        self._name = uuid4().hex[:12]  # of its weights: a server that two engines were given must not mix them up
        self._policy: Policy | None = None
        self._prove = WeightProof(dtype)
        self._stale = True
        self._client: VLLMClient | None = None
        self._process: WatchedProcess | None = None
        self._scratch: Path | None = None
        self._updates = 0
        self.life = 0  # starts so far
        self.gap = 0.0  # of the last proof

    def __deepcopy__(self, memo: object) -> VLLMEngine:
        """Another engine with the same settings: policies need one each.

        Raises:
            ConfigError: the settings name a server.
        """
        if self._url is not None:
            raise ConfigError(
                f"policies need a vLLM server each, and {self._url} has one policy's weights: "
                "give the sampler of each policy an engine with other `urls`"
            )
        return VLLMEngine(**self._settings)

    @property
    def manifest_facts(self) -> dict[str, str]:
        """What a manifest says of it."""
        version = installed_version(self._python) if self._url is None else self._url_version
        promise = "tokens depend on seeds and weights, but not to the bit: batches differ from run to run"
        return {"engine": f"vllm {version}", "engine_dtype": self.dtype, "engine_bits": promise}

    def of(self, policy: Policy) -> VLLMEngine:
        """This engine, or a copy of it where it samples from another policy already."""
        return self if self._policy is None or policy is self._policy else copy.deepcopy(self)

    def load(self, policy: Policy) -> None:
        """Sample from this policy as it is when the next request comes; `cache_gib` must hold a sequence of it."""
        if self._url is None:
            require_room(policy.model.config, self.context, self.dtype, self._cache_gib)
        self._policy, self._stale = policy, True
        self._updates += 1

    def make_ready(self) -> None:
        """Start the server, or give it new weights, where that is due.

        Raises:
            EngineError: it cannot be done.
        """
        if self._client is None:
            self._start()
        elif self._stale:
            try:
                self._update(self._client, self._write())
            except NoAnswer as error:
                self.recover(self.life, str(error))

    def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], call: CancellableRequest) -> Generated:
        """Continue token ids, unless the call is given up; may be called from many threads.

        Raises:
            NoAnswer: to be passed on to `recover`, with the `life` of before the call.
            EngineError: the server rejects the request.
        """
        client = self._client
        if client is None:
            raise NoAnswer("the engine does not run")
        return client.generate(ids, sampling, weights=self.version, call=call)

    @property
    def version(self) -> str:
        """The version of the weights: a folder's name, so that each is written once; no other engine has the same."""
        return f"weights-{self._name}-{self._updates:06d}"

    def recover(self, life: int, reason: str) -> None:
        """Start the server again, unless that was done since `life`.

        Raises:
            EngineError: it has been started again too often.
        """
        if life != self.life:
            return
        self.close()
        if self._process is not None:
            reason = f"{reason}; it said: {self._process.last_lines() or 'nothing'}"
        if self.life > self.restarts:
            where = self._url or "the engine"
            kept = f" (all of it: {_kept(self._process.log)})" if self._process else ""
            raise EngineError(f"{where} gave no answer after {self.restarts} restarts: {reason}{kept}")
        again = "started again" if self._url is None else "given its weights again"
        log.warning("vLLM gave no answer and is %s (%d of %d): %s", again, self.life, self.restarts, reason)
        self._start()

    def close(self) -> None:
        """End the server, where it was started here."""
        self._client = None
        if self._process is not None:
            self._process.stop()

    def _start(self) -> None:
        """Start a server on the policy's weights, or connect to one and send them."""
        assert self._policy is not None
        self.life += 1
        try:
            if self._url is not None:
                client = VLLMClient(self._url, timeout=self.timeout)
                self._wait(client, None)
                self._url_version = client.version()
                if (longest := client.context()) < self.context:
                    raise EngineError(
                        f"vLLM at {self._url} takes sequences of {longest} tokens, the engine's context is "
                        f"{self.context}: start it with --max-model-len {self.context}"
                    )
                self._update(client, self._write())
                _check_log_probs(client, self.version)
            else:
                folder = self._write()
                self._update(self._launch(folder), folder, loaded=True)
        except NoAnswer as error:
            self.recover(self.life, str(error))

    def _launch(self, folder: Path) -> VLLMClient:
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # what the trainer has reserved and does not use; a restart comes in mid-run
        port = free_port()
        flags = {"context": self.context, "rows": self.rows, "dtype": self.dtype, "cache_gib": self._cache_gib}
        command = server_command(self._python, folder, port, **flags) + self._options
        own, log_file = environment(self._python, self._cache_gib), folder.parent / "server.log"
        process = self._process = WatchedProcess(command, folder.parent, log_file, own)
        client = VLLMClient(f"http://127.0.0.1:{port}", timeout=self.timeout)
        self._wait(client, process)
        return client

    def _wait(self, client: VLLMClient, process: WatchedProcess | None) -> None:
        """Wait until a server answers.

        Raises:
            NoAnswer: the time is up, or a server that was started here has ended.
        """
        deadline = time.monotonic() + self.start_timeout
        while True:
            answers = client.healthy()
            if process is not None and process.ended:  # then another server may have answered at its port
                raise NoAnswer("it ended as it started")
            if answers:
                return
            if time.monotonic() > deadline:
                raise NoAnswer(f"{client.url} is not up after {self.start_timeout:g} s")
            time.sleep(0.2)

    def _update(self, client: VLLMClient, folder: Path, *, loaded: bool = False) -> None:
        """Have the server load the weights in a folder, or name those it has loaded at its start, and prove them."""
        if loaded:
            client.name_weights(self.version)
        else:
            client.update(str(folder), self.version)
        self.gap = self._prove(folder, partial(_greedy, client, self.version))
        self._client, self._stale = client, False
        self._remove_earlier_weights()

    def _write(self) -> Path:
        """Write the policy's weights, or find those of its present version."""
        assert self._policy is not None
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="prorag-vllm-", dir=self._scratch_root))
            weakref.finalize(self, shutil.rmtree, self._scratch, True)
        return write_weights(self._policy, self._scratch / self.version, self.dtype)

    def _remove_earlier_weights(self) -> None:
        assert self._scratch is not None
        for folder in self._scratch.glob("weights-*"):
            if folder.name != self.version:
                shutil.rmtree(folder, ignore_errors=True)


def _greedy(client: VLLMClient, version: str, prompts: Sequence[Sequence[int]]) -> list[Generated]:
    """The most probable token after each prompt, some at a time."""
    sampling = {"temperature": 0.0, "max_tokens": 1, "ignore_eos": True}
    with ThreadPoolExecutor(16) as threads:
        return list(threads.map(lambda ids: client.generate(ids, sampling, weights=version), prompts))


def _check_log_probs(client: VLLMClient, version: str) -> None:
    """Require log-probs of what was sampled from: among one token, the one kept of all, it has log-prob 0.

    Raises:
        EngineError: the server gives those of the model.
    """
    sampling = {"temperature": 1.0, "top_k": 1, "max_tokens": 1, "ignore_eos": True}
    if any(abs(logp) > 1e-6 for logp in client.generate((0, 1, 2), sampling, weights=version).logps):
        raise EngineError(
            f"vLLM at {client.url} gives log-probs before temperature and top-p: start it with "
            "--logprobs-mode processed_logprobs"
        )


def _kept(server_log: Path) -> Path:
    """A copy of what a server has printed, which outlives the folder of its weights."""
    return Path(shutil.copy(server_log, Path(tempfile.gettempdir()) / f"vllm-{os.getpid()}.log"))


def _own_url(urls: Sequence[str]) -> str:
    """The server of this rank."""
    if len(urls) < int(os.environ.get("WORLD_SIZE", "1")):
        raise ConfigError(f"{len(urls)} urls: each rank updates the weights of a vLLM server of its own, one a rank")
    return urls[int(os.environ.get("RANK", "0"))]
