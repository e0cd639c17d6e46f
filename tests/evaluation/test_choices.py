"""What agents chose: by number of hops, and in a whole evaluation down to its pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envs.retrieval import RetrievalEnvironment
from envs.sampling import ByAgent
from envs.types import Document, Episode, Gold, Question
from evaluation.choices import choices_by_hops
from evaluation.evaluate import Benchmark, Evaluation
from evaluation.report import report
from systems.sirag.parse import TAGS
from systems.sirag.protocol import DECISION_MAKER, GENERATOR, KNOWLEDGE_SELECTOR, SIRAG
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer


def row(hops: int | None, **counts: int) -> dict[str, Any]:
    return {"hops": hops, "choices": {name.replace("_", "/"): count for name, count in counts.items()}}


ROWS = [
    row(1, decisions_stop=1, passages_shown=3, passages_kept=1),
    row(2, decisions_stop=0, passages_shown=6, passages_kept=6),
    row(2, decisions_stop=1, passages_shown=0, passages_kept=0),
    row(None, decisions_stop=1, passages_shown=1, passages_kept=0),
]


def test_means_of_every_group_and_the_share_of_passages_that_were_kept() -> None:
    groups = choices_by_hops(ROWS)
    assert list(groups) == ["all", "hops=1", "hops=2"]
    assert groups["all"] == {
        "n": 4, "decisions/stop": 0.75, "passages/shown": 2.5, "passages/kept": 1.75, "kept_share": 0.7,
    }  # fmt: skip
    assert groups["hops=2"] == {
        "n": 2, "decisions/stop": 0.5, "passages/shown": 3.0, "passages/kept": 3.0, "kept_share": 1.0,
    }  # fmt: skip
    assert groups["hops=1"]["kept_share"] == pytest.approx(1 / 3, abs=1e-4)


def test_without_passages_there_is_no_share_and_without_choices_nothing() -> None:
    assert choices_by_hops([ROWS[2]])["all"] == {"n": 1, "decisions/stop": 1}
    assert choices_by_hops([{"hops": 1}, {"hops": 2, "choices": {}}]) == {}
    assert list(choices_by_hops([{"hops": 1}, ROWS[0]])) == ["all", "hops=1"]


class Asked:
    """Two questions, of one hop and of two."""

    def __iter__(self) -> Iterator[Question]:
        for hops in (1, 2):
            yield Question(f"q{hops}", f"Question of {hops}?", ("Ada",), Gold(hops=hops, documents=("d1",)))

    def documents(self) -> Iterator[Document]:
        return iter(())


def decided(episode: Episode) -> str:
    """As many retrievals as the question has hops, then two decisions at once."""
    searches, hops = len(episode.turns) // 2, int(episode.question.id[1:])
    ask = f"<decision>retrieve</decision><query>{searches}</query>"
    return ask if searches < hops else "<decision>stop</decision>" * 2


def test_an_evaluation_writes_them_and_its_pages_tell_what_was_kept_and_dropped(tmp_path: Path) -> None:
    protocol = SIRAG(byte_tokenizer(TAGS))  # type: ignore[arg-type] (a loaded one will do)
    written = {DECISION_MAKER: decided, KNOWLEDGE_SELECTOR: lambda _: "<keep>2</keep>", GENERATOR: lambda _: "Ada"}
    sampler = ByAgent({agent: Scripted(protocol.codec.control, said) for agent, said in written.items()})
    pages = FixedRetriever([Document("d1", "A", "x"), Document("d2", "B", "y"), Document("d3", "C", "z")])
    environment = RetrievalEnvironment(protocol, pages)
    maker = Evaluation({"toy": Benchmark(Asked(), "test")}, environment, sampler)
    folder = tmp_path / "store" / "eval-0"
    maker.make(folder, seed=0, rank=0, world_size=1)
    maker.merge(folder, seed=0, world_size=1)
    notes = json.loads((folder / "data" / "results.json").read_text())["notes"]["toy/test"]["choices"]
    assert {name: group["decisions/retrieve"] for name, group in notes.items()} == {
        "all": 1.5,
        "hops=1": 1,
        "hops=2": 2,
    }
    assert {name: group["invalid/two_decisions"] for name, group in notes.items()} == dict.fromkeys(notes, 1)
    assert notes["all"]["kept_share"] == pytest.approx(3 / 8), "one of three, then the second of the two that are new"
    (folder / "manifest.json").write_text('{"kind": "make"}')
    report.write(tmp_path, "toy", 0, {"eval": folder})
    assert "<li>hops=2: n 1.0, decisions/retrieve 2.0" in (tmp_path / "toy" / "seed0" / "report.html").read_text()
