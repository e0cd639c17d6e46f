"""Scores of tokens that were not sampled: as the model's own log-probs, alone and in any batch, through any sampler."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from common.errors import ConfigError, DataError
from envs.requests import Request, forced_request
from envs.sampling import AtTemperature, ByAgent, Greedy, take_turns
from envs.types import Episode
from modules.samplers.given_tokens import shared_rows
from modules.samplers.in_process import InProcessSampler
from tests.tiny import Scripted, byte_tokenizer, question, tiny_policy

POLICY = tiny_policy(byte_tokenizer(), scale=3.0)
GIVEN = [(tuple(range(5, 5 + before)), tuple(range(60, 60 + after))) for before, after in ((1, 7), (40, 3), (9, 90))]
REQUESTS = [forced_request(prefix, ids, agent="scorer") for prefix, ids in GIVEN]


def own(prefix: tuple[int, ...], ids: tuple[int, ...]) -> list[float]:
    """What the whole model says of tokens after a prefix, all logits at once."""
    with torch.no_grad():
        logps = torch.log_softmax(POLICY.model(torch.tensor([prefix + ids])).logits[0].float(), dim=-1)
    return [float(logps[len(prefix) - 1 + place, token]) for place, token in enumerate(ids)]


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_a_passage_scores_the_same_alone_and_in_any_batch(batch_size: int) -> None:
    sampler = InProcessSampler(POLICY, temperature=0.7, batch_size=batch_size)
    together = sampler.score([*REQUESTS, *reversed(REQUESTS)])
    assert together[:3] == together[:2:-1], "equal requests have equal scores, in their order"
    for (prefix, ids), request, logps in zip(GIVEN, REQUESTS, together, strict=False):
        assert len(logps) == len(ids)
        assert logps == pytest.approx(own(prefix, ids), abs=2e-6), "at temperature 1, whatever the sampler's"
        assert sampler.score([request]) == [pytest.approx(logps, abs=2e-6)]


def test_alternatives_share_a_row_and_what_is_read_is_counted_once() -> None:
    sampler, prefix = InProcessSampler(POLICY), tuple(range(5, 25))
    letters = [forced_request(prefix, (letter,), agent="router") for letter in (65, 66, 67)]
    longer = forced_request(prefix, (66, 70, 71), agent="router")
    scores = sampler.score([*letters, longer])
    for letter, score in zip((65, 66, 67), scores, strict=False):
        assert score == pytest.approx(own(prefix, (letter,)), abs=2e-6)
    assert scores[3] == pytest.approx(own(prefix, (66, 70, 71)), abs=2e-6)
    assert sampler.counts == {"cost/read_tokens/router": 22}, "the longest row, whose last token is not read"
    assert sampler.score([]) == []


def test_a_sequence_lies_in_the_row_that_begins_with_it() -> None:
    rows, row_of = shared_rows([(1,), (1, 2), (3,), (1, 2, 3), (1, 3), (1, 2)])
    assert (rows, row_of) == ([(3,), (1, 3), (1, 2, 3)], [2, 2, 0, 2, 1, 2])


def test_a_turn_of_an_episode_is_scored_after_its_context() -> None:
    free = Request(Episode(question(), (1, 2, 3)), (4, 5), (), max_tokens=6, seed=3)
    sampler = InProcessSampler(POLICY, temperature=1.0)
    [turn] = take_turns(sampler, [free])
    forced = dataclasses.replace(free, forced_ids=turn.action_ids)
    assert sampler.score([forced]) == [pytest.approx(turn.action_logps, abs=1e-4)]


def test_open_requests_stay_as_they_are() -> None:
    free = [Request(Episode(question(identity=f"q{n}"), (1, 2, 3)), (4, n), (), max_tokens=9, seed=n) for n in range(3)]
    alone = take_turns(InProcessSampler(POLICY, temperature=1.0), free)
    sampler = InProcessSampler(POLICY, temperature=1.0)
    sampler.submit(free)
    done = {request.seed: turn for request, turn in sampler.collect()}
    sampler.score(REQUESTS)
    while finished := sampler.collect():
        done |= {request.seed: turn for request, turn in finished}
    assert [done[n].action_ids for n in range(3)] == [turn.action_ids for turn in alone]


def test_samplers_made_of_samplers_pass_them_on() -> None:
    sampler, other = InProcessSampler(POLICY), InProcessSampler(tiny_policy(byte_tokenizer(), seed=5, scale=3.0))
    asked = [*REQUESTS[:2], dataclasses.replace(REQUESTS[2], agent="gate")]
    expected = [*sampler.score(asked[:2]), *other.score(asked[2:])]
    assert ByAgent({"gate": other, "scorer": Greedy(AtTemperature(sampler, temperature=0.5))}).score(asked) == expected
    with pytest.raises(ConfigError, match="asks for agent 'gate'"):
        ByAgent({"scorer": sampler}).score(asked)


@pytest.mark.parametrize(("prefix", "ids"), [((), (1,)), ((1,), ())])
def test_tokens_without_a_prefix_and_no_tokens_are_refused(prefix: tuple[int, ...], ids: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="needs forced_ids, and tokens before them"):
        InProcessSampler(POLICY).score([forced_request(prefix, ids, agent="scorer")])


def test_a_sampler_without_a_model_refuses() -> None:
    with pytest.raises(ConfigError, match=r"^Scripted gives no log-probs of tokens .*: score with InProcessSampler"):
        Scripted(lambda text: (), lambda episode: "").score(REQUESTS)


def test_scores_that_are_not_numbers_end_the_run() -> None:
    policy = tiny_policy(byte_tokenizer())
    with torch.no_grad():
        next(policy.model.parameters()).fill_(float("nan"))
    with pytest.raises(DataError, match="log-probs that are not numbers"):
        InProcessSampler(policy).score(REQUESTS)
