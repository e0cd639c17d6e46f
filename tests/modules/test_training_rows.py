"""What each episode trains: advantages of steps, put on the tokens that were sampled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from envs.packing import PackedSequence, collate
from envs.types import Episode, Step, Turn
from modules.episode_tensors import credit_inputs, step_lengths
from modules.functional.credit import dual_granularity_credit
from modules.rewards.terms import Scores
from modules.training import TrainingError
from modules.training_rows import in_places, step_means, token_advantages, training_rows
from tests.tiny import question


def turn(uid: str, ids: tuple[int, ...], **more: Any) -> Turn:
    return Turn("policy", (9,), ids, (-1.0,) * len(ids), "stop", uid, **more)


def episode(*turns: Turn) -> Episode:
    steps = tuple(Step("query", True, ((i, 0, len(one.action_ids)),)) for i, one in enumerate(turns))
    return Episode(question(), (1, 2), list(turns), status="answered", steps=steps)


def rows(advantages: Tensor, *episodes: Episode) -> list[list[PackedSequence]]:
    lengths = step_lengths(episodes, max(len(one.steps) for one in episodes))
    return training_rows(episodes, [True] * len(episodes), {"advantages": token_advantages(advantages, lengths)})


def given(one: PackedSequence, channel: str = "advantages") -> list[float]:
    return one.channels[channel].tolist()


def test_advantages_go_to_the_tokens_of_their_steps() -> None:
    both = [episode(turn("a", (3, 4)), turn("b", (5,))), episode(turn("c", (6,)), turn("d", (7, 8)))]
    per_step = rows(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), *both)
    assert [given(row) for (row,) in per_step] == [[0, 0, 0, 1, 1, 0, 2], [0, 0, 0, 3, 0, 4, 4]]
    per_token = rows(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), *both)
    assert [given(row) for (row,) in per_token] == [[0, 0, 0, 1, 2, 0, 3], [0, 0, 0, 4, 0, 5, 6]]


def test_an_episode_of_several_sequences_keeps_its_advantages_apart() -> None:
    again = turn("b", (5,), context_ids=(1, 8, 8))
    ((first, second),) = rows(torch.tensor([[1.0, 2.0]]), episode(turn("a", (3, 4)), again))
    assert (first.ids_T.tolist(), given(first)) == ([1, 2, 9, 3, 4], [0, 0, 0, 1, 1])
    assert (second.ids_T.tolist(), given(second)) == ([1, 8, 8, 9, 5], [0, 0, 0, 0, 2])


def test_a_step_over_two_turns_has_its_tokens_in_order() -> None:
    one = episode(turn("a", (3, 4)), turn("b", (5, 6), context_ids=(1,)))
    one.steps = (Step("x", True, ((0, 0, 1),)), Step("y", True, ((0, 1, 2), (1, 0, 2))))
    ((first, second),) = rows(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), one)
    assert (given(first), given(second)) == ([0, 0, 0, 1, 2], [0, 0, 3, 4])
    lengths = step_lengths([one], 2)
    assert lengths.tolist() == [[1, 3]]
    assert step_means(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), lengths).tolist() == [[1, 3]]


def test_what_is_out_of_format_is_told_to_the_credit() -> None:
    one, two = episode(turn("a", (3,)), turn("b", (5,))), episode(turn("c", (6,)))
    one.steps = (one.steps[0], Step("invalid", False, one.steps[1].spans))
    scores = Scores(torch.zeros(2, 3), torch.ones(2, 3).bool(), torch.ones(2), {}, {})
    valid_BS = credit_inputs([one, two], scores, 2).step_valid_BS
    assert valid_BS.tolist() == [[True, False, True], [True, True, True]]


def test_a_turn_that_episodes_share_is_trained_once_with_its_mean_advantage() -> None:
    shared = turn("root", (3, 4))
    tree = [episode(shared, turn("b", (5,))), episode(shared, turn("c", (6,))), episode(shared, turn("d", (7,)))]
    per_step = torch.tensor([[1.0, 10.0], [3.0, 20.0], [8.0, 30.0]])
    (first,), (second,), (third,) = rows(per_step, *tree)
    assert first.loss_mask_T.int().tolist() == [0, 0, 0, 1, 1, 0, 1]
    assert second.loss_mask_T.int().tolist() == third.loss_mask_T.int().tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert [given(row) for row in (first, second, third)] == [
        [0, 0, 0, 4, 4, 0, 10],
        [0, 0, 0, 0, 0, 0, 20],
        [0, 0, 0, 0, 0, 0, 30],
    ]
    assert shared.trainable, "the episode itself stays as it is"


def test_the_mean_of_a_shared_turn_is_taken_token_by_token() -> None:
    shared = turn("root", (3, 4))
    tree = [episode(shared, turn("b", (5,))), episode(shared, turn("c", (6,)))]
    (first,), (second,) = rows(torch.tensor([[1.0, 2.0, 10.0], [5.0, 0.0, 20.0]]), *tree)
    assert given(first) == [0, 0, 0, 3, 1, 0, 10]
    assert given(second) == [0, 0, 0, 0, 0, 0, 20]


def test_an_episode_that_is_not_kept_gives_a_shared_turn_no_advantage() -> None:
    shared = turn("root", (3, 4))
    tree = [episode(shared, turn("b", (5,))), episode(shared, turn("c", (6,))), episode(shared, turn("d", (7,)))]
    advantages = token_advantages(torch.tensor([[100.0, 0.0], [3.0, 20.0], [5.0, 30.0]]), step_lengths(tree, 2))
    none, (second,), (third,) = training_rows(tree, [False, True, True], {"advantages": advantages})
    assert none == []
    assert given(second) == [0, 0, 0, 4, 4, 0, 20]
    assert given(third) == [0, 0, 0, 0, 0, 0, 30]


def test_a_step_over_a_shared_turn_keeps_the_advantages_of_its_own_tokens() -> None:
    """One step over both turns, with an advantage a token: the second half of it is not shared."""
    shared = turn("root", (3, 4))
    tree = [episode(shared, turn("b", (5,))), episode(shared, turn("c", (6,)))]
    for one in tree:
        one.steps = (Step("x", True, ((0, 0, 2), (1, 0, 1))),)
    _, (second,) = rows(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), *tree)
    assert given(second) == [0, 0, 0, 0, 0, 0, 6]


def test_each_channel_of_a_shared_turn_is_its_mean() -> None:
    """The first turn is in both episodes; returns and values differ by what came after it."""
    shared = turn("root", (3, 4))
    tree = [episode(shared, turn("b", (5,))), episode(shared, turn("c", (6,)))]
    channels = {
        "advantages": torch.tensor([[1.0, 2.0, 10.0], [5.0, 0.0, 20.0]]),
        "values": torch.tensor([[0.2, 0.4, 0.6], [0.2, 0.4, 0.8]]),
        "returns": torch.tensor([[1.2, 2.4, 10.6], [5.2, 0.4, 20.8]]),
    }
    (first,), (second,) = training_rows(tree, [True, True], channels)
    assert given(first, "advantages") == [0, 0, 0, 3, 1, 0, 10]
    assert given(first, "values") == pytest.approx([0, 0, 0, 0.2, 0.4, 0, 0.6])
    assert given(first, "returns") == pytest.approx([0, 0, 0, 3.2, 1.4, 0, 10.6])
    assert given(second, "values") == pytest.approx([0, 0, 0, 0, 0, 0, 0.8])
    batch = collate([first, second])
    assert batch.channels.keys() == {"advantages", "values", "returns"}
    assert batch.channels["returns"].tolist() == [given(first, "returns"), given(second, "returns")]


def test_a_channel_that_no_batch_has_is_an_error() -> None:
    with pytest.raises(ValueError, match="no channel 'weights' in a batch; there are advantages"):
        training_rows([episode(turn("a", (3,)))], [True], {"weights": torch.zeros(1, 1)})


def test_frozen_turns_are_in_no_channel_and_not_among_the_trained_tokens() -> None:
    one = episode(turn("a", (3, 4)), turn("b", (5,), trainable=False), turn("c", (6,)))
    scored = Scores(torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.bool), torch.ones(1), {})
    inputs = credit_inputs([one], scored, group_size=1)
    assert inputs.trained_BT.tolist() == [[True, True, False, True]]
    ((row,),) = training_rows([one], [True], {"values": torch.tensor([[0.1, 0.2, 0.3, 0.4]])})
    assert given(row, "values") == pytest.approx([0, 0, 0, 0.1, 0.2, 0, 0, 0, 0.4])
    assert row.loss_mask_T.int().tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 1]


def test_a_credit_function_reads_rewards_lengths_kinds_states_and_log_probs() -> None:
    """Token statistics give the numbers of the released code: two steps of 2 and 4 tokens, one of 3."""
    both = [episode(turn("a", (3, 4)), turn("b", (5, 5, 5, 5))), episode(turn("c", (6, 6, 6)))]
    scored = Scores(
        torch.tensor([[0.9, 0.5], [0.1, 0.0]]),
        torch.tensor([[True, True], [True, False]]),
        torch.tensor([1.2, 0.2]),
        {},
    )
    inputs = credit_inputs(both, scored, group_size=2)
    assert inputs.group_size == 2
    assert inputs.step_lengths_BS.tolist() == [[2, 4], [3, 0]]
    assert inputs.step_kinds_BS == (("query", "query"), ("query", ""))
    (first, second), (other, beyond) = inputs.step_states_BS
    assert first == other, "all episodes begin in the same state"
    assert second not in (first, beyond)
    assert beyond == ""
    assert inputs.old_logps_BT.tolist() == [[-1.0] * 6, [-1.0] * 3 + [0.0] * 3]
    assert inputs.values_BT is None
    assert inputs.reference_logps_BT is None
    advantages = dual_granularity_credit(inputs, beta=0.3, statistics="token")
    assert advantages[0].tolist() == pytest.approx([1.159274, 0.752233], abs=1e-6)
    assert advantages[1].tolist() == pytest.approx([-1.068820, 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (torch.zeros(2), r"advantages \(2,\), not one a step \(2, 2\) or one a token \(2, 3\)"),
        (torch.zeros(2, 5), r"advantages \(2, 5\), not one a step"),
        (torch.tensor([[float("nan"), 0.0], [1.0, float("inf")]]), "2 of 4 advantages are not finite"),
    ],
)
def test_advantages_of_a_wrong_shape_or_not_finite_are_an_error(wrong: Tensor, complaint: str) -> None:
    both = [episode(turn("a", (3, 4)), turn("b", (5,))), episode(turn("c", (6,)))]
    with pytest.raises(TrainingError, match=complaint):
        rows(wrong, *both)


def test_a_question_s_episodes_take_turns_in_its_places() -> None:
    """Three of one question in two places, one of another: a buffer of a fixed size holds any number."""
    episodes = [Episode(question(identity=identity), (1,)) for identity in ("q1", "q1", "q1", "q2")]
    rows = [[PackedSequence.untrained()] for _ in episodes]
    first, second, other, empty = in_places(episodes, rows, 2)
    assert [id(row) for row in first] == [id(rows[0][0]), id(rows[2][0])]
    assert [id(row) for row in second] == [id(rows[1][0])]
    assert [id(row) for row in other] == [id(rows[3][0])]
    assert empty == []
    assert [id(place[0]) for place in in_places(episodes[:3], rows[:3], 3)] == [id(own[0]) for own in rows[:3]]


def test_the_rows_of_one_model_are_a_batch_of_their_own() -> None:
    rows = [PackedSequence.untrained(), PackedSequence.untrained()]
    fives, zeros = torch.full((4,), 5, dtype=torch.int32), torch.zeros(4, dtype=torch.int16)
    long = PackedSequence(fives, torch.ones(4, dtype=torch.bool), zeros, torch.zeros(4))
    rows[0].owner, rows[1].owner, long.owner = "a", "a", "b"
    batch = collate([rows[0], long, rows[1]])
    assert batch.ids_BT.shape == (3, 4)
    assert batch.of("a").ids_BT.shape == (2, 2)
    assert batch.of("b").ids_BT.tolist() == [[5, 5, 5, 5]]
    assert bool(batch.of("b").loss_mask_BT.all())
    nothing = batch.of("c")
    assert (len(nothing), bool(nothing.loss_mask_BT.any())) == (1, False)
