"""Indexes that an engine holds: filled whole from a corpus under a name that says what is in them."""

from __future__ import annotations

import re
from pathlib import Path

from common.errors import ConfigError, DataError
from envs.retrievers.corpus import DocumentFile

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
DEPTH = 50  # hits of each kind of search that are fused


def check_name(name: str) -> None:
    """Require a name that every engine accepts.

    Raises:
        ConfigError: it is none.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"name {name!r}: use a to z, digits and _, a letter first, at most 64")


def full_name(name: str, corpus: str, encoder: str = "") -> str:
    """The index behind `name` for a corpus, by its identity, and the encoder of its vectors.

    An index is filled under this name, and `name` leads to it once it is whole.
    """
    return f"{name}_{corpus[:12]}" + (f"_{encoder[:12]}" if encoder else "")


def check_filled(found: str | None, name: str, where: str, command: str, corpus: Path | None, encoder: str = "") -> str:
    """The index behind `name`, once it is known to be the right one.

    Args:
        found: its full name; None where there is none.
        where: the engine, for messages.
        command: fills it.
        corpus: passages that it must hold; None takes any.
        encoder: identity of the encoder of queries, empty where vectors are not searched.

    Raises:
        DataError: there is no such index, or it is of another corpus or encoder.
    """
    advice = f"fill it: python -m envs.retrievers.fill {command}"
    if found is None:
        raise DataError(f"{where} has no index {name!r}: {advice}")
    if encoder and not found.endswith(f"_{encoder[:12]}"):
        raise DataError(f"{where}: index {name!r} ({found}) has no vectors of this encoder: {advice}")
    if corpus is not None and not found.startswith(full_name(name, DocumentFile(corpus).identity)):
        raise DataError(f"{where}: index {name!r} ({found}) is of another corpus than {corpus}: {advice}")
    return found
