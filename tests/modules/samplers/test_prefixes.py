"""What the in-process sampler keeps of what was read, and that it is read once."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from envs.requests import Request
from envs.sampling import take_turns
from envs.types import Episode, Turn
from modules.samplers.in_process import InProcessSampler
from modules.samplers.prefixes import PrefixStore, Segment
from tests.modules.samplers.test_in_process_cache import reads
from tests.tiny import byte_tokenizer, question, tiny_policy

POLICY = tiny_policy(byte_tokenizer(), scale=3.0)


def keys(count: int) -> torch.Tensor:
    """Four bytes a token."""
    return torch.zeros(1, 1, count, 1)


def ids_of(chain: list[Segment]) -> list[tuple[int, ...]]:
    return [segment.ids for segment in chain[1:]]


@pytest.fixture
def store() -> PrefixStore:
    """The prompt 1 2 3 with two continuations, one of which goes on."""
    made = PrefixStore(40)
    made.hold("q", 1)
    [root] = made.find("q", (1,))
    prompt = made.add("q", root, (1, 2, 3), keys(3))
    four = made.add("q", prompt, (4,), keys(1))
    made.add("q", prompt, (5, 6), keys(2))
    made.add("q", four, (7, 8), keys(2))
    return made


def test_the_longest_chain_that_a_sequence_begins_with_is_found(store: PrefixStore) -> None:
    assert ids_of(store.find("q", (1, 2, 3, 4, 7, 8, 9))) == [(1, 2, 3), (4,), (7, 8)]
    assert ids_of(store.find("q", (1, 2, 3, 4, 7, 0))) == [(1, 2, 3), (4,)]
    assert ids_of(store.find("q", (1, 2, 9))) == []
    assert store.bytes == 32


def test_where_there_is_no_room_what_was_used_the_longest_time_ago_goes_first_and_leaves_before_parents(
    store: PrefixStore,
) -> None:
    store.find("q", (1, 2, 3, 5, 6))
    prompt = store.find("q", (1, 2, 3))[-1]
    store.add("q", prompt, (9, 9, 9), keys(3))  # 44 bytes
    assert ids_of(store.find("q", (1, 2, 3, 4, 7, 8))) == [(1, 2, 3), (4,)]
    assert ids_of(store.find("q", (1, 2, 3, 5, 6))) == [(1, 2, 3), (5, 6)]
    assert store.bytes == 36
    [_, _, gone] = store.find("q", (1, 2, 3, 4))
    store.add("q", prompt, (0,) * 20, keys(20))  # more than there is room for
    assert store.bytes == 12, "the prompt was used last"
    assert store.add("q", gone, (7, 8), keys(2)) is gone, "what is gone is not continued"
    assert store.bytes == 12


def test_a_question_is_forgotten_with_the_last_of_its_episodes(store: PrefixStore) -> None:
    store.hold("q", 2)
    store.hold("other", 3)
    store.add("other", store.find("other", (1,))[0], (1,), keys(1))
    store.release("q", 1)
    assert store.bytes == 36
    store.release("q", 2)
    store.release("q", 2)
    assert store.bytes == 4
    store.release("other", 3)
    assert (store.bytes, store.held) == (0, False)


def test_equal_continuations_are_kept_once(store: PrefixStore) -> None:
    prompt = store.find("q", (1, 2, 3))[-1]
    again = store.add("q", prompt, (5, 6), keys(2))
    assert again is store.find("q", (1, 2, 3, 5, 6))[-1]
    assert store.bytes == 32


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens that prefixes were read with, pass by pass."""
    return reads(monkeypatch)


def branches(count: int = 3) -> list[Request]:
    prompt = tuple(range(1, 41))
    return [
        Request(Episode(question(), prompt, sample=sample), (5, 6), (), max_tokens=6, seed=sample)
        for sample in range(count)
    ]


def continued(request: Request, turn: Turn, sample: int) -> Request:
    """What follows a branch: its turn, an observation of 4 tokens and the opening."""
    episode = Episode(request.episode.question, request.episode.prompt_ids, sample=sample)
    episode.turns.append(dataclasses.replace(turn, observation_ids=(9, 9, 9, 9)))
    return Request(episode, (5, 6), (), max_tokens=6, seed=100 + sample)


def test_a_prefix_is_read_once_while_its_question_is_held(fed: list[int]) -> None:
    sampler, first = InProcessSampler(POLICY, temperature=1.0), branches()
    root = Episode(question(), tuple(range(1, 41)))
    sampler.hold([root])
    turns = take_turns(sampler, first)
    sampler.release([request.episode for request in first])
    later = continued(first[0], turns[0], 7)
    [kept] = take_turns(sampler, [later])
    assert fed == [42, 1 + 4 + 2], "the last sampled token, what was observed, the opening"
    [again] = take_turns(sampler, [dataclasses.replace(later, seed=55)])
    assert fed[2] == 1, "the last token, for the logits after it"
    sampler.release([root, later.episode])
    fed.clear()
    [fresh] = take_turns(sampler, [later])
    assert fed == [42 + 6 + 4 + 2]
    assert fresh.action_ids == kept.action_ids != again.action_ids
    assert fresh.action_logps == pytest.approx(kept.action_logps, abs=1e-4)


def test_a_sibling_that_comes_later_shares_the_prompt(fed: list[int]) -> None:
    sampler, requests = InProcessSampler(POLICY, temperature=1.0, batch_size=2), branches(4)
    together = take_turns(sampler, requests)
    assert fed[0] == 42
    assert set(fed[1:]) <= {1, 2}, "one token for each that joins"
    for request, turn in zip(requests, together, strict=True):
        [alone] = take_turns(InProcessSampler(POLICY, temperature=1.0), [request])
        assert turn.action_ids == alone.action_ids
        assert turn.action_logps == pytest.approx(alone.action_logps, abs=1e-4)


def test_without_room_everything_is_read_again_and_sampled_alike(fed: list[int]) -> None:
    first = branches()
    answers = []
    for kept_gb in (4.0, 0.0):
        sampler = InProcessSampler(POLICY, temperature=1.0, kept_gb=kept_gb)
        turns = take_turns(sampler, first)
        answers.append(turns + take_turns(sampler, [continued(first[1], turns[1], 7)]))
        assert (sampler._store.bytes > 0) == (kept_gb > 0)
    assert fed == [42, 7, 42, 54]
    assert [turn.action_ids for turn in answers[0]] == [turn.action_ids for turn in answers[1]]
