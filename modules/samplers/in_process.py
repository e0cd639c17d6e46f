"""In-process batched sampling: token ids in, token ids and log-probabilities out, the cache kept across turns.

What shares a batch is decided by token counts and `batch_size` alone, and every random number by the request's seed,
so a turn's tokens do not depend on what else is being generated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PretrainedConfig

from common.errors import ConfigError
from envs.interfaces import Protocol
from envs.types import Episode, Finish, Limits, Request, Turn
from modules.functional.sampling import choose_tokens
from modules.policy import Policy, check_policy
from modules.samplers.kv_cache import BatchCache, empty_row

Decode = Callable[[Sequence[int]], str]


@dataclass(slots=True)
class _Kept:
    """What is remembered of an episode between its turns: the ids fed so far and their keys and values."""

    ids: tuple[int, ...]
    cache: Tensor


@dataclass(slots=True)
class _Row:
    """A turn being sampled."""

    request: Request
    prefix: tuple[int, ...]
    limit: int
    stops: StopTags
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    finish: Finish | None = None

    def take(self, token: int, logp: float, eos: frozenset[int]) -> None:
        """Append a sampled token and notice whether it ends the turn."""
        self.ids.append(token)
        self.logps.append(logp)
        if token in eos:
            self.finish = "eos"
        elif self.stops.ended(self.ids):
            self.finish = "stop"
        elif len(self.ids) >= self.limit:
            self.finish = "length"


class StopTags:
    """Notices the end of a turn at a stop string, be it one token or spread over several.

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


