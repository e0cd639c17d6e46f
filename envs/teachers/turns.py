"""What every teacher writes: a turn as a policy could have sampled it."""

from __future__ import annotations

from envs.interfaces import Protocol
from envs.types import Action, Request, Turn


def written_turn(protocol: Protocol, request: Request, action: Action, thought: str) -> Turn:
    """The turn that thinks `thought` and takes `action`; its log-probs are 0."""
    ids = protocol.codec.control(protocol.compose(action, thought))
    return Turn(
        agent=request.agent,
        opening_ids=request.opening_ids,
        action_ids=ids,
        action_logps=(0.0,) * len(ids),
        finish="stop",
        uid=request.episode.next_uid(),
        text=protocol.codec.decode(ids),
        context_ids=request.context_ids,
    )
