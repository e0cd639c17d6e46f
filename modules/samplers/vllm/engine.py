"""A vLLM server that samples from one policy: started here or running elsewhere, updated, watched, started again.

vLLM contradicts the suite's versions, so it runs in an environment of its own (`make engine`) and is talked to over
HTTP. What it can do, and its traps, were measured: docs/decisions/vllm.md.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from common.cancellable_request import CancellableRequest
from common.errors import ConfigError, EngineError
from common.precision import Dtype
from modules.policy import Policy
from modules.samplers.vllm.client import Generated, NoAnswer, VLLMClient
from modules.samplers.vllm.command import (
    environment,
    free_port,
    installed_version,
    on_cpu,
    own_url,
    require_room,
    server_command,
)
from modules.samplers.vllm.handover import AdaptersAlone, Handover, WholeWeights
from modules.samplers.vllm.launch import free_unused_gpu_memory, kept, last_words, wait_until_up
from modules.samplers.vllm.served_weights import WeightProof, check_log_probs, most_probable
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
        adapters: the server gets the policy's base model once and after each update its adapters alone, in place of the
            whole model with the adapters merged.
        sleeps: while the policy trains, the server's weights wait in the machine's memory and its cache is dropped, so
            that both can use one GPU.
        urls: servers that run already, one a rank; None starts one. They see `scratch` under the same path.
        cache_gib: memory for keys and values, in GiB.
        rows: sequences that it decodes at once.
        options: more of vLLM's own flags.
        python: the interpreter of the engine's environment; None is that of `make engine`.
        scratch: folder for the weights that are handed over, twice the model's size, with `adapters` once; None is a
            temporary one.
        restarts: how often in its life it may be started again, also where a start failed; its open turns are asked
            again with the same seeds.
        timeout: seconds for one turn.
        start_timeout: seconds for a start.

    Raises:
        ConfigError: a setting is out of range, or there is no engine or none that can sleep.
    """

    def __init__(
        self,
        context: int,
        *,
        dtype: Dtype = "bfloat16",
        adapters: bool = False,
        sleeps: bool = False,
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
        self._url = None if urls is None else own_url(urls)
        self._python = Path(python or ENGINE_PYTHON)
        if urls is None and not self._python.exists():
            raise ConfigError(f"no vLLM at {self._python}: run `make engine`, or give the engine `urls`")
        if urls is None and sleeps and on_cpu(self._python):
            raise ConfigError(f"the vLLM at {self._python} is built for a CPU and cannot sleep: leave `sleeps` out")
        if urls is not None and scratch is None:
            raise ConfigError("an engine at `urls` reads weights from files: give it `scratch`, a folder that it sees")
        self._handover: Handover = (AdaptersAlone if adapters else WholeWeights)(dtype, scratch)
        self.sleeps, self._asleep = sleeps, False
        self._url_version = "of an unknown version"  # until it has been asked
        self._name = uuid4().hex[:12]  # of its weights: a server that two engines were given must not mix them up
        self._policy: Policy | None = None
        self._prove = WeightProof(dtype)
        self._stale = True
        self._client: VLLMClient | None = None
        self._process: WatchedProcess | None = None
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
        """Sample from this policy as it is when the next request comes; `cache_gib` must hold a sequence of it.

        Raises:
            ConfigError: it does not, or the policy's weights cannot go the way that was set.
        """
        if self._url is None:
            require_room(policy.model.config, self.context, self.dtype, self._cache_gib)
        self._handover.check(policy)
        self._policy, self._stale = policy, True
        self._updates += 1

    def make_ready(self) -> None:
        """Start the server, wake it or give it new weights, where that is due.

        Raises:
            EngineError: it cannot be done.
        """
        if self._client is None:
            self._start()
            return
        try:
            if self._asleep:
                self._wake(self._client)
            if self._stale:
                self._update(self._client)
        except NoAnswer as error:
            self.recover(self.life, str(error))

    def rest(self) -> None:
        """Have the server sleep until the next request, where that is set; one that does not is ended."""
        if not self.sleeps or self._client is None or self._asleep:
            return
        try:
            self._client.sleep()
            self._asleep = True
        except NoAnswer as error:
            self._give_up(str(error))

    def _wake(self, client: VLLMClient) -> None:
        free_unused_gpu_memory()
        client.wake_up()
        self._asleep = False

    def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], call: CancellableRequest) -> Generated:
        """Continue token ids, unless the call is given up; may be called from many threads.

        Raises:
            NoAnswer: to be passed on to `recover`, with the `life` of before the call.
            EngineError: the server rejects the request.
        """
        client = self._client
        if client is None:
            raise NoAnswer("the engine does not run")
        return client.generate(ids, sampling, weights=self.version, adapter=self._handover.adapter, call=call)

    @property
    def version(self) -> str:
        """The version of the weights: a folder's name, so that each is written once; no other engine has the same."""
        return f"weights-{self._name}-{self._updates:06d}"

    def recover(self, life: int, reason: str) -> None:
        """Start the server again, unless that was done since `life`.

        Raises:
            EngineError: it has been started again too often.
        """
        if life == self.life:
            self._give_up(reason)
            self._start()

    def _give_up(self, reason: str) -> None:
        """End a server that gave no answer, unless it was the last that might be started."""
        self.close()
        if self._process is not None:
            reason = f"{reason}; it said: {last_words(self._process.log)}"
        if self.life > self.restarts:
            where = self._url or "the engine"
            log_file = f" (all of it: {kept(self._process.log)})" if self._process else ""
            raise EngineError(f"{where} gave no answer after {self.restarts} restarts: {reason}{log_file}")
        again = "started again" if self._url is None else "given its weights again"
        log.warning("vLLM gave no answer and is %s (%d of %d): %s", again, self.life, self.restarts, reason)

    def close(self) -> None:
        """End the server, where it was started here."""
        self._client, self._asleep = None, False
        if self._process is not None:
            self._process.stop()

    def _start(self) -> None:
        """Start a server on the policy's weights, or connect to one and send them."""
        assert self._policy is not None
        self.life += 1
        try:
            if self._url is not None:
                client = VLLMClient(self._url, timeout=self.timeout)
                wait_until_up(client, None, self.start_timeout)
                self._url_version = client.version()
                if (longest := client.context()) < self.context:
                    raise EngineError(
                        f"vLLM at {self._url} takes sequences of {longest} tokens, the engine's context is "
                        f"{self.context}: start it with --max-model-len {self.context}"
                    )
                if self.sleeps:
                    self._wake(client)  # an earlier run may have left it asleep
                self._update(client)
                check_log_probs(client, self.version)
            else:
                self._update(self._launch(self._policy), started=True)
        except NoAnswer as error:
            self.recover(self.life, str(error))

    def _launch(self, policy: Policy) -> VLLMClient:
        folder = self._handover.start(policy, self.version)
        free_unused_gpu_memory()  # a restart comes in mid-run
        port = free_port()
        settings = {"context": self.context, "rows": self.rows, "dtype": self.dtype, "cache_gib": self._cache_gib}
        command = server_command(self._python, folder, port, **settings) + self._handover.flags(policy)
        command += ["--enable-sleep-mode"] * self.sleeps + self._options
        own, log_file = environment(self._python, self._cache_gib), folder.parent / "server.log"
        process = self._process = WatchedProcess(command, folder.parent, log_file, own)
        client = VLLMClient(f"http://127.0.0.1:{port}", timeout=self.timeout)
        wait_until_up(client, process, self.start_timeout)
        return client

    def _update(self, client: VLLMClient, *, started: bool = False) -> None:
        """Give a server the policy's weights, which it may have been `started` on, and prove them."""
        assert self._policy is not None
        self._handover.give(client, self._policy, self.version, started=started)
        model = partial(self._handover.proof, self._policy, self.version)
        asked = partial(most_probable, client, self.version, self._handover.adapter)
        self.gap = self._prove(model, asked, self.version)
        self._client, self._stale = client, False
        self._handover.remove_earlier(client, self.version)
