"""Many episodes through one environment and one sampler, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import chain

from common.errors import RetrievalError
from common.progress import progress_bar
from envs.background_search import BackgroundSearch
from envs.interfaces import Sampler
from envs.requests import Act, Request
from envs.retrieval import RetrievalEnvironment
from envs.sampling import collected, weighed
from envs.types import Episode, Question

Sampling = Callable[..., list[Episode]]  # called as `independent_groups` is


def rollout(
    environment: RetrievalEnvironment,
    sampler: Sampler,
    questions: Sequence[Question],
    *,
    seed: int,
    samples: int = 1,
    iteration: int = 0,
    pool: int = 64,
    label: str = "episodes",
) -> list[Episode]:
    """Run `samples` episodes a question to their ends, at most `pool` at a time.

    An episode continues as soon as its own turn is done, and its place is filled again, in order, as soon as it ends.
    What runs together depends on the questions, the pool size and the order in which the sampler finishes requests;
    for a sampler in this process that order is fixed by token counts. Random numbers come from (seed, iteration,
    question, sample, turn).

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
        play_out(environment, sampler, episodes, seed=seed, pool=pool, tick=bar.update)
    return episodes


def require_finished(episodes: Sequence[Episode]) -> None:
    """Refuse episodes that ended in an error, where each is to be measured.

    Raises:
        RetrievalError: there are such; how many, and why the first.
    """
    if failed := [episode.error for episode in episodes if episode.status == "error"]:
        raise RetrievalError(f"{len(failed)} of {len(episodes)} episodes failed, run again: {failed[0]}")


def independent_groups(
    environment: RetrievalEnvironment,
    sampler: Sampler,
    questions: Sequence[Question],
    *,
    group_size: int,
    seed: int,
    iteration: int,
    pool: int = 64,
) -> list[Episode]:
    """How an iteration of reinforcement learning samples: `group_size` finished episodes a question, side by side.

    Those of this function are independent, at most `pool` at a time; another component's may share turns, as the paths
    of a tree do.
    """
    return rollout(
        environment,
        sampler,
        questions,
        seed=seed,
        samples=group_size,
        iteration=iteration,
        pool=pool,
    )


def play_out(
    environment: RetrievalEnvironment,
    sampler: Sampler,
    episodes: Sequence[Episode],
    *,
    seed: int,
    pool: int = 64,
    tick: Callable[[int], object] = int,
    watch: Callable[[Episode], object] = id,
) -> None:
    """Take episodes, begun or not, to their ends, as `rollout` does; `tick` gets the number that ended.

    `watch` gets each episode before its first turn, after every turn with what was found, and at its end. Where turns
    are made elsewhere, no turn waits for another episode's search.

    Raises:
        RetrievalError: the retriever failed too often in a row.
    """
    waiting = iter(episodes)
    ready: list[Episode] = []  # their last turn is done
    in_flight = 0  # turns and searches that are open
    elsewhere, search = False, BackgroundSearch(environment)
    sampler.arrival = search.arrival
    with ExitStack() as leaving:
        leaving.callback(sampler.release, episodes)  # also when a retriever's failure ends the work
        while True:
            requests: list[Request] = []
            acts: list[Act] = []
            done: list[Episode] = []
            for episode in chain(ready, waiting):
                upcoming = environment.next(episode, seed)
                watch(episode)
                match upcoming:
                    case Request() as request:
                        requests.append(request)
                    case Act() as act:
                        acts.append(act)
                    case None:
                        done.append(episode)
                if in_flight + len(requests) + len(acts) == pool:
                    break
            sampler.release(done)
            tick(len(done))
            sampler.submit(requests)
            in_flight += len(requests) + len(acts)
            if not in_flight:
                return
            taken = [(act.episode, environment.act(weighed(sampler, act))) for act in acts]
            elsewhere = elsewhere or sampler.waits
            if elsewhere:
                ready = search.ready(sampler, taken)
            else:
                taken = taken or [(request.episode, turn) for request, turn in collected(sampler)]
                ready = [episode for episode, _ in taken]
                environment.apply(ready, [turn for _, turn in taken])
            in_flight -= len(ready)
