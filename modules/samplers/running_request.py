"""State of a turn that waits to be sampled in this process or is being sampled, with its stop rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from envs.requests import Request
from envs.types import Finish
from modules.samplers.prefixes import Segment

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


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request, and what has been sampled for it.

    Attributes:
        number: of its submission.
        request: what is asked for.
        prefix: the tokens before the first sampled one.
        limit: tokens at most.
        stops: where it ends.
        temperature: 0 takes the most probable token.
        top_p: nucleus sampling mass.
        end: the kept segment that the prefix ends with, once the model has read it.
    """

    number: int
    request: Request
    prefix: tuple[int, ...]
    limit: int
    stops: StopTags
    temperature: float
    top_p: float
    end: Segment | None = None
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def given(self) -> Sequence[int]:
        """The tokens that are not sampled: the whole turn, its beginning or none."""
        return self.request.forced_ids or self.request.first_ids

    @property
    def tokens(self) -> int:
        """Number of tokens in its sequence so far."""
        return len(self.prefix) + len(self.ids)

    def take(self, token: int, logp: float, eos: frozenset[int]) -> None:
        """Append a token and notice whether it ends the turn."""
        self.ids.append(token)
        self.logps.append(logp)
        forced = self.request.forced_ids
        if forced is not None:
            self.finish = "stop" if len(self.ids) == len(forced) else None
        elif len(self.ids) < len(self.request.first_ids):
            return
        elif token in eos:
            self.finish = "eos"
        elif self.stops.ended(self.ids):
            self.finish = "stop"
        elif len(self.ids) >= self.limit:
            self.finish = "length"

    def restart(self) -> None:
        """Forget what was sampled and read."""
        self.end, self.finish = None, None
        self.ids.clear()
        self.logps.clear()
