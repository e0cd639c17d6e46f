"""Questions in turn, and a buffer that is served whole in every iteration, or refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigError, DataError
from datamodules.question_data import IterationBuffer, QuestionData
from envs.packing import PackedSequence
from envs.types import Question
from tests.toy_rl import Asked


def data(count: int = 8, *, world_size: int = 1, rank: int = 0, **settings: Any) -> QuestionData:
    made = QuestionData(Asked(count), **({"group_size": 4} | settings))
    made.trainer = SimpleNamespace(world_size=world_size, global_rank=rank)  # pyright: ignore
    made.setup("fit")
    return made


def ids(questions: list[Question]) -> list[str]:
    return [question.id for question in questions]


@given(count=st.integers(1, 12), each=st.integers(1, 12), seed=st.integers(0, 3))
def test_every_question_comes_once_before_any_comes_twice(count: int, each: int, seed: int) -> None:
    if each > count:
        return
    made = data(count, questions_per_iteration=each, seed=seed)
    seen: Counter[str] = Counter({f"q{i}": 0 for i in range(count)})
    for iteration in range(3 * count):
        chosen = ids(made.chosen(iteration))
        assert len(set(chosen)) == each, "no two the same in an iteration"
        for one in chosen:
            seen[one] += 1
        if each * (iteration + 1) % count == 0:
            assert len(set(seen.values())) == 1


def test_the_order_is_a_function_of_seed_and_round_alone() -> None:
    first = data(questions_per_iteration=3)
    order = [ids(first.chosen(i)) for i in range(9)]
    late = data(questions_per_iteration=3)
    assert ids(late.chosen(8)) == order[8], "asked first, as a resumed run does"
    assert [ids(late.chosen(i)) for i in range(9)] == order
    other = data(questions_per_iteration=3, seed=1)
    assert [ids(other.chosen(i)) for i in range(9)] != order
    whole = data(questions_per_iteration=8)
    assert ids(whole.chosen(0)) != ids(whole.chosen(1)), "each time round in another order"


def test_ranks_share_the_questions_out() -> None:
    shares = [ids(data(questions_per_iteration=4, world_size=2, rank=rank).share(1)) for rank in (0, 1)]
    assert sorted(shares[0] + shares[1]) == sorted(ids(data(questions_per_iteration=4).chosen(1)))
    assert [len(share) for share in shares] == [2, 2]


def test_what_replaces_a_question_depends_on_its_place_and_the_round_alone() -> None:
    made = data(20, questions_per_iteration=4)
    rounds = [ids(made.spares(3, round)) for round in range(4)]
    everything = [*ids(made.chosen(3)), *(one for spares in rounds for one in spares)]
    assert len(set(everything)) == len(everything) == 20, "nobody is asked the same question twice"
    assert [ids(data(20, questions_per_iteration=4).spares(3, round)) for round in range(4)] == rounds
    assert [ids(made.spares(2, round)) for round in range(4)] != rounds
    ranks = [data(20, questions_per_iteration=4, world_size=2, rank=rank) for rank in (0, 1)]
    for round in range(4):
        first, second = (ids(rank.spares(3, round)) for rank in ranks)
        assert [first[0], second[0], first[1], second[1]] == rounds[round]
    with pytest.raises(ConfigError, match="20 questions are too few for 5 rounds"):
        made.spares(3, 4)


def row(length: int) -> PackedSequence:
    return PackedSequence(
        torch.full((length,), length, dtype=torch.int32),
        torch.tensor([False] + [True] * (length - 1)),
        torch.zeros(length, dtype=torch.int16),
        torch.zeros(length),
        {"advantages": torch.full((length,), float(length))},
    )


def test_every_episode_is_served_once_an_iteration_in_its_update() -> None:
    buffer = IterationBuffer(updates=2, batches=2, size=2)
    for iteration in range(2):
        buffer.fill([[row(10 * iteration + i)] for i in range(2, 10)])
        batches = list(buffer)
        assert len(batches) == len(buffer) == 4
        served = [set(batch.ids_BT.amax(dim=1).tolist()) for batch in batches]
        first, second = served[0] | served[1], served[2] | served[3]
        assert first == {10 * iteration + i for i in range(2, 6)}
        assert second == {10 * iteration + i for i in range(6, 10)}
        assert batches[0].ids_BT.shape[1] > batches[1].ids_BT.shape[1], "like lengths together"


def test_a_budget_of_tokens_cuts_every_update_by_length() -> None:
    """Rows of 6, 3, 2 and 7, 5, 4 tokens in two updates, twelve padded tokens a pass."""
    buffer = IterationBuffer(updates=2, batches=3, size=1, tokens=12)
    buffer.fill([[row(3)], [row(6)], [row(2)], [row(4)], [row(7)], [row(5)]])
    found = [sorted(batch.ids_BT.amax(dim=1).tolist()) for batch in buffer]
    assert found == [[3, 6], [2], [0], [7], [4, 5], [0]], "what is left over trains nothing"
    assert len(found) == len(buffer)


def test_the_sequences_of_an_episode_stay_together_within_a_budget() -> None:
    buffer = IterationBuffer(updates=1, batches=3, size=1, tokens=12)
    buffer.fill([[row(2)], [row(4), row(3), row(4)], []])
    found = [sorted(batch.ids_BT.amax(dim=1).tolist()) for batch in buffer]
    assert found == [[3, 4, 4], [2], [0]]


def test_a_budget_counts_a_pass_an_episode_of_each_rank() -> None:
    made = data(questions_per_iteration=4, updates=2, micro_tokens=512, world_size=2)
    assert made.trainer is not None
    assert made.trainer.accumulate_grad_batches == 4
    loader = made.train_dataloader()
    assert (len(loader), loader.batches, loader.size, loader.tokens) == (8, 4, 1, 512)


def test_a_micro_batch_is_an_episode_on_each_rank_at_least() -> None:
    made = data(questions_per_iteration=4, micro_batch=1, world_size=4)
    assert made.trainer is not None
    assert made.trainer.accumulate_grad_batches == 4
    assert made.train_dataloader().size == 1


def test_it_rewinds_though_the_trainer_stops_asking_at_its_length() -> None:
    buffer = IterationBuffer(updates=1, batches=2, size=1)
    buffer.fill([[row(3)], [row(2)]])
    for _ in range(2):
        batches = iter(buffer)
        assert [int(next(batches).ids_BT.max()) for _ in range(2)] == [3, 2]


def test_an_episode_may_have_many_sequences_or_none() -> None:
    buffer = IterationBuffer(updates=1, batches=3, size=1)
    buffer.fill([[row(3), row(2)], [], []])
    first, second, third = buffer
    assert [int(batch.ids_BT.max()) for batch in (first, second)] == [3, 2]
    assert (int(third.loss_mask_BT.sum()), len(third)) == (0, 1), "every rank takes every step"
    assert first.channels.keys() <= third.channels.keys(), "and finds there what its loss reads"


def test_sequences_of_like_length_share_a_pass_whatever_episode_they_are_of() -> None:
    buffer = IterationBuffer(updates=1, batches=2, size=1)
    buffer.fill([[row(9), row(2), row(8)], [row(3), row(7)]])
    found = [sorted(batch.ids_BT.amax(dim=1).tolist()) for batch in buffer]
    assert found == [[7, 8, 9], [2, 3]]


def test_every_pass_has_its_share_of_each_model_s_rows() -> None:
    buffer = IterationBuffer(updates=1, batches=2, size=1)
    long, short = [replace(row(n), owner="long") for n in (9, 7)], [replace(row(n), owner="short") for n in (3, 2)]
    buffer.fill([[*long, short[0]], [short[1]]])
    found = [{name: batch.of(name).ids_BT.amax(dim=1).tolist() for name in ("long", "short")} for batch in buffer]
    assert found == [{"long": [9], "short": [3]}, {"long": [7], "short": [2]}]


def test_a_buffer_that_nobody_filled_is_an_error_not_an_empty_epoch() -> None:
    with pytest.raises(RuntimeError, match=r"needs a callbacks\.rollout:RolloutCallback"):
        next(iter(IterationBuffer(1, 1, 1)))
    with pytest.raises(ValueError, match="1 episodes for a buffer of 2"):
        IterationBuffer(1, 2, 1).fill([[row(2)]])


@pytest.mark.parametrize(
    ("settings", "trainer", "message"),
    [
        ({"questions_per_iteration": 9}, {}, "8 questions are too few for 9"),
        ({"questions_per_iteration": 0}, {}, "each must be at least 1"),
        ({"questions_per_iteration": 4, "updates": 3}, {}, "divide the questions evenly"),
        ({"group_size": 0}, {}, "group_size 0"),
        ({"micro_batch": 4, "micro_tokens": 512}, {}, "micro_batch 4, micro_tokens 512: give one of them"),
        ({"micro_tokens": 0}, {}, "micro_tokens at least 1"),
        ({"questions_per_iteration": 3}, {"world_size": 2}, "3 questions an update do not divide among 2 ranks"),
        ({"questions_per_iteration": 2, "updates": 2}, {"world_size": 2}, "do not divide among 2 ranks"),
        ({"questions_per_iteration": 4, "micro_batch": 3}, {}, "batch_size 16, micro_batch 3: the batch must"),
        ({"questions_per_iteration": 6, "micro_batch": 4}, {"world_size": 3}, "divide among 3 ranks"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(settings: dict[str, Any], trainer: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        data(**trainer, **settings)


def test_sizes_that_fit_are_batches_and_set_the_accumulation() -> None:
    made = data(questions_per_iteration=4, updates=2, micro_batch=4, world_size=2)
    assert made.trainer is not None
    assert made.trainer.accumulate_grad_batches == 2
    loader = made.train_dataloader()
    assert (loader.updates, loader.batches, loader.size, len(loader)) == (2, 2, 2, 4)


def test_two_questions_of_one_id_are_refused() -> None:
    class Twice(Asked):
        def __iter__(self):
            return iter([*super().__iter__(), *super().__iter__()])

    made = QuestionData(Twice())
    made.trainer = SimpleNamespace(world_size=1)  # pyright: ignore
    with pytest.raises(DataError, match="have the same id"):
        made.setup("fit")
