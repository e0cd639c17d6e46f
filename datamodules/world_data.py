"""The stage that makes the embedded world: its passages, questions, facts and a tokenizer for tiny models."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.errors import ConfigError
from common.files import write_json
from datamodules.records import question_to_row, write_rows
from envs.protocols.prorag import TAGS
from envs.types import Question
from envs.world.facts import World, make_world
from envs.world.guesses import facts_seen, guess_baselines, guess_unknown
from envs.world.names import Names
from envs.world.passages import passage
from envs.world.questions import choose, question
from envs.world.vocabulary import build_tokenizer, english

log = logging.getLogger(__name__)

SPLITS = {"sft": 400.0, "search": 320.0, "refine": 380.0, "rl": 700.0, "dev": 300.0, "test": 300.0}
HELD_OUT = ("dev", "test")
LONGEST = 8  # hops: all longer chains of a default world take a minute to list
LEAK = 0.30  # above this a policy gets far without searching
HEADLINE = (
    *("entities", "facts", "known", "questions", "vocabulary"),
    *("guess_em", "guess_single_em", "guess_unknown_em", "facts_seen", "unanswerable"),
)


class WorldData:
    """Record stage of `data/{corpus,questions,facts}.jsonl`, `data/world.json` and `tokenizer/`, all from one seed.

    Args:
        people, cities, works, organisations, countries: how many entities of each kind.
        hops: lengths of chains, 1 to 8; questions are spread evenly over the entries, so a length that is listed twice
            gets twice as many.
        comparison: how many questions compare two entities, or their share where it is below 1.
        questions: how many in all.
        skew: Zipf exponent of how often an entity is a value; 0 is even.
        namesakes: share of people and of works that bear the name of another, in [0, 1].
        paraphrases: wordings of each relation, 1 to 3.
        known: share of the facts that a policy is to memorise, in [0, 1]: `WorldFacts` asks for them.
        absent: share of the other facts that no passage states, in [0, 1]. A question that needs one has the type
            `unanswerable` and the answer "I do not know".
        splits: sizes or shares; only their proportions count. A question's split is a function of hash(seed, id).
        tags: control tags that are tokens of the tokenizer.
        texts: more texts whose words the tokenizer knows, such as a protocol's instruction.

    Raises:
        ConfigError: a setting is out of range; on making, there are too few questions for the splits, or
            none of a length.
    """

    def __init__(
        self,
        *,
        people: int = 120,
        cities: int = 30,
        works: int = 60,
        organisations: int = 40,
        countries: int = 8,
        hops: tuple[int, ...] = (1, 2, 3),
        comparison: float = 0,
        questions: int = 2400,
        skew: float = 0.8,
        namesakes: float = 0.1,
        paraphrases: int = 3,
        known: float = 0.0,
        absent: float = 0.0,
        splits: dict[str, float] | None = None,
        tags: tuple[str, ...] = TAGS,
        texts: tuple[str, ...] = (),
    ) -> None:
        self.counts = {
            "person": people,
            "city": cities,
            "work": works,
            "organisation": organisations,
            "country": countries,
        }
        self.hops, self.questions = tuple(hops), questions
        self.comparison = round(comparison * questions) if comparison < 1 else round(comparison)
        self.skew, self.namesakes, self.paraphrases = skew, namesakes, paraphrases
        self.known, self.absent = known, absent
        # Sorted, for the order in which a file gives them is no setting.
        self.splits = dict(sorted((SPLITS if splits is None else splits).items()))
        self.tags, self.texts = tuple(tags), tuple(texts)
        self._check()

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Write the world, on rank 0; `world.json` comes last, so a world that has it is complete and is kept."""
        data = Path(folder) / "data"
        if rank or (data / "world.json").exists():
            return
        names = Names(self.counts, english())
        shares = {"known": self.known, "absent": self.absent}
        world = make_world(names, seed=seed, skew=self.skew, namesakes=self.namesakes, **shares)
        split_of = {
            split: [question(world, identity, seed=seed, paraphrases=self.paraphrases) for identity in identities]
            for split, identities in choose(
                world,
                seed=seed,
                questions=self.questions,
                hops=self.hops,
                comparison=self.comparison,
                splits=self.splits,
            ).items()
        }
        world.save(data / "facts.jsonl")
        write_rows(data / "corpus.jsonl", self._passages(world, seed))
        write_rows(
            data / "questions.jsonl",
            (question_to_row(question, split=split) for split, members in split_of.items() for question in members),
        )
        tokenizer = build_tokenizer(names, tags=self.tags, texts=self.texts)
        tokenizer.save_pretrained(Path(folder) / "tokenizer")
        write_json(data / "world.json", self._summary(world, split_of, len(tokenizer), seed))

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Headline: counts, and what guessing scores and memory may cover of the test split, in [0, 1].

        Where facts are known also their number, and what guessing scores on the others; where some are absent, the
        share of test questions that are unanswerable.
        """
        summary = json.loads((Path(folder) / "data" / "world.json").read_text(encoding="utf-8"))
        return {name: float(summary[name]) for name in HEADLINE if name in summary}

    def _passages(self, world: World, seed: int) -> Iterator[dict[str, Any]]:
        for entity in world:
            document = passage(world, entity, seed=seed, paraphrases=self.paraphrases)
            yield {"id": document.id, "title": document.title, "text": document.text}

    def _summary(
        self, world: World, questions: dict[str, list[Question]], vocabulary: int, seed: int
    ) -> dict[str, Any]:
        train = [question for split, members in questions.items() if split not in HELD_OUT for question in members]
        guesses = guess_baselines(train, questions["test"])
        if guesses["guess_em"] >= LEAK:
            log.warning(
                "this world leaks: guessing by relation answers %.0f %% of the test questions; lower `skew`",
                100 * guesses["guess_em"],
            )
        settings = {name: value for name, value in vars(self).items() if name not in ("texts", "known", "absent")}
        settings |= {name: share for name in ("known", "absent") if (share := getattr(self, name))}
        unanswerable = sum(one.gold is not None and one.gold.type == "unanswerable" for one in questions["test"])
        known = sum(hop.known for hop in world.facts())
        return {
            "schema": "world/1",
            "seed": seed,
            "settings": settings,
            "entities": len(world),
            "facts": sum(len(entity.facts) for entity in world),
            **({"known": known, "guess_unknown_em": guess_unknown(world)} if known else {}),
            **({"unanswerable": unanswerable / len(questions["test"])} if self.absent else {}),
            "questions": sum(map(len, questions.values())),
            "splits": {split: len(members) for split, members in questions.items()},
            "vocabulary": vocabulary,
            **guesses,
            "facts_seen": facts_seen(world, train, questions["test"]),
        }

    def _check(self) -> None:
        """Require settings of which a world can be made."""
        people, cities, countries = (self.counts[kind] for kind in ("person", "city", "country"))
        wrong = [
            (min(self.counts.values()) < 1, "every kind needs at least one entity"),
            (cities < countries, f"{countries} countries need as many cities, there are {cities}"),
            (people < cities, f"{cities} cities need as many people for mayors, there are {people}"),
            (
                not self.hops or not {*self.hops} <= {*range(1, LONGEST + 1)},
                f"hops {list(self.hops)} must be from 1 to {LONGEST}",
            ),
            (not 1 <= self.paraphrases <= 3, f"paraphrases {self.paraphrases} must be 1, 2 or 3"),
            (not 0 <= self.namesakes <= 1, f"namesakes {self.namesakes} must be in [0, 1]"),
            (not 0 <= self.known <= 1, f"known {self.known} must be in [0, 1]"),
            (not 0 <= self.absent <= 1, f"absent {self.absent} must be in [0, 1]"),
            (self.skew < 0, f"skew {self.skew} must not be negative"),
            (self.questions < 1, f"questions {self.questions} must be positive"),
            (not 0 <= self.comparison < self.questions, f"comparison {self.comparison} must be less than questions"),
            (any(not weight > 0 for weight in self.splits.values()), f"splits {self.splits} must be positive"),
            ("test" not in self.splits, f"splits {list(self.splits)} must have 'test', which guessing is scored on"),
            ({*self.splits} <= {*HELD_OUT}, f"splits {list(self.splits)} must have a split to train on"),
        ]
        for is_wrong, reason in wrong:
            if is_wrong:
                raise ConfigError(f"WorldData: {reason}")
