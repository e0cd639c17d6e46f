"""In-process batched sampling: token ids in, token ids and log-probabilities out, the cache kept across turns.

What shares a batch is decided by token counts and `batch_size` alone, and every random number by the request's seed,
so a turn's tokens do not depend on what else is being generated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PretrainedConfig

from common.accounts import tokens_of
from common.errors import ConfigError
from envs.interfaces import Protocol
from envs.requests import Request
from envs.types import Episode, Finish, Limits, Turn
from modules.functional.token_choice import choose_tokens
from modules.policy import Policy, check_policy, end_of_message
from modules.samplers.kv_cache import BatchCache, empty_row
from modules.samplers.stop_tags import Decode, StopTags


@dataclass(slots=True)
class _Kept:
    """What is remembered of an episode between its turns: the ids fed so far and their keys and values."""

    ids: tuple[int, ...]
    cache: Tensor


@dataclass(slots=True)
class _Row:
    """A turn that waits to be sampled, or is being sampled."""

    request: Request
    prefix: tuple[int, ...]
    limit: int
    stops: StopTags
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    finish: Finish | None = None

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


class InProcessSampler:
    """A `Sampler` of one policy in this process.

    `collect` samples one batch to its end: of the open requests those with the longest prefixes, the first submitted
    among equals. So what shares a batch is a function of config and token counts. `counts` has the tokens that were
    sampled, by agent; given ones are not sampled.

    Args:
        policy: the model and tokenizer; None where it comes by `load`, as in training.
        temperature: 0 is greedy; stored log-probabilities are at this temperature (at 1 when greedy), before top-p.
        top_p: nucleus sampling mass; reinforcement learning needs 1.
        batch_size: rows of one forward pass.

    Raises:
        ConfigError: a setting is out of range, or the model's layers do not all attend to the whole context.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        batch_size: int = 64,
    ) -> None:
        if temperature < 0 or not 0 < top_p <= 1 or batch_size < 1:
            settings = f"temperature {temperature}, top_p {top_p}, batch_size {batch_size}"
            raise ConfigError(f"{settings}: temperature must be >= 0, top_p in (0, 1], batch_size >= 1")
        self.temperature, self.top_p, self.batch_size = temperature, top_p, batch_size
        self.counts: Counter[str] = Counter()
        self._open: list[_Row] = []
        self._kept: dict[int, _Kept] = {}
        self._policy: Policy | None = None
        self._stops: dict[tuple[str, ...], StopTags] = {}
        if policy is not None:
            self.load(policy)

    def load(self, policy: Policy) -> None:
        """Sample from this policy from now on; what was kept of the weights before is dropped.

        Raises:
            ConfigError: the model's layers do not all attend to the whole context.
        """
        self._kept.clear()
        if policy is self._policy:
            return
        require_full_attention(policy.model.config.get_text_config())
        self._policy, tokenizer = policy, policy.tokenizer
        self._eos = end_of_message(policy)
        self._texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
        # Without a reference to the sampler: a cycle would keep the model alive after its stage.
        self._decode: Decode = lambda ids: str(
            tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )
        self._stops.clear()

    @property
    def policy(self) -> Policy:
        """What is sampled from.

        Raises:
            ConfigError: no policy was given or loaded.
        """
        if self._policy is None:
            raise ConfigError("the sampler has no policy: give InProcessSampler one, as `policy`")
        return self._policy

    def check(self, protocol: Protocol, limits: Limits) -> None:
        """Require a protocol and limits that the policy can read; see `modules.policy.check_policy`."""
        check_policy(self.policy, protocol, limits)

    def submit(self, requests: Sequence[Request]) -> None:
        self._open += [self._row(request) for request in requests]

    def collect(self) -> list[tuple[Request, Turn]]:
        """Sample one batch: its requests in the order of submission, each with its turn."""
        order = sorted(range(len(self._open)), key=lambda i: (-len(self._open[i].prefix), i))[: self.batch_size]
        batch, chosen = [self._open[i] for i in order], set(order)
        if batch:
            self._sample(batch)
        done = [self._open[i] for i in sorted(chosen)]
        self._open = [row for i, row in enumerate(self._open) if i not in chosen]
        return [(row.request, self._turn(row)) for row in done]

    def release(self, episodes: Sequence[Episode]) -> None:
        """Drop the kept caches and open requests of these episodes."""
        released = {id(episode) for episode in episodes}
        for key in released:
            self._kept.pop(key, None)
        self._open = [row for row in self._open if id(row.request.episode) not in released]

    def _row(self, request: Request) -> _Row:
        given = len(request.forced_ids or request.first_ids)
        limit = given if request.forced_ids is not None else max(request.max_tokens or 0, given)
        if not limit:
            raise ValueError("a request needs max_tokens >= 1, which the environment sets, or forced_ids")
        if request.stop not in self._stops:
            self._stops[request.stop] = StopTags(request.stop, self._texts, self._decode)
        return _Row(request, request.prefix(), limit, self._stops[request.stop])

    def _turn(self, row: _Row) -> Turn:
        assert row.finish is not None
        if row.request.forced_ids is None:
            self.counts[tokens_of(row.request.agent)] += len(row.ids) - len(row.request.first_ids)
        return row.request.turn(row.ids, row.logps, row.finish, self._decode(row.ids))

    def _reusable(self, row: _Row) -> tuple[int, Tensor]:
        """How many leading ids of the prefix are already cached, and their keys and values."""
        model = self.policy.model
        kept = self._kept.pop(id(row.request.episode), None)
        if kept is not None and len(kept.ids) < len(row.prefix) and row.prefix[: len(kept.ids)] == kept.ids:
            return len(kept.ids), kept.cache
        return 0, empty_row(model.config.get_text_config(), next(model.parameters()))

    def _prefill(self, rows: list[_Row]) -> tuple[BatchCache, Tensor, Tensor, Tensor]:
        """Read what is new of every prefix, once for all rows that share it.

        Prefixes end at the same column W, the longest begins at the first. Returns the cache of the prefixes, the
        logits `[B, V]` after them, the mask of the columns that a row fills `[B, W]` and its last position `[B, 1]`.
        """
        device = self.policy.model.device
        leaders: dict[tuple[int, ...], _Row] = {}
        for row in rows:
            leaders.setdefault(row.prefix, row)
        place = {prefix: number for number, prefix in enumerate(leaders)}
        reuse = [self._reusable(row) for row in leaders.values()]
        new = [prefix[count:] for prefix, (count, _) in zip(leaders, reuse, strict=True)]
        W, width = max(map(len, leaders)), max(map(len, new))
        ids = torch.zeros((len(new), width), dtype=torch.long)
        mask = torch.zeros((len(new), W), dtype=torch.long)
        for index, (prefix, fresh) in enumerate(zip(leaders, new, strict=True)):
            ids[index, width - len(fresh) :] = torch.tensor(fresh)
            mask[index, W - len(prefix) :] = 1
        unread = torch.arange(width)[None, :] >= torch.tensor([width - len(fresh) for fresh in new])[:, None]
        columns = max(len(row.prefix) + row.limit for row in rows)
        batch = BatchCache([cache for _, cache in reuse], [W - len(fresh) for fresh in new], W - width, columns)
        del reuse  # the batch holds a copy
        ids, mask = ids.to(device), mask.to(device)
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, W - width :]
        batch.write_only(unread.to(device))
        logits = self._forward(ids, mask, positions, batch)
        batch.write_only(None)
        if len(new) < len(rows):
            copies = torch.tensor([place[row.prefix] for row in rows], device=device)
            batch.select(copies)
            logits, mask, positions = logits[copies], mask[copies], positions[copies]
        return batch, logits, mask, positions[:, -1:]

    @torch.inference_mode()
    def _sample(self, rows: list[_Row]) -> None:
        """Sample these rows to their ends, a token at a time.

        Rows that have ended leave the batch by halves, or when the buffer of the cache is full: what then remains is
        shifted to its beginning.
        """
        batch, logits, mask, positions = self._prefill(rows)
        device = logits.device
        seeds = torch.tensor([row.request.seed for row in rows], device=device)
        greedy = torch.tensor([row.request.greedy for row in rows], device=device)
        live = list(range(len(rows)))  # batch row -> index into rows
        step = 0
        while True:
            steps = torch.full((len(live),), step, device=device)
            forced = _forced([rows[index].request for index in live], step, device)
            tokens, logps = choose_tokens(
                logits, seeds[live], steps, temperature=self.temperature, top_p=self.top_p, forced_B=forced,
                greedy_B=greedy[live],
            )  # fmt: skip
            for index, token, logp in zip(live, tokens.tolist(), logps.tolist(), strict=True):
                if rows[index].finish is None:
                    rows[index].take(token, logp, self._eos)
            going = [b for b, index in enumerate(live) if rows[index].finish is None]
            if len(going) <= len(live) // 2 or (len(going) < len(live) and batch.full):
                for b, index in enumerate(live):
                    if rows[index].finish is not None:
                        self._keep(rows[index], batch, b, mask[b])
                if not going:
                    return
                kept = torch.tensor(going, device=device)
                batch.select(kept)
                mask, tokens, positions = mask[kept], tokens[kept], positions[kept]
                live = [live[b] for b in going]
            if batch.full:
                unused = int((mask.sum(dim=0) == 0).sum())  # at the left, for rows end at one column
                batch.shift(unused)
                mask = mask[:, unused:]
            open_rows = torch.tensor([[int(rows[index].finish is None)] for index in live], device=device)
            positions = positions + 1
            mask = torch.cat([mask, open_rows], dim=1)
            logits = self._forward(tokens[:, None], mask, positions, batch)
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


def _forced(requests: Sequence[Request], step: int, device: torch.device) -> Tensor | None:
    """`[B]` int64: the token that each row is forced to take at this step, -1 where it samples; None where all do."""
    forced = [request.forced_ids or request.first_ids for request in requests]
    if not any(forced):
        return None
    return torch.tensor([ids[step] if step < len(ids) else -1 for ids in forced], device=device)


def require_full_attention(config: PretrainedConfig) -> None:
    """A kept cache is right only where every layer attends to the whole context.

    Raises:
        ConfigError: a layer does not.
    """
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    limited = set(kinds or ()) - {"full_attention"}
    if not kinds and window and window < config.max_position_embeddings:
        limited = {f"sliding windows of {window}"}
    if limited:
        raise ConfigError(f"{config.model_type} has {', '.join(sorted(limited))}; use a model with full attention")
