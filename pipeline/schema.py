"""The schema of an experiment file. Components stay plain maps, which `pipeline.components` checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass
class TrainerSettings:
    """The Lightning Trainer's own options; the defaults are Lightning's unless a comment says otherwise."""

    max_epochs: int | None = None
    max_steps: int = -1
    precision: str | None = None
    strategy: Any = "auto"  # a Lightning name, or a component such as FSDP2
    gradient_clip_val: float | None = None
    gradient_clip_algorithm: Literal["norm", "value"] | None = None
    log_every_n_steps: int = 1  # an optimiser step is long here
    val_check_interval: int | float | None = None
    check_val_every_n_epoch: int | None = 1
    num_sanity_val_steps: int = 0  # validation generates text, too slow for a sanity check
    limit_train_batches: int | float | None = None
    limit_val_batches: int | float | None = None
    deterministic: bool | str | None = True  # the same batches give the same bits; on a GPU `warn` would not


@dataclass
class Stage:
    """A stage fits `module` on `data`; without a module, `data` makes records."""

    data: Any
    module: Any = None
    callbacks: dict[str, Any] = field(default_factory=dict)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)

    @property
    def kind(self) -> str:
        """`fit` with a module, `make` without."""
        return "make" if self.module is None else "fit"


@dataclass
class Experiment:
    """A whole experiment file. `parts` holds pieces that stages reference as `${parts.name}`.

    `names` are what pages of results call evaluations and step rankings, by stage, `loggers` components of Lightning's
    loggers beside TensorBoard's; no stage's result depends on them.
    """

    experiment: str
    stages: dict[str, Stage]
    seed: int = 0
    data_root: str | None = None
    output: str = "runs"
    devices: int = 1
    num_nodes: int = 1
    accelerator: str = "auto"
    parts: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    loggers: dict[str, Any] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        """Processes that share the work."""
        return self.devices * self.num_nodes
