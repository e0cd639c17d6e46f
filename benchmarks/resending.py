"""Samplers that keep nothing between turns: every turn feeds its whole context anew, as released agent code does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from envs.interfaces import Sampler
from envs.requests import Request
from envs.types import Turn
from modules.policy import Policy, end_of_message

Ids = Sequence[int]


class Resending(Sampler):
    """Base of a sampler that answers all open requests in one batch, at one temperature, and then waits for more.

    So an episode waits for the slowest turn of its batch. Log-probs are not made: they are 0.

    Args:
        policy: what is sampled from.
        temperature: of requests that have none of their own; 0 is greedy.
    """

    def __init__(self, policy: Policy, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.load(policy)

    def continued(self, contexts: Sequence[Ids], max_tokens: int, temperature: float) -> list[list[int]]:
        """The sampled ids after each context, the end-of-message token included."""
        raise NotImplementedError

    def load(self, policy: Policy) -> None:
        self.policy, self._ends = policy, end_of_message(policy)

    def collect(self) -> list[tuple[Request, Turn]]:
        requests, self._requests = self._requests, []
        limit = max(request.max_tokens or 0 for request in requests)
        [temperature] = {self._temperature(request) for request in requests}
        rows = self.continued([request.prefix() for request in requests], limit, temperature)
        return [(request, self._turn(request, row)) for request, row in zip(requests, rows, strict=True)]

    def _temperature(self, request: Request) -> float:
        own = self.temperature if request.temperature is None else request.temperature
        return 0.0 if request.greedy else own

    def _turn(self, request: Request, row: Sequence[int]) -> Turn:
        ids = tuple(row[: request.max_tokens])
        finish = "eos" if ids[-1] in self._ends else "length"
        return request.turn(ids, (0.0,) * len(ids), finish, str(self.policy.tokenizer.decode(list(ids))))


class LibraryGenerate(Resending):
    """transformers' own `generate` over contexts that are padded on the left."""

    def continued(self, contexts: Sequence[Ids], max_tokens: int, temperature: float) -> list[list[int]]:
        model, width = self.policy.model, max(map(len, contexts))
        ids = torch.tensor([[0] * (width - len(context)) + list(context) for context in contexts])
        mask = torch.tensor([[0] * (width - len(context)) + [1] * len(context) for context in contexts])
        choice: dict[str, Any] = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
        with torch.inference_mode():
            generated = model.generate(  # pyright: ignore[reportCallIssue]
                ids.to(model.device),
                attention_mask=mask.to(model.device),
                max_new_tokens=max_tokens,
                do_sample=temperature > 0,
                eos_token_id=sorted(self._ends),
                pad_token_id=min(self._ends),
                **choice,
            )
        return [until_end(row, self._ends) for row in generated[:, width:].tolist()]


def until_end(ids: list[int], ends: frozenset[int]) -> list[int]:
    """Ids up to the first that ends the message, without the padding after it."""
    return ids[: next((place for place, id_ in enumerate(ids) if id_ in ends), len(ids)) + 1]