class PolicyGenerator:
    """A `Generator` that samples turns from one policy.

    Args:
        policy: the model and tokenizer.
        temperature: 0 is greedy; stored log-probabilities are at this temperature (at 1 when greedy), before top-p.
        top_p: nucleus sampling mass; reinforcement learning needs 1.
        batch_size: rows of one forward pass.

    Raises:
        ConfigError: a setting is out of range, or the model's layers do not all attend to the whole context.
    """

    def __init__(self, policy: Policy, *, temperature: float = 0.0, top_p: float = 1.0, batch_size: int = 64) -> None:
        self.policy, self.temperature, self.top_p, self.batch_size = policy, temperature, top_p, batch_size
        if temperature < 0 or not 0 < top_p <= 1 or batch_size < 1:
            settings = f"temperature {temperature}, top_p {top_p}, batch_size {batch_size}"
            raise ConfigError(f"{settings}: temperature must be >= 0, top_p in (0, 1], batch_size >= 1")
        _refuse_forgetful(policy.model.config.get_text_config())
        eos = policy.model.generation_config.eos_token_id if policy.model.generation_config else None
        ids = [policy.tokenizer.eos_token_id, *(eos if isinstance(eos, list) else [eos])]
        self._eos = frozenset(token for token in ids if token is not None)
        self._texts = policy.tokenizer.batch_decode([[i] for i in range(len(policy.tokenizer))])
        self._stops: dict[tuple[str, ...], StopTags] = {}
        self._kept: dict[int, _Kept] = {}

    def check(self, protocol: Protocol, limits: Limits) -> None:
        """Refuse a protocol or limits that the policy cannot read; see `modules.policy.check_policy`."""
        check_policy(self.policy, protocol, limits)

    def generate(self, requests: Sequence[Request]) -> list[Turn]:
        """Sample one turn a request; turns come back in the order of the requests."""
        rows = [self._row(request) for request in requests]
        order = sorted(range(len(rows)), key=lambda i: (-len(rows[i].prefix), i))
        for start in range(0, len(order), self.batch_size):
            self._sample([rows[i] for i in order[start : start + self.batch_size]])
        return [self._turn(row) for row in rows]

    def release(self, episodes: Sequence[Episode]) -> None:
        """Drop the kept caches of these episodes."""
        for episode in episodes:
            self._kept.pop(id(episode), None)

    def _row(self, request: Request) -> _Row:
        if not request.max_tokens:
            raise ValueError("a request needs max_tokens >= 1; the environment sets it")
        if request.stop not in self._stops:
            self._stops[request.stop] = StopTags(request.stop, self._texts, self._decode)
        return _Row(request, request.prefix(), request.max_tokens, self._stops[request.stop])

    def _turn(self, row: _Row) -> Turn:
        assert row.finish is not None
        return Turn(
            agent=row.request.agent,
            opening_ids=row.request.opening_ids,
            context_ids=row.request.context_ids,
            action_ids=tuple(row.ids),
            action_logps=tuple(row.logps),
            finish=row.finish,
            text=self._decode(row.ids),
            uid=row.request.episode.next_uid(),
        )

    def _decode(self, ids: Sequence[int]) -> str:
        return str(
            self.policy.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    def _reusable(self, row: _Row) -> tuple[int, Tensor]:
        """How many leading ids of the prefix are already cached, and their keys and values."""
        model = self.policy.model
        kept = self._kept.pop(id(row.request.episode), None)
        if kept is not None and len(kept.ids) < len(row.prefix) and row.prefix[: len(kept.ids)] == kept.ids:
            return len(kept.ids), kept.cache
        return 0, empty_row(model.config.get_text_config(), next(model.parameters()))

    def _prefill(self, rows: list[_Row]) -> tuple[BatchCache, Tensor, Tensor, Tensor]:
        """Read what is new of every prefix, once for all rows that share it.

        Returns the cache of the prefixes, the logits `[B, V]` after them, and mask and positions of what was read.
        """
        device = self.policy.model.device
        leaders: dict[tuple[int, ...], _Row] = {}
        for row in rows:
            leaders.setdefault(row.prefix, row)
        place = {prefix: number for number, prefix in enumerate(leaders)}
        reuse = [self._reusable(row) for row in leaders.values()]
        new = [prefix[count:] for prefix, (count, _) in zip(leaders, reuse, strict=True)]
        past, width = max(count for count, _ in reuse), max(map(len, new))
        counts = [count for count, _ in reuse]
        batch = BatchCache([cache for _, cache in reuse], room=width + max(row.limit for row in rows))
        del reuse  # the batch holds a copy
        ids = torch.zeros((len(new), width), dtype=torch.long)
        mask = torch.zeros((len(new), past + width), dtype=torch.long)
        for index, (fresh, count) in enumerate(zip(new, counts, strict=True)):
            ids[index, width - len(fresh) :] = torch.tensor(fresh)
            mask[index, past - count : past] = 1
            mask[index, past + width - len(fresh) :] = 1
        ids, mask = ids.to(device), mask.to(device)
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, past:]
        logits = self._forward(ids, mask, positions, batch)
        if len(new) < len(rows):
            copies = torch.tensor([place[row.prefix] for row in rows], device=device)
            batch.select(copies)
            logits, mask, positions = logits[copies], mask[copies], positions[copies]
        return batch, logits, mask, positions

    @torch.inference_mode()
    def _sample(self, rows: list[_Row]) -> None:
        """Sample these rows to their ends, a token at a time; rows that have ended leave the batch by halves."""
        batch, logits, mask, positions = self._prefill(rows)
        device = logits.device
        seeds = torch.tensor([row.request.seed for row in rows], device=device)
        live = list(range(len(rows)))  # batch row -> index into rows
        step = 0
        while True:
            steps = torch.full((len(live),), step, device=device)
            tokens, logps = choose_tokens(logits, seeds[live], steps, temperature=self.temperature, top_p=self.top_p)
            for index, token, logp in zip(live, tokens.tolist(), logps.tolist(), strict=True):
                if rows[index].finish is None:
                    rows[index].take(token, logp, self._eos)
            going = [b for b, index in enumerate(live) if rows[index].finish is None]
            if len(going) <= len(live) // 2:
                done = [b for b, index in enumerate(live) if rows[index].finish is not None]
                for b in done:
                    self._keep(rows[live[b]], batch, b, mask[b])
                if not going:
                    return
                kept = torch.tensor(going, device=device)
                batch.select(kept)
                mask, tokens, positions = mask[kept], tokens[kept], positions[kept]
                live = [live[b] for b in going]
            open_rows = torch.tensor([[int(rows[index].finish is None)] for index in live], device=device)
            ids, positions = tokens[:, None], positions[:, -1:] + 1
            mask = torch.cat([mask, open_rows], dim=1)
            logits = self._forward(ids, mask, positions, batch)
            step += 1

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: BatchCache) -> Tensor:
        """Logits `[B, V]` after the last column."""
        return self.policy.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1
        ).logits[:, -1]

    def _keep(self, row: _Row, batch: BatchCache, index: int, mask_T: Tensor) -> None:
        """Keep a finished row's keys and values for its episode's next turn; its last token was never fed."""
        columns = mask_T.nonzero().squeeze(-1)
        fed = row.prefix + tuple(row.ids[:-1])
        self._kept[id(row.request.episode)] = _Kept(fed, batch.row(index, columns))


def _refuse_forgetful(config: PretrainedConfig) -> None:
    """A kept cache is right only where every layer attends to the whole context."""
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    forgetful = set(kinds or ()) - {"full_attention"}
    if not kinds and window and window < config.max_position_embeddings:
        forgetful = {f"sliding windows of {window}"}
    if forgetful:
        raise ConfigError(f"{config.model_type} has {', '.join(sorted(forgetful))}; use a model with full attention")
