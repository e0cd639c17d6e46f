from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigError
from common.seeds import stable_hash
from datamodules.sources.world_questions import WorldQuestions
from envs.retrievers.bm25 import BM25
from envs.types import GoldStep, Question
from envs.world.facts import World
from envs.world.guesses import facts_seen, guess_baselines
from envs.world.questions import choose, question, shares, split_of

SPLITS = {"test": 300.0, "train": 600.0}


def chosen(world: World, questions: int = 300, comparison: int = 0, **settings) -> dict[str, list[str]]:
    settings = {"seed": 0, "hops": (1, 2, 3), "splits": SPLITS} | settings
    return choose(world, questions=questions, comparison=comparison, **settings)


def everything(made: Path) -> list[Question]:
    return [one for split in ("sft", "search", "refine", "rl", "dev", "test") for one in WorldQuestions(made, split)]


def test_a_chain_becomes_natural_english(village: Path) -> None:
    world = World.load(village)
    one = question(world, "w-3hop-000020-director-birthplace-mayor", seed=0, paraphrases=1)
    assert one.text == "Who is the mayor of the birthplace of the director of The Silent Orchard?"
    assert one.answers == ("Oren Vask",)
    assert one.gold is not None
    assert (one.gold.hops, one.gold.type) == (3, "bridge")
    assert one.gold.steps == (
        GoldStep("Who is the director of The Silent Orchard?", "Ilva Tarrow (architect)", ("w-000020",)),
        GoldStep("What is the birthplace of Ilva Tarrow (architect)?", "Keldan", ("w-000001",)),
        GoldStep("Who is the mayor of Keldan?", "Oren Vask", ("w-000010",)),
    )
    assert one.gold.documents == ("w-000020", "w-000001", "w-000010")
    assert one.gold.titles == ("The Silent Orchard", "Ilva Tarrow (architect)", "Keldan")
    wordings = {question(world, one.id, seed=seed, paraphrases=3).text for seed in range(200)}
    assert "Who is the mayor of the city where the director of The Silent Orchard was born?" in wordings
    assert len(wordings) == 27


def test_no_clause_is_put_into_a_clause(village: Path) -> None:
    identity = "w-3hop-000020-director-birthplace-country"
    wordings = {question(World.load(village), identity, seed=seed, paraphrases=3).text for seed in range(200)}
    assert "Which country does the birthplace of the director of The Silent Orchard belong to?" in wordings
    assert "In which country is the city where the director of The Silent Orchard was born?" in wordings
    assert len(wordings) == 3 * (3 + 2 + 2)
    assert not any("was born belong" in text for text in wordings)


def test_a_namesake_is_asked_for_by_title_and_either_name_is_an_answer(village: Path) -> None:
    one = question(World.load(village), "w-1hop-000020-composer", seed=0, paraphrases=1)
    assert one.answers == ("Ilva Tarrow (painter)", "Ilva Tarrow")
    asked = question(World.load(village), "w-1hop-000002-birthplace", seed=0, paraphrases=1)
    assert asked.text == "What is the birthplace of Ilva Tarrow (painter)?"


def test_a_comparison_asks_for_yes_or_no(village: Path) -> None:
    world = World.load(village)
    same = question(world, "w-compare-000010-000011-country", seed=0, paraphrases=1)
    assert (same.text, same.answers) == ("Are Keldan and Brimby in the same country?", ("yes",))
    differ = question(world, "w-compare-000001-000002-birthplace", seed=0, paraphrases=1)
    assert differ.answers == ("no",)
    assert differ.gold is not None
    assert [step.answer for step in differ.gold.steps] == ["Keldan", "Brimby"]


def test_no_two_questions_share_an_id_or_a_text(made: Path) -> None:
    questions = everything(made)
    assert len({one.id for one in questions}) == len({one.text for one in questions}) == len(questions) == 900


def test_a_chain_never_comes_back_so_no_answer_stands_in_its_question(made: Path) -> None:
    for one in everything(made):
        assert one.gold is not None
        assert len(set(one.gold.documents)) == len(one.gold.documents)
        if one.gold.type != "comparison":
            assert not any(answer in one.text for answer in one.answers)


def test_a_split_is_a_function_of_the_hash_of_seed_and_id_alone(made: Path) -> None:
    weights = {"dev": 300.0, "refine": 380.0, "rl": 700.0, "search": 320.0, "sft": 400.0, "test": 300.0}
    for split in weights:
        for one in WorldQuestions(made, split):
            assert split_of(one.id, weights, seed=3) == split
            place, below = stable_hash(3, one.id) / 2**63 * 2400, 0.0
            for name in sorted(weights):
                if name == split:
                    assert below <= place < below + weights[name]
                below += weights[name]


