"""What a manifest says of a stage besides settings and versions: which engine sampled, what it does not promise."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping


@typing.runtime_checkable
class Noted(typing.Protocol):
    """A component of which the manifest says something that its settings do not."""

    @property
    def manifest_facts(self) -> Mapping[str, str]:
        """Facts by name, known once the stage is done."""
        ...


def facts_of(parts: Iterable[object]) -> dict[str, str]:
    """The facts of these components, those of different ones under one name joined."""
    found: dict[str, list[str]] = {}
    for part in parts:
        if isinstance(part, Noted):
            for name, text in part.manifest_facts.items():
                found.setdefault(name, []).append(text)
    return {name: "; ".join(dict.fromkeys(texts)) for name, texts in sorted(found.items())}
