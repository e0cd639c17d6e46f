"""Fully sharded data parallelism (FSDP2): who holds what, and how the whole is had where it is needed.

Every rank keeps a share of each parameter, its gradient and its optimiser state; a layer's parameters are gathered
when it runs. That is a collective call: where ranks run the model different numbers of times, `gathered` comes first.
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

from modules.lora import has_adapters, merged


class FSDP2(ModelParallelStrategy):
    """Shards parameters over all processes, however many there are; a `Training` module lets itself be sharded.

    A checkpoint is one file with the whole state, put together on rank 0: it is written atomically and can be read by
    any number of processes. Lightning's folders of shards are neither.
    """

    def __init__(self) -> None:
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        super().__init__(data_parallel_size=ranks, tensor_parallel_size=1, save_distributed_checkpoint=False)


def shard(model: nn.Module, mesh: DeviceMesh, *, mixed: bool = False) -> None:
    """Shard a model in place: its decoder layers one by one, then the rest; a model that is sharded stays as it is.

    Args:
        mesh: the processes.
        mixed: compute in bfloat16 with float32 parameters, gradients and optimiser state.
    """
    if isinstance(model, FSDPModule):
        return
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy()
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    for module in [*(one for one in model.modules() if type(one).__name__ in kinds), model]:
        fully_shard(module, mesh=mesh, mp_policy=policy)


@contextmanager
def gathered(module: LightningModule) -> Iterator[None]:
    """Run the model of a module that is being fitted as often as this rank likes, in the precision of its training.

    Sharded parameters are gathered once, by all ranks together, and given back at the end, so between the two no
    forward pass is a collective call. Where nothing is sharded, there is nothing to gather.
    """
    sharded = [one for one in module.modules() if isinstance(one, FSDPModule)]
    try:
        for one in sharded:
            one.unshard()
            one.set_reshard_after_forward(False, recurse=False)
        with module.trainer.precision_plugin.forward_context():
            yield
    finally:
        for one in sharded:
            one.set_reshard_after_forward(True, recurse=False)
            one.reshard()


def full_state(module: nn.Module) -> dict[str, Tensor]:
    """Whole parameters and buffers by name, on the CPU. All ranks call it, the first gets them, the others none."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return cast(dict[str, Tensor], get_model_state_dict(module, options=options))


def whole(model: PreTrainedModel, state: Mapping[str, Tensor]) -> PreTrainedModel:
    """A copy to be saved, of what `full_state` gathered: on the CPU, adapters merged into weights of float32."""
    kind = next(kind for kind in type(model).__mro__ if not issubclass(kind, FSDPModule))
    with torch.device("meta"):
        copy = kind(model.config)
    copy.load_state_dict(merged(model, state) if has_adapters(model) else state, assign=True)
    copy.tie_weights()
    copy.generation_config = model.generation_config
    return copy
