"""GPU settings of a process: which attention kernels it may use, and what it computes and allocates with.

Nothing here changes what a CPU computes.
"""

from __future__ import annotations

import os

import torch

# Read once, at the first product or allocation on a GPU; what the user has set stays.
_ENVIRONMENT = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # set later, as by Lightning, deterministic mode would refuse every product
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",  # lengths differ in every batch, which fragments memory
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # JAX, started by a library, would take most of the memory
}


def prepare_gpu() -> None:
    """Call it before a process makes its first model.

    cuDNN's attention, which PyTorch prefers on Hopper GPUs, compiles a plan for each new pair of batch and length,
    nearly a second in training, and its backward pass is not deterministic.
    """
    for name, value in _ENVIRONMENT.items():
        if name != "PYTORCH_ALLOC_CONF" or "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # its name before 2.9
            os.environ.setdefault(name, value)
    torch.backends.cuda.enable_cudnn_sdp(False)
