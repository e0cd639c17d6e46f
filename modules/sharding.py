"""Fully sharded data parallelism (FSDP2): sharding a model, and gathering its parameters for sampling and for export.

Every rank keeps a shard of each parameter, its gradient and its optimiser state; a layer's parameters are gathered
when it runs. That is a collective call: where ranks run the model different numbers of times, use `gathered`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from modules.lora import has_adapters, merged, without_adapters


class FSDP2(ModelParallelStrategy):
    """Shards the parameters of a `Training` module over all processes.

    A checkpoint is one file with the full state, gathered on rank 0: it is written atomically and any number of
    processes can read it. Neither holds for Lightning's folders of shards.
    """

    def __init__(self) -> None:
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        super().__init__(data_parallel_size=ranks, tensor_parallel_size=1, save_distributed_checkpoint=False)


def shard(model: nn.Module, mesh: DeviceMesh, *, mixed: bool = False) -> None:
    """Shard a model in place: its decoder layers one by one, then the rest. A sharded model is left as it is.

    Args:
        mesh: the processes.
        mixed: compute in bfloat16 with float32 parameters, gradients and optimiser state.
    """
    if isinstance(model, FSDPModule):
        return
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy()
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    for module in [*(layer for layer in model.modules() if type(layer).__name__ in kinds), model]:
        fully_shard(module, mesh=mesh, mp_policy=policy)


@contextmanager
def gathered(module: LightningModule) -> Iterator[None]:
    """Hold the whole parameters of a module, in its training precision: ranks may call it unequally often.

    Sharded parameters are gathered once, by all ranks together, and resharded at the end: no forward pass in between
    is a collective call. Without sharding only the precision is set.
    """
    sharded = [layer for layer in module.modules() if isinstance(layer, FSDPModule)]
    try:
        for layer in sharded:
            layer.unshard()
            layer.set_reshard_after_forward(False, recurse=False)
        with module.trainer.precision_plugin.forward_context():
            yield
    finally:
        for layer in sharded:
            layer.set_reshard_after_forward(True, recurse=False)
            layer.reshard()


def full_state(module: nn.Module) -> dict[str, Tensor]:
    """Full parameters and buffers by name, on the CPU. All ranks call it; rank 0 gets them, the others get none."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return cast(dict[str, Tensor], get_model_state_dict(module, options=options))


def whole(model: PreTrainedModel, state: Mapping[str, Tensor], *, base: bool = False) -> PreTrainedModel:
    """An unsharded copy of the model from what `full_state` gathered: on the CPU, adapters merged in float32.

    Args:
        base: the model under its adapters, in place of the one with them.
    """
    kind = next(kind for kind in type(model).__mro__ if not issubclass(kind, FSDPModule))
    with torch.device("meta"):
        copy = kind(model.config)
    plain = without_adapters(state) if base else merged(model, state) if has_adapters(model) else state
    copy.load_state_dict(plain, assign=True)
    copy.tie_weights()
    copy.generation_config = model.generation_config
    return copy
