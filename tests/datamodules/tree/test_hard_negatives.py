from __future__ import annotations

from dataclasses import replace

import pytest

from common.errors import ConfigError
from datamodules.tree.hard_negatives import MadeUp, early_answers, wrong_hops
from envs.protocols.prorag import ProRAG, step_kind
from envs.types import Action, Episode
from tests.labelled import path

STEPS = (
    "query Who?",
    "subanswer Ada",
    "query Which?",
    "subanswer Eve",
    "query Where?",
    "subanswer Rome",
    "answer Rome",
)


def ends(episodes: list[Episode]) -> list[tuple[int, str]]:
    """How many turns each has, and what the last one says."""
    return [(len(one.turns), one.turns[-1].text.replace("\n", " ")) for one in episodes]


def test_a_true_claim_is_made_of_the_wrong_hop_in_the_policy_s_own_words(protocol: ProRAG) -> None:
    made = list(wrong_hops(path(protocol, *STEPS), protocol))
    said = "I say {0}. </step> <subanswer> {0} </subanswer>"
    assert ends(made) == [
        (2, said.format("Eve")), (2, said.format("Rome")), (4, said.format("Ada")), (4, said.format("Rome")),
        (6, said.format("Ada")), (6, said.format("Eve")),
    ]  # fmt: skip
    assert all(one.turns[:-1] == path(protocol, *STEPS).turns[: len(one.turns) - 1] for one in made)
    for one in made:
        last = one.turns[-1]
        assert step_kind(last.text) == "subanswer"
        assert one.steps[-1].claim == last.action.text
        assert protocol.codec.decode(last.action_ids) == last.text
        assert one.status is None


def test_the_answer_comes_before_a_search_that_is_still_to_be_made(protocol: ProRAG) -> None:
    made = list(early_answers(path(protocol, *STEPS), protocol))
    said = "I say {0}. </step> <answer> {0} </answer>"
    assert ends(made) == [(3, said.format("Ada")), (5, said.format("Eve"))]
    assert [(one.answer, one.status) for one in made] == [("Ada", "answered"), ("Eve", "answered")]
    assert not list(early_answers(path(protocol, *STEPS[:-1]), protocol)), "no answer, no words to give one in"


def test_only_whole_words_are_the_claim(protocol: ProRAG) -> None:
    """As the world's teacher writes it: the claim `no` stands in `not` and in `know` too."""
    steps = path(protocol, *STEPS[:-1], "answer no")
    text = "I know both, they are not the same, so no. </step>\n<answer>\nno </answer>"
    last = replace(steps.turns[-1], text=text, action_ids=protocol.codec.control(text), action=Action("answer", "no"))
    told = replace(steps, turns=[*steps.turns[:-1], last], steps=())
    told.steps = protocol.steps(told)
    said = "I know both, they are not the same, so {0}. </step> <answer> {0} </answer>"
    assert ends(list(early_answers(told, protocol))) == [(3, said.format("Ada")), (5, said.format("Eve"))]


def test_a_path_with_one_claim_has_none(protocol: ProRAG) -> None:
    short = path(protocol, "query Who?", "subanswer Ada", "answer Ada")
    assert not list(wrong_hops(short, protocol))
    assert not list(early_answers(short, protocol))
    same = path(protocol, "query Who?", "subanswer Ada", "query Which?", "subanswer Ada", "answer Ada")
    assert not list(wrong_hops(same, protocol)), "the same claim of another search is the claim itself"


def test_each_question_gets_as_many_as_it_should_by_hash(protocol: ProRAG) -> None:
    paths = [path(protocol, *STEPS), path(protocol, *STEPS[:6])]
    two, four = (MadeUp(number, 0)(paths, protocol, seed=1) for number in (2, 4))
    assert [len(two), len(four), len(MadeUp(9, 9)(paths, protocol, seed=1))] == [2, 4, 6 + 2]
    assert ends(four)[:2] == ends(two)
    assert {one.turns[-1].uid for one in two} != {one.turns[-1].uid for one in MadeUp(2, 0)(paths, protocol, seed=2)}
    assert all(map(MadeUp.made, (one.turns[-1] for one in four)))
    assert not MadeUp.made(paths[0].turns[-1])


def test_none_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one above 0"):
        MadeUp(0, 0)
