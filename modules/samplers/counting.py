"""A sampler whose tokens are counted: how rewards get the current policy's sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envs.interfaces import Sampler
from envs.types import Episode, Request, Turn


class CountingSampler:
    """Passes everything on to another sampler and counts in `tokens` what that one samples."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler, self.tokens = sampler, 0
        self.temperature, self.top_p = sampler.temperature, sampler.top_p

    def submit(self, requests: Sequence[Request]) -> None:
        self._sampler.submit(requests)

    def collect(self) -> list[tuple[Request, Turn]]:
        finished = self._sampler.collect()
        self.tokens += sum(len(turn.action_ids) for request, turn in finished if request.forced_ids is None)
        return finished

    def release(self, episodes: Sequence[Episode]) -> None:
        self._sampler.release(episodes)

    def load(self, policy: Any) -> None:
        self._sampler.load(policy)
