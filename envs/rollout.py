"""Many episodes through one environment and one generator, in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from envs.interfaces import Generator
from envs.progress import progress_bar
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
    waiting = iter(episodes)
    running: list[Episode] = []
    with progress_bar(len(episodes), label, unit="ep") as bar:
        while True:
            running += islice(waiting, pool - len(running))
            if not running:
                return episodes
            _advance(environment, generator, running, seed)
            done = [episode for episode in running if episode.status is not None]
            generator.release(done)
            bar.update(len(done))
            running = [episode for episode in running if episode.status is None]


def _advance(environment: RetrievalEnvironment, generator: Generator, running: list[Episode], seed: int) -> None:
    """Take every running episode one turn further, or to its end."""
    acts: list[tuple[Episode, Act]] = []
    requests: list[Request] = []
    for episode in running:
        coming = environment.next(episode, seed)
        if isinstance(coming, Act):
            acts.append((episode, coming))
        elif coming is not None:
            requests.append(coming)
    environment.apply([episode for episode, _ in acts], [environment.act(episode, act) for episode, act in acts])
    environment.apply([request.episode for request in requests], generator.generate(requests))
