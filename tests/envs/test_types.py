from __future__ import annotations

from envs.types import Episode, Step, Turn
from tests.tiny import question


def turn(opening: tuple[int, ...], action: tuple[int, ...], observation: tuple[int, ...], **more) -> Turn:
    logps = tuple(-token / 10 for token in action)
    return Turn("policy", opening, action, logps, "stop", "u", observation_ids=observation, **more)


def test_a_growing_context_is_one_sequence_with_its_mask_and_steps() -> None:
    episode = Episode(question(), (1, 2), [turn((3,), (4, 5), (6,)), turn((7,), (8,), ())])
    episode.steps = (Step("a", True, ((0, 0, 2),)), Step("b", True, ((1, 0, 1),)))
    [row] = episode.sequences()
    assert row.ids == (1, 2, 3, 4, 5, 6, 7, 8) == episode.context()
    assert row.loss_mask == (0, 0, 0, 1, 1, 0, 0, 1)
    assert row.step_index == (-1, -1, -1, 0, 0, -1, -1, 1)
    assert row.logps == (0, 0, 0, -0.4, -0.5, 0, 0, -0.8)
    assert row.turns == (0, 1)


def test_a_rerendered_context_is_one_sequence_a_turn() -> None:
    episode = Episode(
        question(), (1,), [turn((), (4,), (), context_ids=(2, 2)), turn((3,), (5,), (), context_ids=(9,))]
    )
    first, second = episode.sequences()
    assert first.ids == (2, 2, 4)
    assert second.ids == (9, 3, 5)
    assert second.loss_mask == (0, 0, 1)


def test_a_step_may_span_two_turns_and_a_turn_hold_two_steps() -> None:
    episode = Episode(question(), (1,), [turn((), (4, 5), (6,)), turn((), (7, 8), ())])
    episode.steps = (Step("a", True, ((0, 0, 2), (1, 0, 1))), Step("b", True, ((1, 1, 2),)))
    assert episode.sequences()[0].step_index == (-1, 0, 0, -1, 0, 1)


def test_an_untrainable_turn_is_context_only() -> None:
    episode = Episode(question(), (1,), [turn((), (4,), (), trainable=False), turn((), (5,), ())])
    assert episode.sequences()[0].loss_mask == (0, 0, 1)
    assert episode.sequences()[0].logps == (0, 0, -0.5)


def test_an_episode_without_sampled_tokens_has_no_training_view() -> None:
    assert Episode(question(), (1, 2)).sequences() == []
