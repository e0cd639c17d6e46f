"""Samplers made of samplers: by agent, at another temperature, greedy; and turns in the order of their requests."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Event
from typing import Any

from common.costs import counted
from common.errors import ConfigError
from common.progress import current
from envs.interfaces import AgentFormat, Sampler
from envs.requests import Act, Request
from envs.types import Episode, Limits, Turn


class ByAgent(Sampler):
    """A sampler that routes each request to the sampler of its agent.

    `load` takes a map of policies by agent; an agent without one keeps what it samples from, as a frozen one does.
    Agents that share a sampler get one each, unless they load the same policy. Temperature and top-p are the first
    agent's, after loading those of the agents that load.

    Args:
        samplers: by the name of the agent that requests carry.

    Raises:
        ConfigError: there is none; on submitting, a request names an agent that has none; on loading, there is a policy
            for an agent that has none, or two that load sample differently.
    """

    def __init__(self, samplers: Mapping[str, Sampler]) -> None:
        if not samplers:
            raise ConfigError("samplers is empty: give each agent of the protocol its sampler")
        self.samplers = dict(samplers)
        self._loading: set[str] = set()
        self.arrival = Event()
        first = next(iter(self.samplers.values()))
        self.temperature, self.top_p = first.temperature, first.top_p

    @property
    def counts(self) -> Counter[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Counts of all agents' samplers."""
        return counted(*self.samplers.values())

    @property
    def engine_dtype(self) -> str | None:
        """The coarsest type among the agents that load."""
        dtypes = {dtype for agent in self._loading if (dtype := self.samplers[agent].engine_dtype)}
        return next(iter(sorted(dtypes - {"float32"})), "float32" if dtypes else None)

    def check(self, protocol: AgentFormat, limits: Limits) -> None:
        for sampler in self.samplers.values():
            sampler.check(protocol, limits)

    def submit(self, requests: Sequence[Request]) -> None:
        self._require_known(requests)
        for agent, sampler in self.samplers.items():
            sampler.arrival = self.arrival
            sampler.submit([request for request in requests if request.agent == agent])

    def score(self, requests: Sequence[Request]) -> list[tuple[float, ...]]:
        self._require_known(requests)
        scores: dict[int, tuple[float, ...]] = {}
        for agent, sampler in self.samplers.items():
            own = [request for request in requests if request.agent == agent]
            scores |= zip(map(id, own), sampler.score(own) if own else (), strict=True)
        return [scores[id(request)] for request in requests]

    def _require_known(self, requests: Sequence[Request]) -> None:
        if unknown := {request.agent for request in requests} - set(self.samplers):
            known = ", ".join(self.samplers)
            raise ConfigError(f"the protocol asks for agent '{min(unknown)}', but samplers has only {known}")

    def collect(self) -> list[tuple[Request, Turn]]:
        """Turns of any agents; where all are made elsewhere, those that come first."""
        assert self.arrival is not None
        while True:
            self.arrival.clear()  # before looking: what comes from now on sets it again
            if (done := self.poll()) or not self.waits:
                return done
            self.arrival.wait()

    @property
    def waits(self) -> bool:
        """Whether any agent's turns are being made elsewhere."""
        return any(sampler.waits for sampler in self.samplers.values())

    def poll(self) -> list[tuple[Request, Turn]]:
        return [pair for sampler in self.samplers.values() for pair in sampler.poll()]

    def release(self, episodes: Sequence[Episode]) -> None:
        for sampler in self.samplers.values():
            sampler.release(episodes)

    def hold(self, episodes: Sequence[Episode]) -> None:
        for sampler in self.samplers.values():
            sampler.hold(episodes)

    def rest(self) -> None:
        for sampler in self.samplers.values():
            sampler.rest()

    def freeze(self) -> bool:
        """Whether every agent's sampler does; each is asked, so that each can refuse."""
        able = [sampler.freeze() for sampler in self.samplers.values()]
        return all(able)

    def load(self, policy: Mapping[str, Any]) -> None:
        if unknown := policy.keys() - self.samplers.keys():
            known = ", ".join(self.samplers)
            raise ConfigError(f"there is a policy for agent '{min(unknown)}', but samplers has only {known}")
        settings = {agent: (self.samplers[agent].temperature, self.samplers[agent].top_p) for agent in policy}
        if len(set(settings.values())) > 1:
            listed = ", ".join(f"{agent} {own}" for agent, own in settings.items())
            raise ConfigError(f"agents that load policies must sample alike, at one temperature and top_p: {listed}")
        copies: dict[tuple[int, int], Sampler] = {}
        for agent, own in policy.items():
            sampler = self.samplers[agent]
            if any(one is sampler and policy.get(other) is not own for other, one in self.samplers.items()):
                key = id(sampler), id(own)
                if key not in copies:
                    copies[key] = copy.deepcopy(sampler)  # equal components of a config are one object
                self.samplers[agent] = sampler = copies[key]
            sampler.load(own)
            self.temperature, self.top_p = settings[agent]
        self._loading = set(policy)
        self._check_frozen(policy)

    def _check_frozen(self, policy: Mapping[str, Any]) -> None:
        """An agent that keeps its policy must not sample from a model that trains: equal components are one object."""
        trained = {id(own.model): agent for agent, own in policy.items()}
        for agent in self.samplers.keys() - policy.keys():
            if trains := trained.get(id(self.samplers[agent].model)):
                raise ConfigError(
                    f"agent '{agent}' is to stay as it is, but its model is the one that trains for agent "
                    f"'{trains}': give its load_policy other settings, such as `dtype`"
                )


