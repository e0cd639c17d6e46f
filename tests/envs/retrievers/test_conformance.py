"""Every retriever of the suite over the same passages, harmless and hostile ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from transformers import BertForSequenceClassification

from envs.interfaces import Retriever
from envs.retrievers import milvus, opensearch
from envs.retrievers.bm25 import BM25
from envs.retrievers.dense import Dense
from envs.retrievers.hybrid import Hybrid
from envs.retrievers.milvus import Milvus
from envs.retrievers.opensearch import OpenSearch
from envs.retrievers.reranked import Reranked
from tests.envs.retrievers.conformance import PASSAGES, check_retriever
from tests.envs.retrievers.opensearch_server import FakeOpenSearch
from tests.scripted_http import serving
from tests.tiny_bert import save_tiny_bert
from tests.word_encoder import WordEncoder

pytestmark = pytest.mark.threads
ENCODER: Any = WordEncoder()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    rows = ({"id": one.id, "title": f'"{one.title}"', "text": one.text} for one in PASSAGES)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def of_milvus(corpus: Path, search: Any) -> Retriever:
    uri = str(corpus.with_name("milvus.db"))
    milvus.fill(corpus, uri, "passages", ENCODER)
    return Milvus(uri, "passages", search=search, encoder=None if search == "bm25" else ENCODER, corpus=corpus)


def of_opensearch(corpus: Path, stack: ExitStack) -> Retriever:
    server = stack.enter_context(serving(FakeOpenSearch()))
    opensearch.fill(corpus, server.url, "passages")
    return OpenSearch(server.url, "passages", corpus=corpus)


def dense(corpus: Path) -> Dense:
    return Dense(corpus, ENCODER, cache=str(corpus.with_name("cache")))


def cross_encoder(folder: Path) -> str:
    return save_tiny_bert(folder, ["river", "zebra", "Vienna"], BertForSequenceClassification, num_labels=1)


RETRIEVERS: dict[str, Callable[[Path, ExitStack], Retriever]] = {
    "bm25": lambda corpus, _: BM25(corpus),
    "dense": lambda corpus, _: dense(corpus),
    "hybrid": lambda corpus, _: Hybrid({"words": BM25(corpus), "meaning": dense(corpus)}),
    "reranked": lambda corpus, _: Reranked(
        BM25(corpus), cross_encoder(corpus.with_name("cross")), max_tokens=64, batch_size=1
    ),
    "milvus bm25": lambda corpus, _: of_milvus(corpus, "bm25"),
    "milvus dense": lambda corpus, _: of_milvus(corpus, "dense"),
    "milvus both": lambda corpus, _: of_milvus(corpus, "both"),
    "opensearch": of_opensearch,
}


@pytest.mark.parametrize("name", RETRIEVERS)
def test_retrievers_hold_what_every_retriever_must(name: str, corpus: Path, stack: ExitStack) -> None:
    check_retriever(RETRIEVERS[name](corpus, stack), finds=name != "reranked")  # whose model is random
