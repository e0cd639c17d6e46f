"""What the answer, the format and the passages are worth in Search-R1's staged reward."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from envs.interfaces import RewardContext
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Document, Episode
from modules.rewards.answer import answer_exact
from modules.rewards.search_r1 import staged
from modules.rewards.terms import Term, combine
from systems.search_r1.protocol import TAGS, SearchR1
from systems.search_r1.reward import staged_answer
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer, question

PROTOCOL = SearchR1(byte_tokenizer(tags=TAGS), searches=2)  # pyright: ignore[reportArgumentType]
CONTEXT = RewardContext(PROTOCOL)
SEARCH = "<think>t</think><search>q</search>"
NAN = float("nan")


def episode(*texts: str, passage: str = "Bob read it.") -> Episode:
    environment = RetrievalEnvironment(PROTOCOL, FixedRetriever([Document("d", "It", passage)]))
    sampler = Scripted(PROTOCOL.codec.control, lambda episode: texts[min(len(episode.turns), len(texts) - 1)])
    [made] = rollout(environment, sampler, [question(answer="Ada Lovelace")], seed=0)
    return made


def answer(text: str, thought: str = "<think>t</think>") -> str:
    return f"{thought}<answer>{text}</answer>"


@pytest.mark.parametrize(
    ("correct", "well_formed", "answered", "retrieved", "value"),
    [(1, 1, 1, 0, 1.0), (1, 0, 1, 1, 0.8), (0, 1, 1, 1, 0.2), (0, 0, 1, 1, 0.1), (0, 0, 0, 1, 0.0)],
)
def test_an_answer_is_worth_more_than_a_format(
    correct: int, well_formed: int, answered: int, retrieved: int, value: float
) -> None:
    for dtype in (torch.bool, torch.float32, torch.int64):
        inputs = [torch.tensor([x], dtype=dtype) for x in (correct, well_formed, answered, retrieved)]
        assert staged(*inputs).tolist() == pytest.approx([value])


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ([torch.float64] * 4, torch.float64),
        ([torch.bool, torch.bool, torch.bool, torch.float64], torch.float64),
        ([torch.float32, torch.bool, torch.int64, torch.bool], torch.float32),
        ([torch.int64] * 4, torch.float32),
        ([torch.bool] * 4, torch.float32),
        ([torch.float16, torch.bool, torch.bool, torch.bool], torch.float32),
    ],
)
def test_no_precision_of_the_inputs_is_lost(dtypes: list[torch.dtype], expected: torch.dtype) -> None:
    inputs = [torch.tensor([x], dtype=dtype) for x, dtype in zip((1, 0, 1, 0), dtypes, strict=True)]
    assert staged(*inputs).dtype == expected
    assert staged(*inputs).tolist() == pytest.approx([0.8])


def test_a_float64_reward_is_exact_beyond_float32() -> None:
    correct = torch.tensor([0.1], dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.bool)
    assert staged(correct, zero, zero, zero).item() == pytest.approx(0.08, rel=1e-15)


def test_lists_are_inputs_too() -> None:
    values = staged([1, 0.0], [False, True], [True, True], [False, True])  # pyright: ignore[reportArgumentType]
    assert values.dtype == torch.float32
    assert values.tolist() == pytest.approx([0.8, 0.2])


def test_what_was_retrieved_counts_for_a_wrong_answer_in_good_form_alone() -> None:
    correct, formed = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([1, 1, 0, 1, 0])
    retrieved = torch.tensor([1, 0, 1, 1, 1])
    values = staged(correct, formed, torch.ones(5), retrieved, lambda_f=0.3, lambda_r=0.25, lambda_a=0.05)
    assert values.tolist() == pytest.approx([0.55, 0.3, 0.05, 1.0, 0.7])


def test_what_is_not_known_stays_unknown() -> None:
    unknown, known = torch.tensor([NAN, 0.0]), torch.ones(2)
    assert staged(unknown, known, known, known).isnan().tolist() == [True, False]
    right, wrong = torch.ones(2), torch.zeros(2)
    assert staged(right, torch.tensor([1.0, 0.0]), unknown, unknown).tolist() == pytest.approx([1.0, 0.8])
    assert staged(wrong, known, known, unknown, lambda_r=0.1).isnan().tolist() == [True, False]


def test_the_reward_reads_answer_format_and_passages_of_an_episode() -> None:
    right, sloppy = episode(SEARCH, answer("Ada Lovelace")), episode(SEARCH, answer("the ada lovelace", thought=""))
    wrong, told = episode(SEARCH, answer("Bob")), episode(SEARCH, answer("Bob"), passage="By ADA, Lovelace: told.")
    wrong_and_sloppy, silent = episode(SEARCH, answer("Bob", thought="")), episode(SEARCH)
    episodes = [right, sloppy, wrong, told, wrong_and_sloppy, silent]
    assert staged_answer(episodes, CONTEXT).tolist() == pytest.approx([1, 0.8, 0.2, 0.2, 0.1, 0])
    retrieval = partial(staged_answer, lambda_r=0.1)
    assert retrieval(episodes, CONTEXT).tolist() == pytest.approx([1, 0.8, 0.2, 0.3, 0.1, 0])
    assert answer_exact(episodes, CONTEXT).tolist() == [1, 1, 0, 0, 0, 0]


def test_passages_that_the_policy_writes_are_not_retrieved() -> None:
    made = episode("<think>t</think><information>Ada Lovelace</information>" + answer("Bob", thought=""))
    assert staged_answer([made], CONTEXT, lambda_r=0.5).tolist() == pytest.approx([0.1])


def test_an_episode_that_ended_in_an_error_is_not_scored() -> None:
    right, failed = episode(answer("Ada Lovelace")), episode(SEARCH)
    failed.status = "error"
    scores = combine({"staged": Term(staged_answer)}, [right, failed], CONTEXT)
    assert scores.outcome_B.isnan().tolist() == [False, True]