class AtTemperature(Sampler):
    """Passes requests on to another sampler, to be answered at a temperature and top-p that are not the sampler's.

    So two uses of one model share what it has read: a search's expander and its simulator, say. The sampler behind must
    have no other open requests, and must heed those of a request, as one in this process does.

    Args:
        sampler: samples.
        temperature: 0 is greedy.
        top_p: nucleus sampling mass.

    Raises:
        ConfigError: a setting is out of range.
    """

    def __init__(self, sampler: Sampler, *, temperature: float = 0.0, top_p: float = 1.0) -> None:
        if temperature < 0 or not 0 < top_p <= 1:
            raise ConfigError(f"temperature {temperature}, top_p {top_p}: must be >= 0, and in (0, 1]")
        self.behind, self.temperature, self.top_p = sampler, temperature, top_p
        self._asked: dict[int, Request] = {}

    @property
    def counts(self) -> Counter[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Counts of the sampler behind, over all of its uses."""
        return self.behind.counts

    @property
    def engine_dtype(self) -> str | None:
        """That of the sampler behind."""
        return self.behind.engine_dtype

    @property
    def model(self) -> Any:
        """That of the sampler behind."""
        return self.behind.model

    @property
    def waits(self) -> bool:
        """Whether the sampler behind has turns made elsewhere."""
        return self.behind.waits

    def check(self, protocol: AgentFormat, limits: Limits) -> None:
        self.behind.check(protocol, limits)

    def hold(self, episodes: Sequence[Episode]) -> None:
        self.behind.hold(episodes)

    def rest(self) -> None:
        self.behind.rest()

    def freeze(self) -> bool:
        return self.behind.freeze()

    def submit(self, requests: Sequence[Request]) -> None:
        passed = [self._changed(request) for request in requests]
        self._asked |= {id(one): request for one, request in zip(passed, requests, strict=True)}
        if self.arrival is not None:
            self.behind.arrival = self.arrival
        self.behind.submit(passed)

    def collect(self) -> list[tuple[Request, Turn]]:
        return self._as_asked(self.behind.collect())

    def poll(self) -> list[tuple[Request, Turn]]:
        return self._as_asked(self.behind.poll())

    def _as_asked(self, done: list[tuple[Request, Turn]]) -> list[tuple[Request, Turn]]:
        if any(id(one) not in self._asked for one, _ in done):
            raise ConfigError(
                f"{type(self).__name__} got a turn that it did not ask for: the sampler behind it has requests of "
                "another at the same time; give one of them other settings, so that it is a sampler of its own"
            )
        return [(self._asked.pop(id(one)), turn) for one, turn in done]

    def release(self, episodes: Sequence[Episode]) -> None:
        released = {id(episode) for episode in episodes}
        self._asked = {key: request for key, request in self._asked.items() if id(request.episode) not in released}
        self.behind.release(episodes)

    def load(self, policy: Any) -> None:
        self.behind.load(policy)

    def score(self, requests: Sequence[Request]) -> list[tuple[float, ...]]:
        """Those of the sampler behind: given tokens are scored at temperature 1 in any case."""
        return self.behind.score(requests)

    def _changed(self, request: Request) -> Request:
        return replace(request, temperature=self.temperature, top_p=self.top_p)


class Greedy(AtTemperature):
    """Passes requests on to be answered with the most probable tokens.

    Their log-probs are at the temperature of the sampler behind; of vLLM they are at 1.
    """

    def __init__(self, sampler: Sampler) -> None:
        super().__init__(sampler)

    def _changed(self, request: Request) -> Request:
        return replace(request, greedy=True)


def weighed(sampler: Sampler, act: Act) -> Act:
    """The act with the log-probs of its alternatives, if it has any; a call of its own, so that no batch changes them.

    Raises:
        ConfigError: the sampler has no log-probs of tokens that it did not sample.
    """
    if not act.alternatives:
        return act
    logps = " ".join(repr(sum(logps)) for logps in sampler.score(act.alternatives))
    return replace(act, action=replace(act.action, text=logps), alternatives=())


def collected(sampler: Sampler) -> list[tuple[Request, Turn]]:
    """Turns that a sampler with open requests collects.

    Raises:
        RuntimeError: nothing, and it would be asked for ever.
    """
    if not (turns := sampler.collect()):
        raise RuntimeError(f"{type(sampler).__name__} has open requests and collects no turn")
    current().tokens += sum(len(turn.action_ids) for _, turn in turns)
    return turns


def take_turns(sampler: Sampler, requests: Sequence[Request]) -> list[Turn]:
    """One turn a request, in the order of the requests, whenever the sampler finishes them.

    The sampler must have no other open requests.
    """
    sampler.submit(requests)
    turns: dict[int, Turn] = {}
    while len(turns) < len(requests):
        turns |= {id(request): turn for request, turn in collected(sampler)}
    return [turns[id(request)] for request in requests]
