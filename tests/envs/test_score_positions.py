from __future__ import annotations

from array import array

import torch
from hypothesis import given
from hypothesis import strategies as st

from envs.score_positions import (
    ScoredSequence,
    ScorePosition,
    collate_pairs,
    collate_scored,
    merge_prefixes,
    scored_sequences,
)
from envs.types import Action, Episode, Step, Turn
from tests.tiny import question


def turn(opening: tuple[int, ...], action: tuple[int, ...], observation: tuple[int, ...] = (), **more: object) -> Turn:
    settings: dict = {"finish": "stop", "uid": str(action), "action": Action("query", "x"), **more}
    return Turn("policy", opening, action, (-1.0,) * len(action), observation_ids=observation, **settings)


def step(*spans: tuple[int, int, int]) -> Step:
    return Step("query", True, spans, "x")


def test_a_step_is_scored_at_the_end_of_its_observation_whether_it_is_trained_or_not() -> None:
    turns = [turn((9,), (1, 2, 3), (7, 7)), turn((9,), (4, 5), trainable=False)]
    episode = Episode(question(), (8, 8), turns, steps=(step((0, 0, 3)), step((1, 0, 2))))
    [sequence] = scored_sequences(episode)
    assert list(sequence.ids) == [8, 8, 9, 1, 2, 3, 7, 7, 9, 4, 5]
    assert sequence.positions == (ScorePosition(0, ((3, 6),), 7, "query"), ScorePosition(1, ((9, 11),), 10, "query"))


def test_of_two_steps_in_one_turn_only_the_last_sees_the_observation() -> None:
    episode = Episode(question(), (8,), [turn((), (1, 2, 3, 4), (7,))], steps=(step((0, 0, 2)), step((0, 2, 4))))
    [sequence] = scored_sequences(episode)
    assert sequence.positions == (ScorePosition(0, ((1, 3),), 2, "query"), ScorePosition(1, ((3, 5),), 5, "query"))


def test_a_step_over_two_turns_is_scored_once_at_its_last() -> None:
    turns = [turn((9,), (1, 2), (7,)), turn((9,), (3,), (7,))]
    [sequence] = scored_sequences(Episode(question(), (8,), turns, steps=(step((0, 0, 2), (1, 0, 1)),)))
    assert sequence.positions == (ScorePosition(0, ((2, 4), (6, 7)), 7, "query"),)


def test_where_contexts_are_rendered_anew_every_step_is_scored_in_its_own_sequence() -> None:
    turns = [turn((9,), (1,), (7,), context_ids=(8,)), turn((9,), (2,), context_ids=(6, 6, 6))]
    first, second = scored_sequences(Episode(question(), (5,), turns, steps=(step((0, 0, 1)), step((1, 0, 1)))))
    assert (list(first.ids), first.positions) == ([8, 9, 1, 7], (ScorePosition(0, ((2, 3),), 3, "query"),))
    assert (list(second.ids), second.positions) == ([6, 6, 6, 9, 2], (ScorePosition(1, ((4, 5),), 4, "query"),))


def test_sequences_that_read_alike_after_different_steps_stay_apart() -> None:
    """Contexts rendered anew may hold no history: the same text at step 1 and at step 3, or a shorter step."""

    def one(*positions: ScorePosition) -> ScoredSequence:
        return ScoredSequence(array("i", (8, 9, 1, 2)), positions)

    first, later = one(ScorePosition(1, ((2, 4),), 3, "keep")), one(ScorePosition(3, ((2, 4),), 3, "keep"))
    cut = one(ScorePosition(1, ((2, 3),), 2, "keep"))
    merged, numbers = merge_prefixes([first, later, first, cut])
    batch = collate_scored(merged)
    assert (len(merged), numbers) == (3, [0, 1, 0, 2])
    assert batch.step_P[numbers].tolist() == [1, 3, 1, 1]
    assert [int((batch.position_index_BT == number).sum()) for number in numbers] == [2, 2, 2, 1]


def test_a_step_that_the_policy_did_not_write_is_not_scored() -> None:
    turns = [turn((), (), (7,), trainable=False), turn((9,), (1,))]
    [sequence] = scored_sequences(Episode(question(), (8,), turns, steps=(step((0, 0, 0)), step(), step((1, 0, 1)))))
    assert [position.step for position in sequence.positions] == [2]


def sequence(ids: list[int], *ends: int) -> ScoredSequence:
    return ScoredSequence(
        array("i", ids), tuple(ScorePosition(n, ((end - 1, end),), end - 1, "query") for n, end in enumerate(ends))
    )


def test_padding_comes_last_and_every_policy_token_has_its_score_position() -> None:
    batch = collate_scored([sequence([1, 2, 3], 1, 3), sequence([4], 1)])
    assert batch.ids_BT.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert batch.position_index_BT.tolist() == [[0, -1, 1], [2, -1, -1]]
    assert (batch.row_P.tolist(), batch.action_P.tolist(), batch.observed_P.tolist()) == (
        [0, 0, 1],
        [0, 2, 0],
        [0, 2, 0],
    )


ids = st.lists(st.integers(1, 2), min_size=1, max_size=5)


@given(st.lists(ids, min_size=1, max_size=8))
def test_merging_keeps_every_score_position_where_its_own_past_ends(rows: list[list[int]]) -> None:
    merged, numbers = merge_prefixes([sequence(row, len(row)) for row in rows])
    batch = collate_scored(merged)
    for row, number in zip(rows, numbers, strict=True):
        end = int(batch.observed_P[number]) + 1
        assert batch.ids_BT[int(batch.row_P[number]), :end].tolist() == row
    maximal = {tuple(row) for row in rows if not any(o[: len(row)] == row and len(o) > len(row) for o in rows)}
    assert sorted(tuple(m.ids) for m in merged) == sorted(maximal)


def test_pairs_of_one_node_score_a_shared_step_once() -> None:
    best, worse, worst = sequence([1, 2], 2), sequence([1, 3], 2), sequence([1, 4], 2)
    batch = collate_pairs([(7, best, worse), (5, best, worst)])
    assert len(batch.sequences.ids_BT) == 3
    assert batch.chosen_N[0] == batch.chosen_N[1]
    scored = batch.sequences.ids_BT[batch.sequences.row_P, batch.sequences.observed_P]
    assert (scored[batch.chosen_N].tolist(), scored[batch.rejected_N].tolist()) == ([2, 2], [3, 4])
    assert torch.equal(batch.number_N, torch.tensor([7, 5]))
