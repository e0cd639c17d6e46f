"""Many episodes through one environment and one generator, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import chain

from common.progress import progress_bar
from envs.interfaces import Generator
from envs.retrieval import RetrievalEnvironment
from envs.types import Act, Episode, Question, Request


def rollout(
    environment: RetrievalEnvironment,
    generator: Generator,
    questions: Sequence[Question],
    *,
    seed: int,
    samples: int = 1,
    iteration: int = 0,
    pool: int = 64,
    label: str = "episodes",
) -> list[Episode]:
    """Run `samples` episodes a question to their ends, at most `pool` at a time.

    A place in the pool is filled again, in order, as soon as its episode ends, so what runs together depends on the
    questions and the pool size and never on time. Random numbers come from (seed, iteration, question, sample, turn).

    Returns:
        Episodes question by question, samples of a question side by side.

    Raises:
        RetrievalError: the retriever failed too often in a row.
    """
    episodes = [
        environment.start(question, iteration=iteration, sample=sample)
        for question in questions
        for sample in range(samples)
    ]
    with progress_bar(len(episodes), label, unit="ep") as bar:
        play_out(environment, generator, episodes, seed=seed, pool=pool, tick=bar.update)
    return episodes


def play_out(
    environment: RetrievalEnvironment,
    generator: Generator,
    episodes: Sequence[Episode],
    *,
    seed: int,
    pool: int = 64,
    tick: Callable[[int], object] = int,
) -> None:
    """Take episodes, begun or not, to their ends, as `rollout` does; `tick` is told how many ended.

    Raises:
        RetrievalError: the retriever failed too often in a row.
    """
    waiting = iter(episodes)
    active: list[Episode] = []
    with ExitStack() as leaving:
        leaving.callback(generator.release, episodes)  # also when a retriever's failure ends the work
        while True:
            running: list[Request | Act] = []
            done: list[Episode] = []
            for episode in chain(active, waiting):
                coming = environment.next(episode, seed)
                if coming is None:
                    done.append(episode)
                else:
                    running.append(coming)
                if len(running) == pool:
                    break
            generator.release(done)
            tick(len(done))
            if not running:
                return
            _take_turns(environment, generator, running)
            active = [coming.episode for coming in running]


def _take_turns(environment: RetrievalEnvironment, generator: Generator, running: list[Request | Act]) -> None:
    """Take every running episode one turn further."""
    acts = [coming for coming in running if isinstance(coming, Act)]
    environment.apply([act.episode for act in acts], [environment.act(act) for act in acts])
    requests = [coming for coming in running if isinstance(coming, Request)]
    environment.apply([request.episode for request in requests], generator.generate(requests))
