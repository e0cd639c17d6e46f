"""Questions: chains of relations and comparisons, in natural English, each in one split.

A question's id spells its key, the entities and relations it asks for, so no key can stand in two splits; text and
gold reasoning are functions of the world, the seed and the id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from random import Random

from common.answers import ABSTENTION
from common.errors import ConfigError
from common.seeds import stable_hash
from envs.types import Gold, GoldStep, Question
from envs.world.facts import Entity, Hop, World
from envs.world.relations import RELATIONS


def question(world: World, identity: str, *, seed: int, paraphrases: int) -> Question:
    """The question with this id.

    One that needs a fact which no passage states is of type `unanswerable`; its answer is "I do not know".

    Raises:
        DataError: the id names nothing in this world.
    """
    hops = world.lookups(identity)
    rng = Random(stable_hash(seed, "question", identity))
    if is_comparison(identity):
        hop, other = hops
        wordings = RELATIONS[hop.relation].same[:paraphrases]
        text = rng.choice(wordings).format(x=hop.subject.title, y=other.subject.title)
        answers, type_ = (("yes" if hop.value is other.value else "no"),), "comparison"
    else:
        text = hops[0].subject.title
        for hop in hops[:-1]:
            text = _nest(RELATIONS[hop.relation].phrases[:paraphrases], text, hops, rng)
        text = _nest(RELATIONS[hops[-1].relation].questions[:paraphrases], text, hops, rng)
        answers, type_ = hops[-1].value.names(), "bridge" if len(hops) > 1 else "single"
    if any(hop.absent for hop in hops):
        return Question(identity, text, (ABSTENTION,), Gold(len(hops), "unanswerable"))
    steps = tuple(GoldStep(sub_question(hop, rng, paraphrases), hop.value.title, (hop.subject.id,)) for hop in hops)
    documents = tuple(hop.subject.id for hop in hops)
    titles = tuple(hop.subject.title for hop in hops)
    return Question(identity, text, answers, Gold(len(hops), type_, steps, documents, titles))


def sub_question(hop: Hop, rng: Random, paraphrases: int) -> str:
    """A question of one hop."""
    return rng.choice(RELATIONS[hop.relation].questions[:paraphrases]).format(x=hop.subject.title)


def _nest(wordings: Sequence[str], inner: str, hops: Sequence[Hop], rng: Random) -> str:
    """Put `inner` into one of the wordings, but not two clauses into each other ("where the city where X is lies")."""
    if not inner.endswith(hops[0].subject.title):
        wordings = [wording for wording in wordings if wording.rstrip("?").endswith("{x}")]
    return rng.choice(wordings).format(x=inner)


def is_comparison(identity: str) -> bool:
    return identity.startswith("w-compare-")


def split_of(identity: str, splits: Mapping[str, float], seed: int) -> str:
    """The split of a question: a function of hash(seed, id) alone, each split as likely as its weight."""
    place = stable_hash(seed, identity) / 2**63 * sum(splits.values())
    name = ""
    for name, weight in splits.items():
        if place < weight:
            return name
        place -= weight
    return name  # the sum was rounded


def choose(
    world: World, *, seed: int, questions: int, hops: Sequence[int], comparison: int, splits: Mapping[str, float]
) -> dict[str, list[str]]:
    """Ids of the questions of every split, in the order of their hashes.

    A split's size is its share of `questions`. Within it every entry of `hops` gets as many (a number that stands
    there twice gets twice as many) and, within that, every last relation, so far as the world has as many.

    Raises:
        ConfigError: a split would be empty; the world has too few questions, or none of a length.
    """
    sizes = shares(questions, splits)
    if empty := [split for split, size in sizes.items() if not size]:
        raise ConfigError(f"questions {questions} are too few for the splits: none left for {', '.join(empty)}")
    pools: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for form, last, identity in _candidates(world, hops, comparison, seed):
        pools[split_of(identity, splits, seed), form][last].append(identity)
    forms = {str(count): list(hops).count(count) * (questions - comparison) / len(hops) for count in sorted(set(hops))}
    if comparison:
        forms["compare"] = comparison
    if missing := [form for form in forms if not any(pool[1] == form for pool in pools)]:
        raise ConfigError(f"the world has no questions of {', '.join(missing)} hops; ask for fewer hops or more people")
    chosen = {}
    for split, size in sizes.items():
        supply = {form: sum(map(len, pools[split, form].values())) for form in forms}
        if sum(supply.values()) < size:
            raise ConfigError(
                f"the world has {sum(supply.values())} questions of {size} for the split {split!r}; "
                "ask for fewer questions, or for more people or hops"
            )
        identities = [
            identity
            for form, count in shares(size, forms, supply).items()
            for identity in _balanced(pools[split, form], count, seed)
        ]
        chosen[split] = sorted(identities, key=lambda identity: stable_hash(seed, identity))
    return chosen


def shares(total: int, weights: Mapping[str, float], supply: Mapping[str, int] | None = None) -> dict[str, int]:
    """Divide a total by weights into whole numbers; what one has too little of goes to the others.

    The numbers add up to the total, or to the whole supply where that is less.
    """
    scarce_first = sorted(weights, key=lambda name: supply[name] / weights[name]) if supply else list(weights)
    left, weight_left = total, sum(weights.values())
    given = {}
    for name in scarce_first:
        wanted = round(left * weights[name] / weight_left) if weight_left > weights[name] else left
        given[name] = min(wanted, supply[name]) if supply else wanted
        left -= given[name]
        weight_left -= weights[name]
    return {name: given[name] for name in weights}


def _balanced(pool: Mapping[str, list[str]], count: int, seed: int) -> Iterator[str]:
    """`count` ids, evenly over the keys of the pool."""
    supply = {last: len(pool[last]) for last in sorted(pool)}
    for last, share in shares(count, dict.fromkeys(supply, 1.0), supply).items():
        yield from sorted(pool[last], key=lambda identity: stable_hash(seed, identity))[:share]


def _candidates(world: World, hops: Sequence[int], comparison: int, seed: int) -> Iterator[tuple[str, str, str]]:
    """Form, last relation and id of all that can be asked."""
    for entity in world:
        yield from _chains(world, (entity,), "", frozenset(hops))
    if comparison:
        yield from _comparisons(world, 4 * comparison, seed)


def _chains(
    world: World, path: tuple[Entity, ...], relations: str, hops: frozenset[int]
) -> Iterator[tuple[str, str, str]]:
    """Chains that continue `path`; none comes to a name twice, so none gives its answer away or turns idle."""
    length = len(path)
    for relation, identity in path[-1].facts.items():
        value = world.entities[identity]
        if any(value.name == entity.name for entity in path):
            continue
        chain = f"{relations}-{relation}"
        if length in hops:
            yield str(length), relation, f"w-{length}hop-{path[0].id[2:]}{chain}"
        if length < max(hops):
            yield from _chains(world, (*path, value), chain, hops)


def _comparisons(world: World, draws: int, seed: int) -> Iterator[tuple[str, str, str]]:
    """Random pairs for every relation that can be compared, as many that agree as that differ."""
    rng = Random(stable_hash(seed, "comparisons"))
    seen = set()
    for relation in (relation for relation in RELATIONS.values() if relation.same):
        subjects = [entity for entity in world if relation.name in entity.facts]
        agreeing = defaultdict(list)
        for entity in subjects:
            agreeing[entity.facts[relation.name]].append(entity)
        for verdict in ("yes", "no"):
            for subject in rng.choices(subjects, k=draws):
                value = subject.facts[relation.name]
                other = rng.choice(agreeing[value] if verdict == "yes" else subjects)
                first, second = sorted((subject.id, other.id))
                identity = f"w-compare-{first[2:]}-{second[2:]}-{relation.name}"
                agree = value == other.facts[relation.name]
                if first != second and agree == (verdict == "yes") and identity not in seen:
                    seen.add(identity)
                    yield "compare", f"{relation.name} {verdict}", identity
