"""Every compressor: hostile passages stay data, other questions and ranks change nothing, what it reads counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envs.interfaces import Compressor
from envs.protocols.direct import Direct
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Document, Question
from evaluation.evaluate import Benchmark, Evaluation
from modules.samplers.in_process import InProcessSampler
from modules.text_surprise import TextSurprise
from systems.longllmlingua.compressor import LongLLMLingua
from systems.recomp.abstractive import AbstractiveCompressor
from systems.recomp.extractive import ExtractiveCompressor
from systems.recomp.writers import CausalWriter
from systems.selective_context.compressor import SelectiveContext
from tests.envs.protocols.conformance import HOSTILE, TAGS
from tests.systems.recomp.test_recomp import CountingEncoder
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer, tiny_policy

POLICY = tiny_policy(byte_tokenizer(TAGS), scale=3.0)
PROTOCOL = Direct(POLICY.tokenizer, retrieve=True)  # type: ignore[arg-type] (a loaded one will do)
QUESTIONS = [Question(f"q{n}", f"Who wrote {'it ' * n}?", ("Ada",)) for n in range(3)]
PAGES = [Document(f"d{n}", "Title", f"{text} Ada wrote it. It was good.") for n, text in enumerate(HOSTILE[:4])]


def scorer() -> TextSurprise:
    return TextSurprise(InProcessSampler(POLICY))


MADE: dict[str, Callable[[], Any]] = {
    "extractive": lambda: ExtractiveCompressor(CountingEncoder()),  # type: ignore[arg-type] (no network)
    "abstractive": lambda: AbstractiveCompressor(CausalWriter(POLICY), summary_tokens=9),
    "longllmlingua": lambda: LongLLMLingua(scorer(), rate=0.7),
    "selective_context": lambda: SelectiveContext(scorer()),
}


def environment(compressor: Compressor) -> RetrievalEnvironment:
    return RetrievalEnvironment(PROTOCOL, FixedRetriever(PAGES), compressor=compressor, top_k=4)


def sampler() -> Scripted:
    return Scripted(PROTOCOL.codec.control, lambda episode: f"Ada{PROTOCOL.codec.tokenizer.eos_token}")


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_hostile_passages_stay_data_and_a_question_is_compressed_the_same_in_any_company(made: Any) -> None:
    special = {*PROTOCOL.codec.tokenizer.all_special_ids}
    together = rollout(environment(made()), sampler(), QUESTIONS, seed=0)
    for question, episode in zip(QUESTIONS, together, strict=True):
        [alone] = rollout(environment(made()), sampler(), [question], seed=0)
        assert episode.turns[0] == alone.turns[0]
        assert not special & {*episode.turns[0].observation_ids}
        assert {hit.document.id for hit in episode.turns[0].hits} == {page.id for page in PAGES}
        assert any(hit.shown != hit.document.text for hit in episode.turns[0].hits)


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_two_ranks_leave_the_same_and_count_the_same(made: Any, tmp_path: Path) -> None:
    headlines = []
    for ranks in (1, 2):
        folder, maker = tmp_path / str(ranks), None
        for rank in range(ranks):
            benchmark = Benchmark(QUESTIONS, "test")  # type: ignore[arg-type] (a list is enough)
            maker = Evaluation({"toy": benchmark}, environment(made()), sampler(), unit=1)
            maker.make(folder, seed=0, rank=rank, world_size=ranks)
        assert maker is not None
        headlines.append(maker.merge(folder, seed=0, world_size=ranks))
    first, other = ((tmp_path / ranks / "data" / "predictions-toy-test.jsonl").read_bytes() for ranks in "12")
    assert first == other
    assert headlines[0] == headlines[1]
    read = sum(count for name, count in headlines[0].items() if name.startswith("cost/read_tokens/"))
    assert read > 0
    [row] = json.loads((tmp_path / "2" / "data" / "results.json").read_text())["rows"]
    written = headlines[0].get("cost/tokens/compressor")
    assert (row["read_tokens"], row["tokens"]) == (read / 3, written and written / 3), "a script samples nothing"
    assert headlines[0]["compression/given_tokens"] > 0
