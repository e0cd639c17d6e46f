"""When a turn ends: at a stop string, be it one token or spread over several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]


class StopTags:
    """Finds a stop string in the ids sampled so far.

    A stop string can only be completed by a token that contains its last character, so only then is text decoded.
    """

    def __init__(self, tags: tuple[str, ...], token_texts: Sequence[str], decode: Decode) -> None:
        self.tags = tags
        self.decode = decode
        last = {tag[-1] for tag in tags}
        self.closing = frozenset(i for i, text in enumerate(token_texts) if any(c in text for c in last))
        self.window = max((len(tag) for tag in tags), default=0)

    def ended(self, ids: list[int]) -> bool:
        """Whether a stop string is complete in these sampled ids; they are looked at after every token."""
        if not ids or ids[-1] not in self.closing:
            return False
        tail = self.decode(ids[-self.window :])
        return any(tag in tail for tag in self.tags)
