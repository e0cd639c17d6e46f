"""The pieces of a context that a protocol renders anew; the environment encodes them, and cuts passages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Control:
    """A piece of a context: trusted text, in which tags become their tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class Quoted:
    """A piece of a context: token ids that the policy sampled earlier; never cut, and not trained in this place."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Data:
    """A piece of a context: untrusted text, neutralised; passages may be cut to the limits, a question may not."""

    text: str
    cuttable: bool = False


Piece = Control | Quoted | Data
