"""Accuracy of guessing and of memory: a world that they can answer teaches nothing about searching."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from envs.types import Question
from envs.world.facts import World


def guess_baselines(train: Iterable[Question], test: Sequence[Question]) -> dict[str, float]:
    """Exact match on `test` of guessing from the training questions, in [0, 1].

    `guess_em` answers with the most frequent training answer of the question's last relation, `guess_single_em` always
    with the most frequent training answer of all.
    """
    by_relation: dict[str, Counter[str]] = defaultdict(Counter)
    overall: Counter[str] = Counter()
    for question in train:
        by_relation[_asked(question)][question.answers[0]] += 1
        overall[question.answers[0]] += 1
    guesses = {relation: _mode(answers) for relation, answers in by_relation.items()}
    single = _mode(overall)
    return {
        "guess_em": sum(guesses.get(_asked(question)) in question.answers for question in test) / len(test),
        "guess_single_em": sum(single in question.answers for question in test) / len(test),
    }


def guess_unknown(world: World) -> float:
    """Share of the facts not memorised that their relation's most frequent value of all facts gets right."""
    values: dict[str, Counter[str]] = defaultdict(Counter)
    for hop in world.facts():
        values[hop.relation][hop.value.title] += 1
    modes = {relation: _mode(counts) for relation, counts in values.items()}
    unknown = [hop for hop in world.facts() if not hop.known]
    return sum(modes[hop.relation] in hop.value.names() for hop in unknown) / max(len(unknown), 1)


def facts_seen(world: World, train: Iterable[Question], test: Sequence[Question]) -> float:
    """Share of `test` whose every look-up some training question takes too, in [0, 1].

    A policy that has memorised the facts it was trained on needs no search for these.
    """
    seen = {fact for question in train for fact in _facts(world, question)}
    return sum(seen.issuperset(_facts(world, question)) for question in test) / len(test)


def _facts(world: World, question: Question) -> set[tuple[str, str]]:
    return {(hop.subject.id, hop.relation) for hop in world.lookups(question.id)}


def _asked(question: Question) -> str:
    """The last relation, which ends the id; apart for comparisons, whose answers are yes and no."""
    relation = question.id.rsplit("-", 1)[-1]
    return f"same {relation}" if question.gold is not None and question.gold.type == "comparison" else relation


def _mode(answers: Counter[str]) -> str:
    return min(answers, key=lambda answer: (-answers[answer], answer))
