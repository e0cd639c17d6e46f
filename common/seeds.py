"""Stable hashes, from which all splits, orders and random numbers of the suite derive."""

from __future__ import annotations

import hashlib


def stable_hash(*parts: str | int | float) -> int:
    """A 63-bit hash of the parts, the same on every machine and in every process (unlike `hash`)."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
