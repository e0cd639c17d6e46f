"""Verifiers held against the truth: the figures by hand, and the stage from episodes to its page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import ConfigError, DataError
from datamodules.records import read_rows
from envs.protocols.direct import Direct
from envs.retrieval import RetrievalEnvironment
from envs.types import Episode, Limits
from systems.hiprag.agreement import VerifierAgreement, agreement
from systems.hiprag.checks import Check
from systems.hiprag.parse import TAGS
from systems.hiprag.protocol import HiPRAG
from systems.hiprag.verifiers.equality import Equality
from tests.making import check_shares_and_resumes
from tests.steps import PASSAGES
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer, question

TOKENIZER: Any = byte_tokenizer(TAGS)
PROTOCOL = HiPRAG(TOKENIZER)


def test_accuracy_and_kappa_by_hand() -> None:
    """Of 8 judged: 3 yes and yes, 1 yes and no, 2 no and yes, 2 no and no. p_o 5/8, p_e 4/8 · 5/8 + 4/8 · 3/8 = 1/2."""
    verdicts = [True] * 4 + [False] * 4 + [None] * 2
    truth = [True, True, True, False, True, True, False, False, True, False]
    figures = agreement(verdicts, truth)
    assert (figures["n"], figures["true"], figures["said"]) == (10, 0.6, 0.5)
    assert figures["unjudged"] == pytest.approx(0.2)
    assert figures["accuracy"] == 0.625
    assert figures["kappa"] == pytest.approx(0.25)
    assert agreement([True, False], [True, False])["kappa"] == 1
    assert agreement([True, False], [False, True])["kappa"] == -1
    assert agreement([True, True], [True, True])["kappa"] is None
    silent = agreement([None], [True])
    assert (silent["n"], silent["unjudged"], silent["accuracy"], silent["kappa"]) == (1, 1, None, None)


def says(episode: Episode) -> str:
    """Question q<n>: alone it is the query `n`, which the policy answers by `n` where n is even."""
    if episode.question.id.startswith("alone"):
        number = int(episode.question.text)
        return str(number) if number % 2 == 0 else "no idea"
    number = int(episode.question.id[1:])
    if not episode.turns:
        return f"I ask.</reasoning><search>{number}</search>"
    known = "<step><reasoning>I know.</reasoning><conclusion>{}</conclusion></step>"
    return f"{number}</conclusion></step>{known.format('yes' if number < 6 else 'no')}</think><answer>Ada</answer>"


class Truth:
    """Even queries are needless, of 4 it cannot tell; the statement `yes` holds."""

    def judge(self, episode: Episode) -> Any:
        needless = [step.query == "" or int(step.query) % 2 == 0 for step in episode.steps]
        return SimpleNamespace(
            needless=tuple(
                fact if step.query not in ("", "4") else None
                for fact, step in zip(needless, episode.steps, strict=True)
            ),
            unfounded=tuple(step.claim != "yes" if step.recall else None for step in episode.steps),
        )


class Yes:
    """Says yes to everything, but gives no verdict on statements of odd questions."""

    def verify(self, checks: Sequence[Check]) -> list[bool | None]:
        odd = [int(check.episode.question.id[1:]) % 2 == 1 for check in checks]
        return [None if o and c.kind == "under_search" else True for c, o in zip(checks, odd, strict=True)]


def maker(**settings: Any) -> VerifierAgreement:
    return VerifierAgreement(
        **{
            "questions": [question(identity=f"q{number}") for number in range(8)],
            "environment": RetrievalEnvironment(PROTOCOL, FixedRetriever(PASSAGES), limits=Limits()),
            "alone": RetrievalEnvironment(Direct(TOKENIZER, retrieve=False, instruction="")),
            "sampler": Scripted(PROTOCOL.codec.control, says),
            "oracle": Truth(),
            "verifiers": {"equality": Equality(), "yes": Yes()},
            "unit": 3,
        }
        | settings
    )


def test_verdicts_are_held_against_the_truth_and_ranks_share_the_work(tmp_path: Path) -> None:
    for rank in (1, 0):
        maker().make(tmp_path, seed=0, rank=rank, world_size=2)
    figures = maker().merge(tmp_path, seed=0, world_size=2)
    assert figures["verifier/equality/over_search/n"] == 7, "of one the oracle cannot tell"
    assert figures["verifier/equality/over_search/accuracy"] == figures["verifier/equality/over_search/kappa"] == 1
    assert figures["verifier/equality/under_search/unjudged"] == 1
    assert "verifier/equality/under_search/accuracy" not in figures
    assert figures["verifier/yes/over_search/accuracy"] == pytest.approx(3 / 7)
    assert figures["verifier/yes/under_search/unjudged"] == 0.5
    assert figures["verifier/yes/under_search/accuracy"] == 0.75
    assert figures["cost/judge_calls"] == 15 * 2
    rows = list(read_rows(tmp_path / "data" / "checks.jsonl", None))
    assert rows[0] == {
        "id": "q0",
        "sample": 0,
        "step": 0,
        "kind": "over_search",
        "query": "0",
        "claim": "0",
        "answer": "0",
        "truth": True,
        "verdicts": {"equality": True, "yes": True},
    }
    groups = json.loads((tmp_path / "data" / "verifier_agreement.json").read_text())["groups"]
    assert [(group["kind"], group["verifier"]) for group in groups] == [
        (kind, name) for kind in ("over_search", "under_search") for name in ("equality", "yes")
    ]
    page = (tmp_path / "report.md").read_text()
    [first] = [line.split() for line in page.splitlines() if "over_search  | equality" in line]
    assert [cell for cell in first if cell != "|"] == [
        "over_search",
        "equality",
        "7",
        "0.0",
        "42.9",
        "42.9",
        "100.0",
        "1.00",
    ]


def test_ranks_share_the_questions_and_a_killed_run_goes_on(tmp_path: Path) -> None:
    check_shares_and_resumes(maker(), tmp_path)


def test_what_cannot_be_measured_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="0 verifiers"):
        maker(verifiers={})
    silent = maker(sampler=Scripted(PROTOCOL.codec.control, lambda e: "mumble"))
    silent.make(tmp_path, seed=0, rank=0, world_size=1)
    with pytest.raises(DataError, match="no step could be checked"):
        silent.merge(tmp_path, seed=0, world_size=1)