def test_splits_have_their_shares_and_hops_and_last_relations_are_even(made_world: World) -> None:
    splits = chosen(made_world, questions=300, hops=(2, 3, 3))
    assert {split: len(ids) for split, ids in splits.items()} == {"test": 100, "train": 200}
    assert Counter(identity[:6] for identity in splits["train"]) == {"w-2hop": 67, "w-3hop": 133}
    last = Counter(identity.rsplit("-", 1)[1] for identity in splits["train"])
    assert max(last.values()) - min(last.values()) <= 2
    assert len(last) == 9  # no relation leads to a work


def test_more_questions_keep_those_that_were_there(made_world: World) -> None:
    few, many = chosen(made_world, questions=150), chosen(made_world, questions=300)
    kept = sum(identity in many["train"] for identity in few["train"])
    assert kept == len(few["train"])


def test_comparisons_are_as_often_yes_as_no(made_world: World) -> None:
    ids = chosen(made_world, comparison=120)["train"]
    compared = [question(made_world, identity, seed=0, paraphrases=3) for identity in ids if "compare" in identity]
    assert len(compared) == 80
    assert sum(one.answers == ("yes",) for one in compared) == 40


def test_a_world_that_is_too_small_for_its_questions_says_so(village: Path) -> None:
    with pytest.raises(ConfigError, match=r"the world has \d+ questions of 100 for the split 'test'"):
        chosen(World.load(village))
    with pytest.raises(ConfigError, match=r"the world has no questions of 8 hops; ask for fewer hops or more people$"):
        chosen(World.load(village), questions=6, hops=(1, 8))


def test_chains_of_eight_hops_come_to_no_name_twice(made_world: World) -> None:
    ids = chosen(made_world, questions=60, hops=(8,))["test"]
    assert len(ids) == 20
    for identity in ids:
        hops = made_world.lookups(identity)
        assert len(hops) == 8
        assert len({hops[0].subject.name, *(hop.value.name for hop in hops)}) == 9


@given(
    total=st.integers(0, 500),
    weights=st.dictionaries(st.text(min_size=1), st.floats(0.01, 100), min_size=1, max_size=8),
    data=st.data(),
)
def test_shares_add_up_and_never_ask_for_more_than_there_is(total: int, weights: dict, data: st.DataObject) -> None:
    assert sum(shares(total, weights).values()) == total
    supply = {name: data.draw(st.integers(0, 200)) for name in weights}
    given_out = shares(total, weights, supply)
    assert sum(given_out.values()) == min(total, sum(supply.values()))
    assert all(0 <= given_out[name] <= supply[name] for name in weights)


def test_shares_follow_the_weights_where_there_is_enough() -> None:
    assert shares(10, {"a": 1, "b": 4}) == {"a": 2, "b": 8}
    assert shares(10, {"a": 1, "b": 4}, {"a": 9, "b": 3}) == {"a": 7, "b": 3}


def test_a_guesser_gives_the_most_frequent_answer_of_the_last_relation() -> None:
    def asked(identity: str, *answers: str) -> Question:
        return Question(identity, "?", answers)

    train = [
        asked("w-1hop-1-mayor", "Ada"),
        asked("w-1hop-2-mayor", "Ada"),
        asked("w-2hop-3-country-leader", "Bo"),
        asked("w-1hop-4-leader", "Cy"),
    ]
    test = [
        asked("w-2hop-5-birthplace-mayor", "Ada (poet)", "Ada"),
        asked("w-1hop-6-leader", "Bo"),  # Bo and Cy are as frequent: the first in the alphabet
        asked("w-1hop-7-leader", "Ada"),
        asked("w-1hop-8-spouse", "Ada"),  # never trained on
    ]
    assert guess_baselines(train, test) == {"guess_em": 0.5, "guess_single_em": 0.75}


def test_facts_are_seen_if_every_hop_of_a_test_question_stands_in_some_training_question(village: Path) -> None:
    def asked(*identities: str) -> list[Question]:
        return [Question(identity, "?", ("?",)) for identity in identities]

    train = asked("w-2hop-000020-director-birthplace", "w-compare-000010-000011-country")
    seen = asked("w-1hop-000001-birthplace", "w-3hop-000020-director-birthplace-country")
    unseen = asked("w-1hop-000002-birthplace", "w-2hop-000020-director-employer")
    world = World.load(village)
    assert facts_seen(world, train, seen) == 1.0
    assert facts_seen(world, train, unseen) == 0.0
    assert facts_seen(world, train, [*seen, *unseen[:1], *unseen]) == 0.4


def test_a_right_sub_question_finds_its_passage_with_a_title_aware_retriever(made: Path) -> None:
    steps = [step for one in everything(made) for step in one.gold.steps]  # type: ignore[union-attr] (all have gold)
    found = BM25(made / "data" / "corpus.jsonl").search([step.question for step in steps], 3)
    ranked = [([hit.document.id for hit in hits], step.documents[0]) for hits, step in zip(found, steps, strict=True)]
    assert sum(ids[:1] == [right] for ids, right in ranked) / len(ranked) >= 0.97
    assert sum(right in ids for ids, right in ranked) / len(ranked) >= 0.99
