"""In-process batched sampling: token ids in, token ids and log-probabilities out, what was read kept across turns.

What shares a batch is decided by token counts and settings alone, and every random number by the request's seed, so in
float32 a turn's tokens do not depend on what else is being generated. In bfloat16 they do, by rounding.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from common.costs import read_by, tokens_of
from common.errors import ConfigError
from envs.interfaces import AgentFormat, Sampler
from envs.requests import Request
from envs.types import Episode, Limits, Turn
from modules.decoder.fused_decoder import can_fuse
from modules.decoder.library_decoder import require_decodable
from modules.policy import Policy, check_policy, end_of_message
from modules.samplers.decoding import Decoding
from modules.samplers.given_tokens import Given, given_logps, require_scorable
from modules.samplers.prefixes import PrefixStore
from modules.samplers.running_request import Decode, RunningRequest, StopTags

_NO_POLICY = "the sampler has no policy: give InProcessSampler one, as `policy`"
_SHARE = 8  # an eighth of the rows is replaced at a time: reading new prefixes costs a forward pass


@contextmanager
def _fast_writes() -> Iterator[None]:
    """Let a GPU write keys and values in place, at places that differ: its deterministic way copies whole buffers."""
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)


class InProcessSampler(Sampler):
    """A sampler of one policy in this process.

    Rows that have finished are replaced by open requests, those with the longest prefixes first, the first submitted
    among equals, and the others continue; `collect` returns once an eighth of the rows under way has finished. So what
    shares a batch is a function of config and token counts. `counts` has the tokens that were sampled, by agent,
    and those that were read to score given ones.

    Args:
        policy: the model and tokenizer; None where it comes by `load`, as in training.
        temperature: 0 is greedy; stored log-probabilities are at this temperature (at 1 when greedy), before top-p.
        top_p: nucleus sampling mass; reinforcement learning needs 1.
        batch_size: rows of one forward pass.
        kept_gb: gigabytes of keys and values that are kept for turns to come, beside those of the rows under way.

    Raises:
        ConfigError: a setting is out of range, or the model's rows cannot be continued here; see `require_decodable`.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        batch_size: int = 64,
        kept_gb: float = 4.0,
    ) -> None:
        if temperature < 0 or not 0 < top_p <= 1 or batch_size < 1 or kept_gb < 0:
            settings = f"temperature {temperature}, top_p {top_p}, batch_size {batch_size}, kept_gb {kept_gb}"
            raise ConfigError(f"{settings}: temperature and kept_gb must be >= 0, top_p in (0, 1], batch_size >= 1")
        super().__init__()
        self.temperature, self.top_p, self.batch_size = temperature, top_p, batch_size
        self._waiting: list[RunningRequest] = []
        self._submitted = 0
        self._most: int | None = None  # tokens of a sequence, as far as checks have told
        self._decoding: Decoding | None = None
        self._store = PrefixStore(int(kept_gb * 1e9))
        self._policy: Policy | None = None
        self._stops: dict[tuple[str, ...], StopTags] = {}
        if policy is not None:
            self.load(policy)

    def __deepcopy__(self, memo: object) -> InProcessSampler:
        """Another sampler with the same settings, for a policy of its own that is loaded next."""
        own = {"temperature": self.temperature, "top_p": self.top_p, "batch_size": self.batch_size}
        return InProcessSampler(**own, kept_gb=self._store.limit / 1e9)

    def load(self, policy: Policy) -> None:
        """Sample from this policy from now on; what was read with the weights before is dropped.

        Raises:
            ConfigError: the model's rows cannot be continued here; see `require_decodable`.
        """
        self._store.clear()
        if self._decoding is not None:
            self._waiting = self._decoding.stop() + self._waiting
        if policy is self._policy:
            return
        if not can_fuse(policy.model):
            require_decodable(policy.model)
        self._policy, tokenizer = policy, policy.tokenizer
        self._decoding = Decoding(policy.model, self._store, end_of_message(policy))
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
            raise ConfigError(_NO_POLICY)
        return self._policy

    @property
    def model(self) -> PreTrainedModel:
        return self.policy.model

    def check(self, protocol: AgentFormat, limits: Limits) -> None:
        """Require a protocol and limits that the policy can read; see `modules.policy.check_policy`."""
        check_policy(self.policy, protocol, limits)
        self._most = max(self._most or 0, limits.total_tokens)

    def submit(self, requests: Sequence[Request]) -> None:
        self._waiting += [self._open(request) for request in requests]
        self.hold([request.episode for request in requests])

    def hold(self, episodes: Sequence[Episode]) -> None:
        """Keep what is read for the questions of these episodes until the episodes are released."""
        for episode in episodes:
            self._store.hold(episode.question.id, id(episode))

    @torch.inference_mode()
    @_fast_writes()
    def collect(self) -> list[tuple[Request, Turn]]:
        """Requests that have finished, at least an eighth of those under way, in the order of submission.

        Raises:
            ConfigError: no policy was given or loaded.
        """
        decoding = self._admit()
        started, done = len(decoding.live), list[RunningRequest]()
        while decoding.live and len(done) * _SHARE < started:
            done += decoding.step()
            self._admit()
        done.sort(key=lambda turn: turn.number)
        return [(turn.request, self._turn(turn)) for turn in done]

    def score(self, requests: Sequence[Request]) -> list[tuple[float, ...]]:
        """Log-probs of the requests' `forced_ids` at temperature 1; in float32 the same in any batch, to rounding.

        Open requests and what is kept for them stay as they are.

        Raises:
            ConfigError: no policy was given or loaded, or a sequence is longer than its positions.
        """
        given = [Given(request.prefix(), request.forced_ids or ()) for request in requests]
        require_scorable(given)
        logps, read = given_logps(self.model, given, self.batch_size)
        for request, count in zip(requests, read, strict=True):
            self.counts[read_by(request.agent)] += count
        return logps

    @torch.inference_mode()
    def release(self, episodes: Sequence[Episode]) -> None:
        """Drop the open requests of these episodes, and what was read for questions of which no episode is held."""
        released = {id(episode) for episode in episodes}
        for episode in episodes:
            self._store.release(episode.question.id, id(episode))
        self._waiting = [turn for turn in self._waiting if id(turn.request.episode) not in released]
        if self._decoding is not None:
            self._decoding.drop(released)
            if not self._store.held:
                self._decoding.free()

    def _open(self, request: Request) -> RunningRequest:
        given = len(request.forced_ids or request.first_ids)
        limit = given if request.forced_ids is not None else max(request.max_tokens or 0, given)
        if not limit:
            raise ValueError("a request needs max_tokens >= 1, which the environment sets, or forced_ids")
        if request.stop not in self._stops:
            self._stops[request.stop] = StopTags(request.stop, self._texts, self._decode)
        self._submitted += 1
        return RunningRequest(
            self._submitted,
            request,
            request.prefix(),
            limit,
            self._stops[request.stop],
            self.temperature if request.temperature is None else request.temperature,
            self.top_p if request.top_p is None else request.top_p,
        )

    def _admit(self) -> Decoding:
        """Fill the free rows with open requests, once they are a share of all that is worth a forward pass."""
        if self._decoding is None:
            raise ConfigError(_NO_POLICY)
        decoding, free = self._decoding, self.batch_size - len(self._decoding.live)
        if self._waiting and (not decoding.live or free * _SHARE >= self.batch_size):
            order = sorted(range(len(self._waiting)), key=lambda i: (-len(self._waiting[i].prefix), i))[:free]
            decoding.admit([self._waiting[i] for i in order], self._most or sys.maxsize)
            chosen = set(order)
            self._waiting = [turn for i, turn in enumerate(self._waiting) if i not in chosen]
        return decoding

    def _turn(self, turn: RunningRequest) -> Turn:
        assert turn.finish is not None
        if turn.request.forced_ids is None:
            self.counts[tokens_of(turn.request.agent)] += len(turn.ids) - len(turn.request.first_ids)
        return turn.request.turn(turn.ids, turn.logps, turn.finish, self._decode(turn.ids))
