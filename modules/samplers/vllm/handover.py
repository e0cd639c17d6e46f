"""Handover of a policy's weights to a server: whole models in folders, or one base model and then adapters alone.

Every rank writes for its own server, which may have a disk of its own. No call in here is collective: where parameters
are sharded they have been gathered.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from uuid import uuid4

import torch
from filelock import FileLock, Timeout
from transformers import PreTrainedModel
from transformers.utils import logging

from common.errors import ConfigError
from common.files import build_once
from common.precision import Dtype
from modules.lora import adapter_config, adapter_state, has_adapters, save_adapters
from modules.policy import Policy, load_policy
from modules.samplers.vllm.client import VLLMClient
from modules.sharding import whole

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for


class Handover(ABC):
    """A way to hand a policy's weights to a server.

    Args:
        dtype: that the server computes in.
        root: folder for what is handed over; None is a temporary one.

    Attributes:
        adapter: the name that turns ask for; None where the server has whole weights.
    """

    adapter: str | None = None

    def __init__(self, dtype: Dtype, root: str | None) -> None:
        self.dtype: Dtype = dtype
        self._root = root
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        """A new folder for what is handed over, removed with this object or, where it is killed, by the next one."""
        if self._folder is None:
            lock = _claimed(Path(self._root or tempfile.gettempdir()))
            self._folder = _folder_of(lock)
            weakref.finalize(self, _remove, lock)
        return self._folder

    @abstractmethod
    def check(self, policy: Policy) -> None:
        """Require a policy whose weights can be handed over in this way.

        Raises:
            ConfigError: they cannot.
        """

    @abstractmethod
    def flags(self, policy: Policy) -> list[str]:
        """Flags that a server must be started with."""

    @abstractmethod
    def start(self, policy: Policy, version: str) -> Path:
        """Write the model that a server is started on and return its folder; `give` brings what it lacks."""

    @abstractmethod
    def give(self, client: VLLMClient, policy: Policy, version: str, *, started: bool) -> None:
        """Have a server sample from this version; `started`: it has just been started on what `start` wrote."""

    @abstractmethod
    def proof(self, policy: Policy, version: str) -> PreTrainedModel:
        """A model with the weights that were given, to compare the server with."""

    def remove_earlier(self, client: VLLMClient, version: str) -> None:
        """Remove what was written for other versions than the one that a server is proved to have."""
        for folder in self.folder.glob("weights-*"):
            if folder.name != version:
                shutil.rmtree(folder, ignore_errors=True)


class WholeWeights(Handover):
    """The whole model, adapters merged, is written for each version; a running server reads it through its routes."""

    def check(self, policy: Policy) -> None:
        pass

    def flags(self, policy: Policy) -> list[str]:
        extension = "modules.samplers.vllm.weight_files.WorkerExtension"
        return ["--weight-transfer-config", json.dumps({"backend": "files"}), "--worker-extension-cls", extension]

    def start(self, policy: Policy, version: str) -> Path:
        return _write_model(policy, self.folder / version, self.dtype)

    def give(self, client: VLLMClient, policy: Policy, version: str, *, started: bool) -> None:
        folder = self.start(policy, version)
        if started:
            client.name_weights(version)
        else:
            client.update(str(folder), version)

    def proof(self, policy: Policy, version: str) -> PreTrainedModel:
        """What was written, read back."""
        logging.disable_progress_bar()  # of loading a model, in every iteration
        return load_policy(str(self.folder / version), dtype=self.dtype, device="cpu").model


class AdaptersAlone(Handover):
    """The model under the adapters is written once; of each version the adapters alone, which the server loads anew.

    Each time they get another name, since vLLM caches prefixes by the name.
    """

    def __init__(self, dtype: Dtype, root: str | None) -> None:
        super().__init__(dtype, root)
        self._loads = count(1)
        self._earlier: list[str] = []  # adapters that a server may still have

    def check(self, policy: Policy) -> None:
        if not has_adapters(policy.model):
            raise ConfigError(
                "vLLM: adapters: true needs a policy that has LoRA adapters: give the module `lora`, or leave "
                "`adapters` out"
            )
        config = adapter_config(policy.model)
        if config.trainable_token_indices:
            raise ConfigError(
                "vLLM: adapters: true cannot serve trained rows of tokens: give lora `trainable_tokens: false`, or "
                "leave `adapters` out, which merges them"
            )
        if config.r > _RANKS[-1]:
            raise ConfigError(f"vLLM: adapters: true takes a rank of {_RANKS[-1]} at most, lora has r {config.r}")

    def flags(self, policy: Policy) -> list[str]:
        rank = next(rank for rank in _RANKS if rank >= adapter_config(policy.model).r)
        return ["--enable-lora", "--max-lora-rank", str(rank)]

    def start(self, policy: Policy, version: str) -> Path:
        return _write_model(policy, self.folder / "base", self.dtype, base=True)

    def give(self, client: VLLMClient, policy: Policy, version: str, *, started: bool) -> None:
        served = replace(policy, new_tokens=frozenset())  # whose rows the base has
        folder = build_once(self.folder / version, lambda to: save_adapters(served, adapter_state(policy.model), to))
        self._earlier += [self.adapter] if self.adapter else []
        self.adapter = f"{version}-{next(self._loads)}"
        client.load_adapter(str(folder), self.adapter, version)

    def proof(self, policy: Policy, version: str) -> PreTrainedModel:
        """The policy's own, which nothing has trained since; it is read before it trains."""
        return policy.model

    def remove_earlier(self, client: VLLMClient, version: str) -> None:
        super().remove_earlier(client, version)
        while self._earlier:
            client.unload_adapter(self._earlier.pop())


def _claimed(root: Path) -> FileLock:
    """The lock of a new folder, held as long as this process lives; folders of runs that were killed are removed."""
    for file in root.glob("prorag-vllm-*.lock"):
        with suppress(Timeout, OSError), FileLock(file, timeout=0) as left:
            _remove(left)
    lock = FileLock(root / f"prorag-vllm-{uuid4().hex[:12]}.lock", thread_local=False)
    lock.acquire()
    _folder_of(lock).mkdir(mode=0o700)
    return lock


def _folder_of(lock: FileLock) -> Path:
    return Path(lock.lock_file).with_suffix("")


def _remove(lock: FileLock) -> None:
    """Remove a folder with its lock."""
    shutil.rmtree(_folder_of(lock), ignore_errors=True)
    lock.release()
    Path(lock.lock_file).unlink(missing_ok=True)


def _write_model(policy: Policy, folder: Path, dtype: Dtype, *, base: bool = False) -> Path:
    """Write model and tokenizer in the Hugging Face format, adapters merged in float32; atomically, and only once.

    Args:
        base: the model under its adapters, in place of the one with them.
    """
    if folder.is_dir():
        return folder
    parameters = {name: one.detach().cpu() for name, one in policy.model.named_parameters(remove_duplicate=False)}
    plain = whole(policy.model, parameters, base=base).to(getattr(torch, dtype))
    plain.should_save_on_this_rank = lambda is_main_process: True  # transformers writes on rank 0 alone
    return build_once(folder, Policy(plain, policy.tokenizer).save)
