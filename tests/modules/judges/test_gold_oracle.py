"""The truth on real questions: which steps gold bears out, and which right answers rest on others."""

from __future__ import annotations

from dataclasses import replace

import torch

from envs.interfaces import RewardContext
from envs.protocols.prorag import ProRAG
from envs.types import Action, Document, Episode, Hit, Question, Step, Turn
from evaluation.scoring import score
from modules.judges.gold_oracle import GoldOracle
from modules.rewards.hop_progress import progress
from tests.gold_chain import MUSIQUE, OTHER, A, B
from tests.tiny import byte_tokenizer


def ask(text: str, *found: Document) -> Step:
    return Step("query", True, ((0, 0, 1),), query=text, claim="", said=text, hits=tuple(map(Hit, found)))


def claim(text: str, kind: str = "subanswer") -> Step:
    return Step(kind, True, ((0, 0, 1),), claim=text, said=text)


ASK_A, ASK_B, ANSWER = ask("author of The Novel", A), ask("birthplace of Ada Byron", B), claim("Rome", "answer")
CHAIN = (ASK_A, claim("Ada Byron"), ASK_B, claim("Rome"))


def episode(*steps: Step, question: Question = MUSIQUE) -> Episode:
    last = steps[-1]
    turn = Turn("policy", (), (1,), (-0.5,), "stop", "u0", action=Action("query", "x"))
    return Episode(question, (0,), [turn], steps=steps, answer=last.text if last.kind == "answer" else "")


def test_a_chain_that_gold_bears_out_is_true_and_settles_its_hops() -> None:
    judgement = GoldOracle().judge(episode(*CHAIN, ANSWER))
    assert judgement.valid == (True,) * 5
    assert judgement.settled == (0, 1, 0, 1, 0)
    assert (judgement.open, judgement.flawed, judgement.unresolved) == (0, False, False)


def test_a_right_answer_after_a_lost_search_is_flawed_but_established() -> None:
    judgement = GoldOracle().judge(episode(ask("the novel", OTHER), *CHAIN, ANSWER))
    assert judgement.valid == (False, *(True,) * 5)
    assert (judgement.flawed, judgement.unresolved) == (True, False)


def test_a_right_answer_before_the_chain_ends_is_flawed_and_unresolved() -> None:
    judgement = GoldOracle().judge(episode(*CHAIN[:2], ANSWER))
    assert judgement.valid == (True, True, False)
    assert (judgement.open, judgement.flawed, judgement.unresolved) == (1, True, True)


def test_a_wrong_answer_is_untrue_and_neither_flawed_nor_unresolved() -> None:
    judgement = GoldOracle().judge(episode(ASK_A, claim("Nobody"), claim("Paris", "answer")))
    assert judgement.valid == (True, False, False)
    assert (judgement.flawed, judgement.unresolved, judgement.open) == (False, False, 2)


def test_a_step_out_of_format_is_untrue_and_one_not_written_or_dropped_unknown() -> None:
    steps = (replace(ASK_A, valid=False), replace(CHAIN[1], dropped=True), replace(CHAIN[1], spans=()), *CHAIN[2:])
    judgement = GoldOracle().judge(episode(*steps))
    assert judgement.valid == (False, None, None, True, True)
    assert judgement.settled == (0, 0, 1, 0, 1)  # what is thrown away settles nothing


def test_without_gold_or_without_reasoning_nothing_is_known() -> None:
    bare = GoldOracle().judge(episode(*CHAIN, ANSWER, question=Question("q", "Where?", ("Rome",))))
    silent = GoldOracle().judge(episode(replace(ANSWER, claim=None)))
    for judgement, count in ((bare, 5), (silent, 1)):
        assert judgement.valid == judgement.settled == (None,) * count
        assert judgement.flawed is judgement.unresolved is judgement.open is None


def test_an_evaluation_counts_flawed_answers_by_it() -> None:
    row = score(episode(ask("the novel", OTHER), *CHAIN, ANSWER), valid=True, oracle=GoldOracle())
    assert (row["em"], row["flawed"], row["unresolved"]) == (1, 1, 0)
    assert row["true_steps"] == 5 / 6
    assert [step["truth"] for step in row["steps"]] == [False, *(True,) * 5]


def test_progress_counts_settled_hops_by_it() -> None:
    context = RewardContext(ProRAG(byte_tokenizer(), instruction=""))  # pyright: ignore
    [shares] = progress([episode(*CHAIN, ANSWER)], context, oracle=GoldOracle())
    torch.testing.assert_close(shares, torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0]))
