"""Runs inside vLLM: weights are loaded from a folder of safetensors files, without a restart.

vLLM has its own routes for weight updates, and backends that carry the weights: NCCL and CUDA's IPC. This file adds one
for which a shared file system is enough. vLLM imports it by name (`--worker-extension-cls`) in each of its workers, in
the environment of the engine, where the suite is not installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (  # pyright: ignore[reportMissingImports]
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import (  # pyright: ignore[reportMissingImports]
    WeightTransferEngineFactory,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (  # pyright: ignore[reportMissingImports]
    ParallelLMHead,
)
from vllm.model_executor.model_loader.reload import (  # pyright: ignore[reportMissingImports]
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)


class WorkerExtension:
    """Nothing is added to a worker: importing this file registers the backend."""


@dataclass
class FilesInit(WeightTransferInitInfo):
    """No connection is needed."""


@dataclass
class FilesUpdate(WeightTransferUpdateInfo):
    """`folder` holds a whole model in the Hugging Face format."""

    folder: str


class FilesEngine(WeightTransferEngine[FilesInit, FilesUpdate]):
    """Loads all weights of a folder, through vLLM's layerwise reload: packed weights are packed anew."""

    init_info_cls = FilesInit
    update_info_cls = FilesUpdate

    def init_transfer_engine(self, init_info: FilesInit) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: FilesUpdate) -> None:
        try:
            self.model.load_weights(_tensors(Path(update_info.folder)))
        except BaseException:
            # Else the next update counts the half of a layer that was loaded, and loads the other half alone.
            finalize_layerwise_reload(self.model, self.model_config)
            raise

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        # A tied head gets no weights of its own, so the reload leaves what a CPU has packed of the old ones.
        for module in self.model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)

    def shutdown(self) -> None:
        pass


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    """Names and tensors of all files of a folder."""
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise FileNotFoundError(f"no safetensors files in {folder}")
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (it is no dict)
                yield name, file.get_tensor(name)


WeightTransferEngineFactory.register_engine("files", FilesEngine)
