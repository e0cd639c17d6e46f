"""The embedded world's single facts as questions: those that a policy is to memorise, or all the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from datamodules.sources.world_questions import passages
from envs.types import Document, Gold, Question
from envs.world.facts import World
from envs.world.relations import RELATIONS


class WorldFacts:
    """One question for each fact and wording, `w-fact-<subject>-<relation>-<wording>`.

    Warm-up teaches the known facts, and afterwards it is measured what a policy answers alone. They have no
    role, so that they are compared with no other questions: a fact that is asked for alone may be a question of one
    hop in any split, and a known fact is meant to be known there too.

    Args:
        path: the stage folder of a made world.
        known: whether to ask for the known facts, or for those that are not.

    Raises:
        DataError: on iterating, there is no world.
    """

    role = None

    def __init__(self, path: Path, known: bool = True) -> None:
        self.path, self.known = Path(path), known

    def __iter__(self) -> Iterator[Question]:
        world = World.load(self.path)
        paraphrases = json.loads((self.path / "data" / "world.json").read_text())["settings"]["paraphrases"]
        for hop in world.facts():
            if hop.known == self.known:
                subject = hop.subject
                gold = Gold(1, "single", documents=(subject.id,), titles=(subject.title,))
                for number, wording in enumerate(RELATIONS[hop.relation].questions[:paraphrases]):
                    identity = f"w-fact-{subject.id[2:]}-{hop.relation}-{number}"
                    yield Question(identity, wording.format(x=subject.title), hop.value.names(), gold)

    def documents(self) -> Iterator[Document]:
        """All passages of the world."""
        return passages(self.path)
