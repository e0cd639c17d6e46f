"""Steps to be judged: paths through search trees, rollouts and sampled episodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Literal

from common.seeds import stable_hash
from datamodules.records import episode_from_row, numbered_rows
from datamodules.tree.node import Tree
from datamodules.tree.step_groups import can_be_judged
from datamodules.tree_search import read_trees
from envs.interfaces import AgentFormat
from envs.pairs import Candidate
from envs.token_ids import require_ids_of
from envs.types import Episode

Use = Literal["tree", "rollouts", "both"]


def question_paths(folder: Path, protocol: AgentFormat, use: Use) -> Iterator[list[Episode]]:
    """The paths of each question of a stage, in the order of its questions; paths of a question may share turns.

    `tree` takes the paths to the leaves of a search's trees, `rollouts` the finished episodes of any stage that has
    `data/episodes.jsonl`: a search that keeps what it played out, or sampling. `both` takes the two of one search.

    Raises:
        DataError: a file is missing, a row is malformed, or its ids are not those of the protocol's tokenizer.
    """
    episodes = _episodes(folder / "data" / "episodes.jsonl", protocol)
    begun = (episode for episode in episodes if episode.turns)  # of a prompt that leaves no room there is no step
    played = ((id_, list(group)) for id_, group in groupby(begun, key=lambda episode: episode.question.id))
    if use == "rollouts":
        yield from (group for _, group in played)
        return
    upcoming = next(played, None) if use == "both" else None
    for tree in read_trees(folder, protocol):
        paths = _leaves(tree, protocol)
        if upcoming is not None and upcoming[0] == tree.question.id:
            paths += upcoming[1]
            upcoming = next(played, None)
        yield paths


def judgeable_steps(path: Episode) -> Iterator[tuple[int, Candidate]]:
    """The last step of every trained turn that can be judged: its index, and the episode as it was then."""
    last_of_turn = {step.spans[-1][0]: index for index, step in enumerate(path.steps) if step.spans}
    for number, turn in enumerate(path.turns):
        index = last_of_turn.get(number)
        if index is None or not turn.trainable:
            continue
        ended = {} if number == len(path.turns) - 1 else {"status": None, "answer": ""}
        episode = replace(path, turns=path.turns[: number + 1], steps=path.steps[: index + 1], **ended)
        if can_be_judged(episode):
            yield index, Candidate(episode)


def step_id(candidate: Candidate) -> str:
    """The same for a step on every path that shares it, and different for every other step."""
    return candidate.episode.turns[-1].uid


def by_hash(paths: Sequence[Episode], *, seed: int) -> list[Episode]:
    """The paths of a question in the order in which they are judged."""
    return sorted(paths, key=lambda path: stable_hash(seed, "path", path.turns[-1].uid))


def chosen_steps(questions: Iterable[Sequence[Episode]], *, most: int, seed: int) -> frozenset[str]:
    """`step_id`s of at most `most` steps: one path of every question, in an order by hash, then another, and so on.

    Whole paths, because one pass over an episode scores all its steps; of the last one its first steps.
    """
    offers: list[tuple[int, int, list[str]]] = []
    for paths in questions:
        seen: set[str] = set()
        for number, path in enumerate(by_hash(paths, seed=seed)):
            new = [name for _, one in judgeable_steps(path) if (name := step_id(one)) not in seen]
            seen.update(new)
            offers.append((number, stable_hash(seed, "question", path.question.id), new))
    names = [name for _, _, new in sorted(offers) for name in new]
    return frozenset(names[:most])


def _episodes(path: Path, protocol: AgentFormat) -> Iterator[Episode]:
    for where, row in numbered_rows(path):
        episode = episode_from_row(row, where)
        require_ids_of(protocol.codec.tokenizer, episode.tokenizer, where)
        yield episode


def _leaves(tree: Tree, protocol: AgentFormat) -> list[Episode]:
    """The episodes along the paths to the leaves, as the protocol reads them."""
    episodes = [tree.episode(path) for path in tree.paths() if len(path) > 1 and not path[-1].children]
    for episode in episodes:
        episode.steps, episode.answer = protocol.steps(episode), protocol.answer(episode)
    return episodes
