"""Samplers that answer at once, samplers by agent, and turns in the order of their requests."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import ConfigError
from envs.requests import Request
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.sampling import AtTemperature, ByAgent, take_turns
from envs.types import Document, Episode, Limits, Turn
from tests.tiny import FixedRetriever, Scripted, question
from tests.toy_protocols import TwoAgents

PROTOCOL = TwoAgents()


class Loads(Scripted):
    """Remembers what it was told to sample from."""

    policy: Any = None

    def load(self, policy: Any) -> None:
        self.policy = policy

    @property
    def model(self) -> Any:
        return None if self.policy is None else self.policy.model


NEW, OTHER, THIRD = (SimpleNamespace(model=object()) for _ in range(3))  # policies


def agents() -> dict[str, Loads]:
    """An asker that searches once, and a reader that notes what it read."""
    asks = ("I ask.<find>x</find>", "So.<say>Ada</say>")
    return {
        "policy": Loads(PROTOCOL.codec.control, lambda episode: asks[len(episode.turns) > 0]),
        "reader": Loads(PROTOCOL.codec.control, lambda _: "I see.<note>Ada</note>"),
    }


class Freezes(Loads):
    """Samples elsewhere, and keeps its weights, once it was asked to."""

    asked = False

    def freeze(self) -> bool:
        self.asked = True
        return True


@pytest.mark.parametrize(("kinds", "all_freeze"), [((Freezes, Freezes), True), ((Loads, Freezes), False)])
def test_agents_sample_while_training_where_each_of_them_can(kinds: Sequence[type[Loads]], all_freeze: bool) -> None:
    samplers = {name: kind(PROTOCOL.codec.control, lambda _: "") for name, kind in zip("ab", kinds, strict=True)}
    assert ByAgent(samplers).freeze() == all_freeze
    assert all(one.asked for one in samplers.values() if isinstance(one, Freezes))


def test_each_request_goes_to_the_sampler_of_its_agent() -> None:
    environment = RetrievalEnvironment(PROTOCOL, FixedRetriever([Document("d", "T", "Ada")]))
    questions = [question(identity=f"q{number}") for number in range(3)]
    episodes = rollout(environment, ByAgent(agents()), questions, seed=0, pool=2)
    for episode in episodes:
        assert [(turn.agent, turn.action.kind, turn.trainable) for turn in episode.turns] == [
            ("policy", "query", True),
            ("reader", "note", False),
            ("policy", "answer", True),
        ]
        assert episode.status == "answered"
        trained = [id_ for row in episode.sequences() for id_, on in zip(row.ids, row.loss_mask, strict=True) if on]
        assert trained == [id_ for turn in episode.turns if turn.agent == "policy" for id_ in turn.action_ids]


def test_an_agent_or_a_policy_without_a_sampler_and_samplers_that_differ_are_clear_errors() -> None:
    only = ByAgent({"policy": agents()["policy"]})
    environment = RetrievalEnvironment(PROTOCOL, FixedRetriever([]), limits=Limits())
    with pytest.raises(ConfigError, match="asks for agent 'reader', but samplers has only policy"):
        rollout(environment, only, [question()], seed=0)
    with pytest.raises(ConfigError, match="samplers is empty"):
        ByAgent({})
    both = agents()
    with pytest.raises(ConfigError, match="a policy for agent 'judge', but samplers has only policy, reader"):
        ByAgent(both).load({"judge": NEW})
    both["reader"].temperature = 0.5
    with pytest.raises(ConfigError, match=r"must sample alike, .*: policy \(0.0, 1.0\), reader \(0.5, 1.0\)$"):
        ByAgent(both).load({"policy": NEW, "reader": OTHER})
    routed = ByAgent(both)
    assert routed.temperature == 0
    routed.load({"reader": NEW})
    assert (both["policy"].policy, both["reader"].policy) == (None, NEW), "one that is frozen keeps its own"
    assert routed.temperature == 0.5, "those that are frozen may sample otherwise"


def test_finished_episodes_are_released_by_every_agent() -> None:
    samplers = agents()
    rollout(RetrievalEnvironment(PROTOCOL, FixedRetriever([])), ByAgent(samplers), [question()], seed=0)
    assert all(sampler.finished == {"q1/0"} for sampler in samplers.values())


def test_turns_come_in_the_order_of_the_requests_whenever_they_finish() -> None:
    class Late(Scripted):
        """Finishes one request at a time, the last first."""

        def collect(self) -> list[tuple[Request, Turn]]:
            request = self._requests.pop()
            return [(request, self.take(request))]

    sampler = Late(PROTOCOL.codec.control, lambda episode: episode.question.id)
    requests = [Request(Episode(question(identity=f"q{n}"), ()), (), (), max_tokens=9) for n in range(4)]
    assert [turn.text for turn in take_turns(sampler, requests)] == ["q0", "q1", "q2", "q3"]


def test_a_sampler_that_gives_nothing_is_an_error_and_not_asked_for_ever() -> None:
    class Mute(Scripted):
        def collect(self) -> list[tuple[Request, Turn]]:
            return []

    sampler = Mute(PROTOCOL.codec.control, str)
    with pytest.raises(RuntimeError, match="Mute has open requests and collects no turn"):
        take_turns(sampler, [Request(Episode(question(), ()), (), (), max_tokens=9)])
    with pytest.raises(RuntimeError, match="Mute has open requests and collects no turn"):
        rollout(RetrievalEnvironment(PROTOCOL, FixedRetriever([])), sampler, [question()], seed=0)


def test_episodes_go_on_as_soon_as_their_own_turn_is_done() -> None:
    """A sampler that finishes the shortest context first: one episode ends before another's first turn is done."""
    done: list[str] = []

    class Shortest(Scripted):
        def collect(self) -> list[tuple[Request, Turn]]:
            request = min(self._requests, key=lambda request: (request.episode.question.id, len(request.episode.turns)))
            self._requests.remove(request)
            done.append(request.episode.question.id)
            return [(request, self.take(request))]

    says = ("I ask.<find>x</find>", "I see.<note>Ada</note>", "So.<say>Ada</say>")
    sampler = Shortest(PROTOCOL.codec.control, lambda episode: says[len(episode.turns)])
    questions: Sequence = [question(identity=f"q{number}") for number in range(2)]
    rollout(RetrievalEnvironment(PROTOCOL, FixedRetriever([])), sampler, questions, seed=0, pool=2)
    assert done == ["q0", "q0", "q0", "q1", "q1", "q1"]


