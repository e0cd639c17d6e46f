"""A sampler that asks a vLLM server for every turn, so that each episode continues once its own turn is done."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from transformers import PreTrainedModel

from common.cancellable_request import CancellableRequest
from common.costs import read_by, tokens_of
from common.errors import ConfigError, EngineError
from envs.interfaces import AgentFormat, Sampler
from envs.requests import Request
from envs.types import Episode, Finish, Limits, Turn
from modules.policy import Policy, check_policy, end_of_message
from modules.samplers.given_tokens import Given, require_scorable
from modules.samplers.vllm.client import Generated, NoAnswer
from modules.samplers.vllm.engine import VLLMEngine
from modules.samplers.vllm.forced_tokens import forced_logps


@dataclass(frozen=True, slots=True)
class _Answer:
    """What came of a request, and in which life of the server it was asked."""

    ticket: int
    life: int
    result: Generated | NoAnswer | Exception


class VLLMSampler(Sampler):
    """A sampler of one policy behind a vLLM server; see `modules.samplers.vllm.engine:VLLMEngine`.

    `collect` returns all turns that are done by now, at least one: while an environment searches for their queries, in
    one call, the server works on the others. A turn depends on its context, its seed and the weights, to rounding:
    which requests share a batch is a matter of time, so tokens are not promised to the bit. Log-probs are at the
    temperature (at 1 when greedy) and, unlike those of `InProcessSampler`, after top-p, whose tokens are renormalised.
    `counts` has the tokens that were sampled and those that were read to score given ones, by agent, and how often a
    turn was asked again.

    Args:
        engine: the server; samplers of the same policy share it, one of another policy starts a server like it.
        policy: what is sampled from; None where it comes by `load`, as in training.
        temperature: 0 is greedy.
        top_p: nucleus sampling mass; reinforcement learning needs 1.

    Raises:
        ConfigError: a setting is out of range; on submitting, a turn is given and not sampled.
        EngineError: on submitting or collecting, the server cannot be made to work.
    """

    def __init__(
        self, engine: VLLMEngine, policy: Policy | None = None, *, temperature: float = 0.0, top_p: float = 1.0
    ) -> None:
        if temperature < 0 or not 0 < top_p <= 1:
            raise ConfigError(f"temperature {temperature}, top_p {top_p}: temperature must be >= 0, top_p in (0, 1]")
        super().__init__()
        self.engine, self.temperature, self.top_p = engine, temperature, top_p
        self._open: dict[int, Request] = {}
        self._calls: dict[int, CancellableRequest] = {}
        self._done: dict[int, tuple[Request, Turn]] = {}
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        self._tickets = 0
        self._policy: Policy | None = None
        if policy is not None:
            self.load(policy)

    def __deepcopy__(self, memo: dict[int, Any]) -> VLLMSampler:
        """Another sampler with a server of its own."""
        return VLLMSampler(copy.deepcopy(self.engine, memo), temperature=self.temperature, top_p=self.top_p)

    def load(self, policy: Policy) -> None:
        """Use this policy's current weights; they are sent before the next turn."""
        self.engine = self.engine.of(policy)
        self.engine.load(policy)
        self._policy = policy
        self._eos = end_of_message(policy)

    def freeze(self) -> bool:
        """Send the weights now, where the server has others: it keeps them until new ones are loaded.

        Raises:
            ConfigError: the server sleeps while the policy trains.
        """
        if self.engine.sleeps:
            raise ConfigError("overlap: 1 samples while the policy trains, when the server sleeps: leave `sleeps` out")
        self.engine.make_ready()
        return True

    @property
    def policy(self) -> Policy:
        """What is sampled from.

        Raises:
            ConfigError: no policy was given or loaded.
        """
        if self._policy is None:
            raise ConfigError("the sampler has no policy: give VLLMSampler one, as `policy`")
        return self._policy

    @property
    def engine_dtype(self) -> str:
        """The engine's type."""
        return self.engine.dtype

    @property
    def model(self) -> PreTrainedModel:
        return self.policy.model

    def check(self, protocol: AgentFormat, limits: Limits) -> None:
        """Require a protocol and limits that the policy can read, and the engine too.

        Raises:
            ConfigError: says what does not fit.
        """
        check_policy(self.policy, protocol, limits)
        if limits.total_tokens > self.engine.context:
            raise ConfigError(
                f"limits.total_tokens is {limits.total_tokens}, but the engine's context is {self.engine.context}: "
                "raise it"
            )

    def submit(self, requests: Sequence[Request]) -> None:
        if given := [request.agent for request in requests if request.forced_ids is not None or request.first_ids]:
            raise ConfigError(f"vLLM cannot score the given tokens of agent '{given[0]}': use InProcessSampler")
        if requests:
            self.engine.make_ready()
        for request in requests:
            self._tickets += 1
            self._open[self._tickets] = request
            self._ask(self._tickets)

    def score(self, requests: Sequence[Request]) -> list[tuple[float, ...]]:
        """Log-probs of the requests' `forced_ids` at temperature 1: the server reads each sequence as a prompt.

        Every sequence is read whole, also where several begin alike, and counted so. They are those of
        `InProcessSampler` to the rounding of the engine's type: within 2e-5 a token in float32 (216 tokens of the
        world's base model on vLLM 0.32), some hundredths in bfloat16, where they also depend on what else the server
        reads. vLLM writes less than -9999 as -9999.

        Raises:
            EngineError: the server cannot be made to work, or rejects a sequence.
        """
        given = [Given(request.prefix(), request.forced_ids or ()) for request in requests]
        require_scorable(given)
        logps = forced_logps(self.engine, given)
        for request, one in zip(requests, given, strict=True):
            self.counts[read_by(request.agent)] += len(one.prefix) + len(one.ids)
        return logps

    def rest(self) -> None:
        """Have the server sleep, where the engine is set to; not while turns are open."""
        if not self._open:
            self.engine.rest()

    def collect(self) -> list[tuple[Request, Turn]]:
        """All turns that are done by now, in the order of submission: at least one, where any is open."""
        done: list[tuple[Request, Turn]] = []
        while self._open and not done:
            self._take(self._answers.get())
            done = self.poll()
        return done

    @property
    def waits(self) -> bool:
        """Whether any request is open."""
        return bool(self._open)

    def poll(self) -> list[tuple[Request, Turn]]:
        """The turns that are done by now, in the order of submission."""
        with suppress(Empty):
            while True:
                self._take(self._answers.get_nowait())
        done, self._done = self._done, {}
        return [done[ticket] for ticket in sorted(done)]

    def release(self, episodes: Sequence[Episode]) -> None:
        """Drop the turns of these episodes, open ones at the server too: an update of the weights would wait for them.

        The server keeps prefixes on its own, as long as it has room.
        """
        released = {id(episode) for episode in episodes}
        for ticket in [ticket for ticket, request in self._open.items() if id(request.episode) in released]:
            del self._open[ticket]
            self._calls.pop(ticket).give_up()
        for ticket in [ticket for ticket, (request, _) in self._done.items() if id(request.episode) in released]:
            del self._done[ticket]

    def _ask(self, ticket: int) -> None:
        """Ask for a turn, in a thread that ends with its answer."""
        request, life, call = self._open[ticket], self.engine.life, CancellableRequest()
        self._calls[ticket] = call
        engine, answers, arrival = self.engine, self._answers, self.arrival  # a thread must not keep the sampler
        prefix, sampling = request.prefix(), self._sampling(request)

        def asked() -> None:
            try:
                result: Generated | Exception = engine.generate(prefix, sampling, call)
            except Exception as error:  # raised where it is collected
                result = error
            answers.put(_Answer(ticket, life, result))
            if arrival is not None:
                arrival.set()

        Thread(target=asked, daemon=True).start()

    def _sampling(self, request: Request) -> dict[str, Any]:
        """vLLM's `SamplingParams` of a request."""
        if not request.max_tokens:
            raise ValueError("a request needs max_tokens >= 1, which the environment sets")
        temperature = self.temperature if request.temperature is None else request.temperature
        greedy = request.greedy or temperature == 0
        top_p = self.top_p if request.top_p is None else request.top_p
        return {
            "temperature": 0.0 if greedy else temperature,
            "top_p": 1.0 if greedy else top_p,
            "seed": request.seed,
            "max_tokens": request.max_tokens,
            "stop": list(request.stop),
            "stop_token_ids": sorted(self._eos),
            "skip_special_tokens": False,  # else tags that are special tokens never stop
            "spaces_between_special_tokens": False,
        }

    def _take(self, answer: _Answer) -> None:
        """Keep a turn that is done, or ask for it again."""
        if answer.ticket not in self._open:
            return  # released
        if isinstance(answer.result, NoAnswer):
            self.engine.recover(answer.life, str(answer.result))
            self.counts["turns_asked_again"] += 1
            self._ask(answer.ticket)
        elif isinstance(answer.result, Exception):
            raise answer.result
        else:
            request = self._open.pop(answer.ticket)
            del self._calls[answer.ticket]
            self._done[answer.ticket] = request, self._turn(request, answer.result)

    def _turn(self, request: Request, said: Generated) -> Turn:
        self.counts[tokens_of(request.agent)] += len(said.ids)
        decoded = self.policy.tokenizer.decode(
            list(said.ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return request.turn(said.ids, said.logps, self._finish(request, said), str(decoded))

    def _finish(self, request: Request, said: Generated) -> Finish:
        if said.finish == "stop" and said.stop in request.stop:
            return "stop"
        if said.finish == "stop" and said.stop is None and said.ids[-1] in self._eos:
            return "eos"
        if said.finish == "length" and len(said.ids) == request.max_tokens:
            return "length"
        raise EngineError(f"vLLM ended a turn of {len(said.ids)} tokens for no known reason: {said.finish} {said.stop}")
