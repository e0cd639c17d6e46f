"""Small components for the tests of configuration and stages: a record stage and pieces to nest. Quick to import."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from common.errors import ConfigError, DataError
from common.files import atomic_write


@dataclass(frozen=True)
class Limits:
    """A dataclass argument: built from a plain map."""

    steps: int = 3
    tokens: int = 8


class Piece:
    """A nested component."""

    def __init__(self, name: str, other: Any = None, scale: float = 1.0) -> None:
        if scale < 0:
            raise ConfigError("scale must not be negative")
        self.name, self.other, self.scale = name, other, scale


class Holder:
    """A component with arguments of every kind."""

    def __init__(
        self,
        piece: Piece,
        *,
        count: int = 1,
        mode: Literal["fast", "slow"] = "fast",
        corpus: Path | None = None,
        limits: Limits | None = None,
        hook: Callable[[int], int] | None = None,
        more: Sequence[Any] = (),
        rewards: dict[str, Any] | None = None,
        pair: tuple[int, ...] = (),
    ) -> None:
        self.piece, self.count, self.mode, self.corpus, self.limits = piece, count, mode, corpus, limits
        self.hook, self.more, self.rewards, self.pair = hook, more, rewards, pair


class Codec(Protocol):
    """A protocol that a component can satisfy."""

    def encode(self, text: str) -> list[int]: ...


class Reader:
    """Takes a component or something plain, or nothing."""

    def __init__(
        self,
        piece: str | Piece = "",
        codec: Codec | None = None,
        wanted: Collection[int] = (),
        limits: Limits | Piece | None = None,
    ) -> None:
        self.piece, self.codec, self.wanted, self.limits = piece, codec, wanted, limits


@dataclass
class Weighted:
    """Settings around a component."""

    piece: Piece
    weight: float = 1.0


class Weighing:
    """Takes maps that mean a dataclass."""

    def __init__(self, pieces: Mapping[str, Weighted]) -> None:
        self.pieces = pieces


class Open:
    """Takes anything."""

    def __init__(self, first: int = 0, **rest: Any) -> None:
        self.first, self.rest = first, rest


def reward(episodes: list[int], context: int, *, weight: float = 1.0) -> list[float]:
    """Lacks two arguments in a config, so it is bound."""
    return [weight * (episode + context) for episode in episodes]


def unnamed(first: int, /) -> int:
    """Cannot be called with names, as components are."""
    return first


class Numbers:
    """A record stage: each rank writes `rank-<r>.jsonl`; `merge` joins them in rank order, and adds the numbers."""

    def __init__(self, count: int, source: Path | None = None, fails_on: int | None = None, bug: bool = False) -> None:
        self.count, self.source, self.fails_on, self.bug = count, source, fails_on, bug

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        if rank == self.fails_on:
            raise ValueError("a bug") if self.bug else DataError("numbers.txt:3: not a number")
        share = [seed + number for number in range(self.count) if number % world_size == rank]
        with atomic_write(folder / "data" / f"rank-{rank}.jsonl") as f:
            f.writelines(f"{json.dumps(number)}\n" for number in share)

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        lines = [(folder / "data" / f"rank-{rank}.jsonl").read_text() for rank in range(world_size)]
        if self.source is not None:
            lines.append((self.source / "data" / "all.jsonl").read_text())
        with atomic_write(folder / "data" / "all.jsonl") as f:
            f.write("".join(lines))
        return {"numbers": float("".join(lines).count("\n"))}


MOMENTS: dict[str, Callable[[], object]] = {}  # what a test does between the units of a `Reads` of that name


class Reads:
    """A record stage of two units, each a copy of its inputs when it was made; `merge` joins them."""

    def __init__(self, name: str, corpus: Path, source: Path | None = None) -> None:
        self.name, self.files = name, [corpus] + ([] if source is None else [source / "data" / "all.txt"])

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        for unit in range(2):
            path = folder / "data" / f"unit-{unit}.txt"
            if rank == 0 and not path.exists():
                with atomic_write(path) as f:
                    f.write("".join(part.read_text() for file in self.files for part in _parts(file)))
                if unit == 0:
                    MOMENTS.get(self.name, int)()

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        with atomic_write(folder / "data" / "all.txt") as f:
            f.write("".join((folder / "data" / f"unit-{unit}.txt").read_text() for unit in range(2)))
        return {"units": 2.0}


def _parts(file: Path) -> list[Path]:
    return sorted(file.iterdir()) if file.is_dir() else [file]


class Noted:
    """A component of which the manifest says something."""

    def __init__(self, text: str) -> None:
        self.manifest_facts = {"engine": text}


class NumbersOf(Numbers):
    """A record stage that is made with other components."""

    def __init__(self, count: int, parts: Sequence[Any]) -> None:
        super().__init__(count)
        self.parts = parts


class Sleeper:
    """A record stage that says it began, and then takes its time, in a thread, as one that waits for a server does."""

    def __init__(self, seconds: float, flag: str) -> None:
        self.seconds, self.flag = seconds, flag

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(time.sleep, self.seconds)
            Path(self.flag).touch()
            waiting.result()

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        return {}


@dataclass
class Entry:
    """Settings with text in them."""

    name: str = ""


class Words(Numbers):
    """A record stage whose arguments are text, numbers and switches, alone and inside others."""

    def __init__(
        self,
        revision: str = "",
        maybe: str | None = None,
        either: int | str = 0,
        mode: Literal["on", "off"] = "on",
        names: Sequence[str] = (),
        titles: Mapping[str, str] | None = None,
        weights: dict[int, float] | None = None,
        corpus: Path | None = None,
        entry: Entry | None = None,
        count: int = 0,
        scale: float = 1.0,
        switch: bool = False,
        anything: Any = None,
    ) -> None:
        super().__init__(count)
        self.revision, self.maybe, self.either, self.mode, self.names = revision, maybe, either, mode, names
        self.titles, self.weights, self.corpus, self.entry = titles, weights, corpus, entry
        self.scale, self.switch, self.anything = scale, switch, anything


class Results:
    """An evaluation of four questions, of which the first `right` are answered rightly."""

    def __init__(self, right: int = 2, source: Path | None = None, fails: bool = False) -> None:
        self.right, self.fails = right, fails

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        if self.fails:
            raise DataError("toys: no answer")

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        scores = [float(number < self.right) for number in range(4)]
        asked = [{"id": f"q{number}", "question": f"{number}?", "answers": ["a"]} for number in range(4)]
        answered = {"prediction": "a", "status": "answered", "steps": []}
        predictions = [one | answered | {"em": em, "f1": em} for one, em in zip(asked, scores, strict=True)]
        row = {"dataset": "toys", "split": "test", "n": 4, "em": self.right / 4, "f1": self.right / 4}
        for name, text in {
            "predictions-toys-test.jsonl": "".join(f"{json.dumps(one)}\n" for one in predictions),
            "results.json": json.dumps({"rows": [row], "groups": [], "notes": {}}),
        }.items():
            with atomic_write(folder / "data" / name) as f:
                f.write(text)
        return {"eval/toys/test/em": self.right / 4}