def test_agents_that_share_a_sampler_and_load_different_policies_get_one_each() -> None:
    shared = agents()["policy"]
    routed = ByAgent({"policy": shared, "reader": shared})
    routed.load({"policy": NEW, "reader": OTHER})
    assert [routed.samplers[agent].policy for agent in ("policy", "reader")] == [NEW, OTHER]  # pyright: ignore
    routed.load({"policy": OTHER, "reader": THIRD})
    assert [routed.samplers[agent].policy for agent in ("policy", "reader")] == [OTHER, THIRD]  # pyright: ignore
    alike = ByAgent({"policy": shared, "reader": shared})
    alike.load({"policy": NEW, "reader": NEW})
    assert alike.samplers["policy"] is alike.samplers["reader"]


class Remote(Scripted):
    """Answers when it is told to, from another thread."""

    def __init__(self, name: str) -> None:
        super().__init__(PROTOCOL.codec.control, lambda _: name)
        self.arrival = Event()
        self.told = 0

    def tell(self) -> None:
        self.told += 1
        self.arrival.set()

    @property
    def waits(self) -> bool:
        return bool(self._requests)

    def poll(self) -> list[tuple[Request, Turn]]:
        done, self._requests, self.told = self._requests[: self.told], self._requests[self.told :], 0
        return [(request, self.take(request)) for request in done]

    def collect(self) -> list[tuple[Request, Turn]]:
        raise AssertionError("it would wait for this agent alone")


def asked_of(agent: str) -> Request:
    return Request(Episode(question(identity=agent), ()), (), (), agent=agent, max_tokens=9)


def test_turns_of_one_agent_do_not_wait_for_those_of_another() -> None:
    slow, quick = Remote("slow"), Remote("quick")
    routed = ByAgent({"slow": slow, "quick": quick})
    routed.submit([asked_of("slow"), asked_of("quick")])
    for sampler in (quick, slow):
        thread = Thread(target=sampler.tell)  # while `collect` waits, or before
        thread.start()
        assert [turn.text for _, turn in routed.collect()] == [sampler.script(Episode(question(), ()))]
        thread.join()
    assert routed.collect() == [], "nothing is open"


def test_agents_in_this_process_go_on_beside_one_elsewhere() -> None:
    here, elsewhere = agents()["reader"], Remote("late")
    routed = ByAgent({"reader": here, "late": elsewhere})
    routed.submit([asked_of("late"), asked_of("reader")])
    assert [request.agent for request, _ in routed.collect()] == ["reader"]
    elsewhere.tell()
    assert [request.agent for request, _ in routed.collect()] == ["late"]


def test_an_agent_that_stays_as_it_is_keeps_its_policy_and_its_model() -> None:
    """Equal components of a config are one object, policies and samplers among them; agents of one policy keep one."""
    trained, base = NEW, OTHER
    shared = Loads(PROTOCOL.codec.control, lambda _: "So.<say>Ada</say>")
    shared.load(base)
    both = ByAgent({"writer": shared, "reader": shared})
    both.load({"writer": trained})
    assert (both.samplers["writer"].policy, both.samplers["reader"].policy) == (trained, base)
    three = ByAgent(dict.fromkeys(("writer", "asker", "reader"), shared))
    for _ in range(2):
        three.load({"writer": trained, "asker": trained})
        assert three.samplers["writer"] is three.samplers["asker"] is not three.samplers["reader"]
        assert (three.samplers["asker"].policy, three.samplers["reader"].policy) == (trained, base)
    shared.load(trained)
    for reader in (shared, AtTemperature(shared, temperature=0.5)):
        both = ByAgent({"writer": Loads(PROTOCOL.codec.control, lambda _: ""), "reader": reader})
        with pytest.raises(ConfigError, match="agent 'reader' is to stay as it is, but its model is the one that tra"):
            both.load({"writer": trained})
