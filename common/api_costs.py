"""Costs of chat models in a stage: calls, tokens and dollars, by model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from common.chat_client import ChatClient

Costs = dict[str, dict[str, float]]


def api_costs(parts: Iterable[object], work: str) -> Costs:
    """What the chat clients among some components have spent on a piece of work, by model, where there are calls.

    `prompt_tokens` and `completion_tokens` are those of all `calls`. `cached_calls` and `cached_tokens` are those of
    replies that were paid for before, and cost nothing; `usd` is what the others cost, at the client's price.
    """
    clients = [part for part in parts if isinstance(part, ChatClient)]
    clients.sort(key=lambda client: client.price is not None)  # of two with one cache, the one with a price counts
    total: Costs = {}
    for client in {(client.cache, client.model): client for client in clients}.values():
        spent = _spent(client, work)
        if spent["calls"]:
            before = total.setdefault(client.model, dict.fromkeys(spent, 0))
            total[client.model] = {name: before.get(name, 0) + spent.get(name, 0) for name in before | spent}
    return dict(sorted(total.items()))


def api_text(costs: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A phrase a model: `gpt-4o: 120 calls (20 cached), 130,000 prompt and 9,000 completion tokens, $0.42`."""
    return [
        f"{model}: {spent['calls']:,} calls ({spent['cached_calls']:,} cached), {spent['prompt_tokens']:,} prompt and "
        f"{spent['completion_tokens']:,} completion tokens" + (f", ${spent['usd']:,.2f}" if "usd" in spent else "")
        for model, spent in costs.items()
    ]


def _spent(client: ChatClient, work: str) -> dict[str, float]:
    used = client.spent(work)
    spent: dict[str, float] = {
        "calls": used.calls,
        "cached_calls": used.calls - used.paid_calls,
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "cached_tokens": used.prompt_tokens
        + used.completion_tokens
        - used.paid_prompt_tokens
        - used.paid_completion_tokens,
    }
    if client.price is not None:
        dollars = (
            client.price["prompt"] * used.paid_prompt_tokens + client.price["completion"] * used.paid_completion_tokens
        )
        spent["usd"] = round(dollars / 1e6, 6)
    return spent
