"""Decoding loop over the active rows: one token each per step; finished rows free their slots."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from common.errors import DataError
from modules.decoder.fused_decoder import FusedDecoder, can_fuse
from modules.decoder.library_decoder import LibraryDecoder
from modules.functional.token_choice import RowSettings, choose_tokens
from modules.positions import require_row_fits
from modules.samplers.given_tokens import NOT_NUMBERS
from modules.samplers.prefixes import PrefixStore
from modules.samplers.running_request import RunningRequest

Decoder = FusedDecoder | LibraryDecoder
_AHEAD = 512  # tokens of a turn for which room is made at its beginning
Groups = dict[tuple[str, tuple[int, ...]], list[RunningRequest]]  # by question and prefix


class Decoding:
    """Reads prefixes and samples turns with a model. The B rows under way lie in the first B slots.

    Args:
        model: a causal language model.
        store: prefixes that were read, and where those of these rows are kept.
        ends: the tokens that end any turn.
    """

    def __init__(self, model: PreTrainedModel, store: PrefixStore, ends: frozenset[int]) -> None:
        self.model, self.store, self.ends = model, store, ends
        self.live: list[RunningRequest] = []
        self.stop()

    def stop(self) -> list[RunningRequest]:
        """Stop all rows and free the memory; returns the rows, to be restarted."""
        stopped, self.live = self.live, []
        for turn in stopped:
            turn.restart()
        self.free()
        return stopped

    def free(self) -> None:
        """Free the memory; there must be no rows."""
        assert not self.live
        self._decoder: Decoder | None = None  # has the weights as they are when rows begin
        self._logits: Tensor | None = None  # of the next token of every row, [B, V]

    def admit(self, turns: Sequence[RunningRequest], most: int) -> None:
        """Read what is new of every prefix, once for all turns that share it; they take the next free slots.

        Args:
            turns: those.
            most: tokens of the longest sequence that there will be.

        Raises:
            ConfigError: the model has no positions for that many tokens of a turn.
        """
        require_row_fits(self.model.config, max(len(turn.prefix) + turn.limit for turn in turns))
        if self._decoder is None:
            self._decoder = FusedDecoder(self.model) if can_fuse(self.model) else LibraryDecoder(self.model)
        rows, first = self._decoder.rows, len(self.live)
        rows.limit = most - 1
        # The last token is never fed. Most turns are far shorter than their limit: `step` makes more room where not.
        longest = max(len(turn.prefix) + min(turn.limit, _AHEAD) - 1 for turn in turns)
        self._decoder.reserve(first + len(turns), longest, [turn.tokens for turn in self.live])
        groups: Groups = {}
        for turn in turns:
            groups.setdefault((turn.request.episode.question.id, turn.prefix), []).append(turn)
        logits = self._read(self._decoder, groups, first)
        followers: list[RunningRequest] = []
        sources = list(range(len(groups)))
        for source, (leader, *others) in enumerate(groups.values()):
            for turn in others:
                turn.end = leader.end
                rows.copy(first + source, first + len(sources), len(turn.prefix))
                sources.append(source)
                followers.append(turn)
        self.live += [leader for leader, *_ in groups.values()] + followers
        logits = logits[sources]
        self._logits = logits if self._logits is None else torch.cat([self._logits, logits])
        self._describe(unread=0)

    def step(self) -> list[RunningRequest]:
        """One token for every row; returns the turns that it ends.

        Raises:
            DataError: a log-prob is not a number, as those of a model whose weights are not.
        """
        assert self._logits is not None
        forced_B = self._forced()
        tokens_B, logps_B = choose_tokens(self._logits, self._seeds, self._steps, self._settings, forced_B=forced_B)
        chosen = torch.stack([tokens_B.double(), logps_B.double()]).tolist()  # in one transfer
        if any(math.isnan(logp) for logp in chosen[1]):
            raise DataError(NOT_NUMBERS)
        for turn, token, logp in zip(self.live, *chosen, strict=True):
            turn.take(int(token), logp, self.ends)
        done = [turn for turn in self.live if turn.finish is not None]
        self._steps = self._steps + 1
        if done:
            self._keep()
            tokens_B = tokens_B[self._leave({id(turn) for turn in done}, unread=1)]
        if self.live:
            assert self._decoder is not None
            lengths = [turn.tokens - 1 for turn in self.live]
            self._decoder.reserve(len(lengths), max(lengths) + 1, lengths)
            self._logits = self._decoder.step(tokens_B, self._lengths, lengths)
            self._lengths = self._lengths + 1
        else:
            self._logits = None
        return done

    def drop(self, episodes: Collection[int]) -> None:
        """Give up the rows of these episodes, by id."""
        dropped = {id(turn) for turn in self.live if id(turn.request.episode) in episodes}
        if dropped:
            assert self._logits is not None
            self._logits = self._logits[self._leave(dropped, unread=0)] if len(dropped) < len(self.live) else None
            self.live = [turn for turn in self.live if id(turn) not in dropped]

    def _read(self, decoder: Decoder, groups: Groups, first: int) -> Tensor:
        """Feed the prefixes of groups, as far as they are not kept, and keep them; the logits after them `[B, V]`."""
        rows = decoder.rows
        chains = [self.store.find(question, prefix) for question, prefix in groups]
        held = [sum(len(segment.ids) for segment in chain) for chain in chains]
        # the last token of a prefix is fed in any case, for the logits after it
        starts = [min(count, len(prefix) - 1) for count, (_, prefix) in zip(held, groups, strict=True)]
        for row, (chain, start) in enumerate(zip(chains, starts, strict=True)):
            rows.put(first + row, [segment.cache for segment in chain if segment.cache is not None], start)
        new = [prefix[start:] for start, (_, prefix) in zip(starts, groups, strict=True)]
        logits = decoder.read(first, new, starts)
        for row, ((question, prefix), (leader, *_)) in enumerate(groups.items()):
            cache = rows.get(first + row, held[row], len(prefix))
            leader.end = self.store.add(question, chains[row][-1], prefix[held[row] :], cache)
        return logits

    def _keep(self) -> None:
        """Keep what finished turns add to their prefixes; the last token of each was never fed."""
        assert self._decoder is not None
        for slot, turn in enumerate(self.live):
            if turn.finish is not None:
                assert turn.end is not None
                new = self._decoder.rows.get(slot, len(turn.prefix), turn.tokens - 1)
                self.store.add(turn.request.episode.question.id, turn.end, tuple(turn.ids[:-1]), new)

    def _leave(self, leaving: Collection[int], unread: int) -> Tensor:
        """Take rows out, by id of their turns, and close the gaps; returns the earlier slots of the rows `[B]`.

        Args:
            leaving: which.
            unread: how many tokens at the end of each row have not been fed yet.
        """
        assert self._decoder is not None
        going = [slot for slot, turn in enumerate(self.live) if id(turn) not in leaving]
        last = iter([slot for slot in going if slot >= len(going)])
        slots = [slot if id(self.live[slot]) not in leaving else next(last) for slot in range(len(going))]
        for slot, source in enumerate(slots):
            if source != slot:
                self._decoder.rows.copy(source, slot, self.live[source].tokens - unread)
        self.live = [self.live[slot] for slot in slots]
        self._describe(unread)
        return torch.tensor(slots, device=self.model.device, dtype=torch.long)

    def _describe(self, unread: int) -> None:
        """Copy the settings of all rows to the device; they change only when the rows do."""
        device, live = self.model.device, self.live
        self._seeds = torch.tensor([turn.request.seed for turn in live], device=device, dtype=torch.long)
        self._steps = torch.tensor([len(turn.ids) for turn in live], device=device, dtype=torch.long)
        self._lengths = torch.tensor([turn.tokens - unread for turn in live], device=device, dtype=torch.long)
        if live:
            temperatures, top_p = [turn.temperature for turn in live], [turn.top_p for turn in live]
            self._settings = RowSettings.of(temperatures, top_p, [turn.request.greedy for turn in live], device)

    def _forced(self) -> Tensor | None:
        """`[B]` int64: the token that each row is given at this step, -1 where it samples; None where all do."""
        given = [turn.given[len(turn.ids)] if len(turn.ids) < len(turn.given) else -1 for turn in self.live]
        return torch.tensor(given, device=self.model.device) if max(given) >= 0 else None
