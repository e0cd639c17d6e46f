"""Resolved settings of shipped files, and in what two of them differ."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import train
from pipeline.loader import load
from pipeline.locations import leaves

CONFIGS = Path(train.__file__).parent / "configs"
Stages = dict[str, dict[str, Any]]


@cache
def stages(name: str | Path, *overrides: str) -> Stages:
    """The stages of a file in `configs/`, every reference but those to stages resolved."""
    loaded = load(CONFIGS / name, ["output=runs", "data_root=data", *overrides]).experiment.stages
    return {stage: asdict(settings) for stage, settings in loaded.items()}


def settings(name: str) -> dict[str, Any]:
    """The same by dotted key."""
    return {".".join(map(str, key)): value for key, value in leaves(stages(name))}


def changed(arm: object, base: object, *path: str) -> dict[str, Any]:
    """What `arm` sets otherwise than `base`, by dotted key: of another component the component's key alone."""
    if arm == base:
        return {}
    if isinstance(arm, dict) and isinstance(base, dict) and arm.get("target") == base.get("target"):
        names = sorted({*arm, *base})
        return {key: one for name in names for key, one in changed(arm.get(name), base.get(name), *path, name).items()}
    return {".".join(path): arm}
