"""Cells of a sweep: every combination of the values that settings are given, each an experiment of its own."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from common.errors import ConfigError

_CLOSING = {"[": "]", "{": "}", "(": ")", '"': '"', "'": "'"}


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination: `arm` names it without its seed, `overrides` are the settings on `train.py`'s command line."""

    arm: str
    seed: str
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """`lr=1e-5, seed 0`."""
        return ", ".join(filter(None, [self.arm, f"seed {self.seed}" if self.seed else ""]))


def cells(experiment: str, settings: Iterable[str]) -> list[Cell]:
    """All combinations of `key=value,value`, seeds innermost.

    A cell's experiment is the file's with the settings that vary, but for the seed: `quickstart_lr_1e-5`. A comma
    inside brackets or quotes is part of a value.

    Raises:
        ConfigError: a setting is none, is given twice or without a value, or two cells would have one name.
    """
    values: dict[str, list[str]] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key or key in values or key == "experiment":
            raise ConfigError(
                f"'{setting}' is no setting to vary: write key=value,value with each key once, such as seed=0,1"
            )
        values[key] = split(text)
        if "" in values[key] or len({*values[key]}) < len(values[key]):
            raise ConfigError(f"'{setting}' has an empty value, or one twice")
    varied = {
        key: short for key, short in _shortened([key for key in values if key != "seed"]).items() if values[key][1:]
    }
    order = sorted(values, key=lambda key: key == "seed")
    found: dict[tuple[str, str], Cell] = {}
    for chosen in itertools.product(*(values[key] for key in order)):
        cell = _cell(experiment, dict(zip(order, chosen, strict=True)), varied)
        place = cell.overrides[0], cell.seed
        if place in found:
            raise ConfigError(f"'{cell.name}' and '{found[place].name}' would both be the {place[0]}: vary them apart")
        found[place] = cell
    return list(found.values())


def split(text: str) -> list[str]:
    """A text at its commas, but those inside brackets and quotes: `[1,2],[3]` -> `[1,2]`, `[3]`."""
    parts, inside = [""], list[str]()
    for letter in text:
        if letter == "," and not inside:
            parts.append("")
            continue
        parts[-1] += letter
        if inside and letter == inside[-1]:
            inside.pop()
        elif letter in _CLOSING and not (inside and inside[-1] in "'\""):
            inside.append(_CLOSING[letter])
    return parts


def _cell(experiment: str, chosen: Mapping[str, str], varied: Mapping[str, str]) -> Cell:
    name = experiment + "".join(f"_{short}_{chosen[key]}" for key, short in varied.items())
    named = f"experiment={re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}"
    arm = ", ".join(f"{short}={chosen[key]}" for key, short in varied.items())
    return Cell(arm, chosen.get("seed", ""), (named, *(f"{key}={value}" for key, value in chosen.items())))


def _shortened(keys: Sequence[str]) -> dict[str, str]:
    """Dotted keys by the shortest ends that tell them apart: `stages.rl.module.lr` is `lr`."""
    ends = {key: [key.split(".")[-length:] for length in range(1, key.count(".") + 2)] for key in keys}
    return {
        key: ".".join(next(end for end in own if sum(end in other for other in ends.values()) == 1))
        for key, own in ends.items()
    }
