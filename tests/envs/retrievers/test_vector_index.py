"""Index files that others publish are read as they are, or refused where they do not fit; GPUs hold shards."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import faiss
import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient

from common.errors import ConfigError, DataError
from envs.retrievers import vector_index
from envs.retrievers.dense import Dense
from envs.retrievers.server import main
from envs.retrievers.vector_index import import_faiss
from envs.retrievers.watched_file import WatchedFile
from tests.word_encoder import WordEncoder

PASSAGES = 200
QUERIES = ["w3 w17", "w5 w6 w7", "w1 w2 w3 w4"]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Passages as in the wiki-18 dump."""
    random = np.random.default_rng(0)
    path = tmp_path / "wiki-18.jsonl"
    texts = [" ".join(f"w{n}" for n in random.integers(60, size=9)) for _ in range(PASSAGES)]
    rows = [{"id": str(i), "contents": f'"Title {i}"\n{text}'} for i, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def vectors(corpus: Path) -> np.ndarray:
    """As published: of the contents, whose title stands in quotes."""
    contents = [json.loads(line)["contents"] for line in corpus.read_text().splitlines()]
    return WordEncoder().encode_passages(contents)


def publish(path: Path, vectors: np.ndarray, factory: str = "Flat", metric: int = faiss.METRIC_INNER_PRODUCT) -> Path:
    index = faiss.index_factory(vectors.shape[1], factory, metric)
    index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(path))
    return path


def opened(corpus: Path, file: Path, encoder: WordEncoder | None = None, **settings) -> Dense:
    cache = str(corpus.parent / "cache")
    return Dense(corpus, encoder or WordEncoder(), index_file=file, cache=cache, **settings)


def ids(hits) -> list[list[str]]:
    return [[hit.document.id for hit in row] for row in hits]


def test_a_published_flat_index_is_read_as_it_is_and_mapped(corpus, vectors, tmp_path) -> None:
    file = publish(tmp_path / "e5_Flat.index", vectors)
    before, encoder = file.read_bytes(), WordEncoder()
    retriever = opened(corpus, file, encoder)
    hits = retriever.search(QUERIES, 3)
    scores = encoder.encode_queries(QUERIES) @ vectors.T
    np.testing.assert_allclose([[hit.score for hit in row] for row in hits], -np.sort(-scores)[:, :3], atol=1e-6)
    assert [row[0] for row in ids(hits)] == [str(i) for i in scores.argmax(1)]
    passage = json.loads(corpus.read_text().splitlines()[7])["contents"].splitlines()[1]
    assert ids(retriever.search([passage], 1)) == [["7"]]
    assert encoder.passages == 16  # only those that check the file
    assert str(file) in Path("/proc/self/maps").read_text()
    assert file.read_bytes() == before
    assert not list((tmp_path / "cache").glob("dense-*"))


def test_published_graphs_search_as_widely_as_those_made_here_and_clusters_are_read_too(
    corpus, vectors, tmp_path
) -> None:
    file = publish(tmp_path / "e5_HNSW.index", vectors, "HNSW16")
    exact = opened(corpus, publish(tmp_path / "e5_Flat.index", vectors)).search(QUERIES, 3)
    retriever = opened(corpus, file)
    assert retriever._index.hnsw.efSearch == 64  # FAISS's own default is 16
    assert opened(corpus, file, ef_search=128)._index.hnsw.efSearch == 128
    assert ids(retriever.search(QUERIES, 3)) == ids(exact)
    clusters = publish(tmp_path / "e5_IVF.index", vectors, "IVF4,Flat")
    assert ids(opened(corpus, clusters, nprobe=4).search(QUERIES, 3)) == ids(exact)


def test_the_identity_follows_the_bytes_of_the_file_and_they_are_read_once(
    corpus, vectors, tmp_path, monkeypatch
) -> None:
    file = publish(tmp_path / "a.index", vectors)
    identity = opened(corpus, file).identity
    assert opened(corpus, publish(tmp_path / "b.index", vectors)).identity == identity
    other = opened(corpus, publish(tmp_path / "c.index", vectors, "SQfp16")).identity
    assert other != identity
    assert opened(corpus, file, WordEncoder("other")).identity != identity
    assert len(list((tmp_path / "cache").glob("index-*/identity"))) == 3
    monkeypatch.setattr(WatchedFile, "digest", lambda self: pytest.fail("read through again"))
    assert opened(corpus, file).identity == identity
    monkeypatch.undo()
    assert opened(corpus, publish(file, vectors, "SQfp16")).identity == other


def test_an_index_file_that_is_overwritten_is_an_error_until_it_is_as_it_was(
    corpus, vectors, tmp_path, monkeypatch
) -> None:
    file = publish(tmp_path / "a.index", vectors)
    retriever, bytes_before = opened(corpus, file), file.read_bytes()
    hits = retriever.search(QUERIES, 3)
    other, index = publish(tmp_path / "b.index", vectors[::-1].copy()).read_bytes(), retriever._index

    def overwritten(*asked):
        with open(file, "r+b") as open_file:
            open_file.write(other)
        return index.search(*asked)

    monkeypatch.setattr(retriever, "_index", SimpleNamespace(search=overwritten))  # while a search runs
    for _ in range(2):
        with pytest.raises(DataError, match=r"index .*a\.index was changed while it was in use: put it back as it was"):
            retriever.search(QUERIES, 3)
    with open(file, "r+b") as open_file:
        open_file.write(bytes_before)
    monkeypatch.undo()
    assert retriever.search(QUERIES, 3) == hits


@pytest.mark.parametrize("factory", ["Flat", "SQfp16", "HNSW16"])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_is_refused(
    corpus, vectors, tmp_path, monkeypatch, factory: str, number: float
) -> None:
    monkeypatch.setattr(vector_index, "_BLOCK", 64)
    vectors[191, 3] = number  # the last of the third block
    with pytest.raises(DataError, match=r"x\.index: vector 191 is not finite: get the file again"):
        opened(corpus, publish(tmp_path / "x.index", vectors, factory))


def test_ids_that_are_no_places_of_passages_are_refused(corpus, vectors, tmp_path) -> None:
    index = faiss.IndexIDMap(faiss.IndexFlatIP(32))
    index.add_with_ids(vectors, np.arange(PASSAGES) + 1)
    faiss.write_index(index, str(tmp_path / "x.index"))
    retriever = opened(corpus, tmp_path / "x.index")
    with pytest.raises(DataError, match=r"wiki-18\.jsonl: passage 200 of 200: ids must be places in the corpus"):
        retriever.search(QUERIES[:1], 200)


def test_a_score_that_is_not_finite_is_refused(corpus, vectors, tmp_path) -> None:
    vectors[150] = np.sign(WordEncoder().encode_queries(QUERIES[:1])) * 3e38
    retriever = opened(corpus, publish(tmp_path / "x.index", vectors))
    with pytest.raises(DataError, match="a score that is not finite"):
        retriever.search(QUERIES[:1], 3)


def test_vectors_of_other_passages_are_refused(corpus, vectors, tmp_path) -> None:
    shuffled = vectors[np.random.default_rng(1).permutation(PASSAGES)]
    for factory in ("Flat", "SQfp16", "HNSW16"):
        with pytest.raises(DataError, match=r"only \d of 16 passages of .*wiki-18.jsonl are nearest to their own"):
            opened(corpus, publish(tmp_path / "shuffled.index", shuffled, factory))


@pytest.mark.parametrize(("strange", "fits"), [(4, True), (5, False)])
def test_a_quarter_of_the_passages_may_be_strange(corpus, vectors, tmp_path, strange: int, fits: bool) -> None:
    corpus.write_text("".join(corpus.read_text().splitlines(keepends=True)[:16]))  # all of them are probed
    file = publish(tmp_path / "x.index", vectors[[*np.roll(range(strange), 1), *range(strange, 16)]])
    with nullcontext() if fits else pytest.raises(DataError, match=r"only 11 of 16 passages of .* are nearest"):
        opened(corpus, file)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path, v: publish(path, v, metric=faiss.METRIC_L2), "compares vectors by a distance"),
        (lambda path, v: publish(path, v[1:]), "holds 199 vectors of 32 numbers, but .* has 200 passages"),
        (lambda path, v: publish(path, v[:, :16].copy()), "200 vectors of 16 numbers, .* the encoder gives 32"),
        (lambda path, v: path.write_bytes(b"nonsense"), "holds no index that can be read: give the file that"),
        (lambda path, v: None, "No such file"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(corpus, vectors, tmp_path, make, reason) -> None:
    make(tmp_path / "x.index", vectors)
    with pytest.raises(DataError, match=reason) as caught:
        opened(corpus, tmp_path / "x.index")
    assert "x.index" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_index_is_either_built_or_read(corpus, vectors, tmp_path) -> None:
    file = publish(tmp_path / "x.index", vectors)
    with pytest.raises(ConfigError, match=r"give index \(Flat, to build one\) or index_file"):
        opened(corpus, file, index="Flat")


def test_the_server_s_command_reads_a_published_index(corpus, vectors, tmp_path, monkeypatch, two_gpus) -> None:
    asked: dict[str, object] = {}
    monkeypatch.setattr(
        "envs.retrievers.encoder.Encoder",
        lambda model, **settings: asked.update(settings, model=model) or WordEncoder(),
    )
    apps: list[FastAPI] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: apps.append(self.config.app))
    file = publish(tmp_path / "e5_Flat.index", vectors)
    options = f"dense --corpus {corpus} --index-file {file} --cache {tmp_path / 'cache'} --port 0"
    assert main([*options.split(), "--encoder", "e5", "--query-prefix", "query: ", "--device", "cuda:1"]) == 0
    told = {"model": "e5", "query_prefix": "query: ", "device": "cuda:1", "pooling": "mean"}
    assert asked.items() >= told.items()
    client = TestClient(apps[0])
    assert client.get("/health").json()["documents"] == PASSAGES
    passage = json.loads(corpus.read_text().splitlines()[7])["contents"].splitlines()[1]
    [hits] = client.post("/retrieve", json={"queries": [passage], "topk": 1}).json()["result"]
    assert hits[0]["id"] == "7"
    assert two_gpus == [], "those are for training"
    assert main([*options.split(), "--encoder", "e5", "--index", "Flat"]) == 2


class ClonerOptions:
    """What the GPU package of FAISS has and the CPU package lacks."""

    shard = useFloat16 = False


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[ClonerOptions]:
    """FAISS as it is with two GPUs, which are two shards on the CPU."""
    asked: list[ClonerOptions] = []

    def spread(index, co):
        asked.append(co)
        if not isinstance(index, faiss.IndexFlat):
            raise RuntimeError("Error in x at GpuCloner.cpp:9: This index type is not implemented on GPU.")
        shards = faiss.IndexShards(index.d, False, True)
        for part in np.array_split(index.reconstruct_n(0, index.ntotal), 2):
            shard = faiss.IndexFlatIP(index.d)
            shard.add(part)
            shards.add_shard(shard)
            asked.append(shard)  # keeps it alive
        return shards

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 2)
    monkeypatch.setattr(faiss, "GpuMultipleClonerOptions", ClonerOptions, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", spread)
    return asked


def test_with_gpus_each_holds_a_shard_and_answers_stay_the_same(corpus, vectors, tmp_path, two_gpus) -> None:
    file = publish(tmp_path / "x.index", vectors)
    on_cpu = opened(corpus, file)
    assert two_gpus == []
    spread = opened(corpus, file, device="auto")
    assert (two_gpus[0].shard, two_gpus[0].useFloat16) == (True, False)
    assert (spread._index.ntotal, spread._index.count()) == (PASSAGES, 2)
    assert spread.search(QUERIES, 5) == on_cpu.search(QUERIES, 5)
    assert spread.identity == on_cpu.identity


def test_half_precision_is_another_backend_where_it_is_used(corpus, vectors, tmp_path, two_gpus) -> None:
    file = publish(tmp_path / "x.index", vectors)
    whole = opened(corpus, file, device="auto").identity
    assert opened(corpus, file, half=True, device="auto").identity != whole
    assert two_gpus[-3].useFloat16
    assert opened(corpus, file, half=True).identity == whole


def test_an_index_that_gpus_cannot_hold_stays_or_is_refused(corpus, vectors, tmp_path, two_gpus, caplog) -> None:
    file = publish(tmp_path / "x.index", vectors, "HNSW16")
    with caplog.at_level(logging.WARNING):
        assert len(opened(corpus, file, device="auto").search(QUERIES, 3)[0]) == 3
    assert caplog.messages == ["the index stays on the CPU: This index type is not implemented on GPU."]
    with pytest.raises(ConfigError, match="cannot put it on 2 GPUs: This index type is not implemented"):
        opened(corpus, file, device="cuda")


@pytest.mark.skipif(getattr(faiss, "get_num_gpus", int)() > 0, reason="FAISS sees a GPU")
def test_without_a_gpu_one_cannot_be_insisted_on(corpus, vectors, tmp_path) -> None:
    with pytest.raises(ConfigError, match="FAISS sees no GPU; install the extra gpu, or set device cpu"):
        opened(corpus, publish(tmp_path / "x.index", vectors), device="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(getattr(faiss, "get_num_gpus", int)() == 0, reason="FAISS sees no GPU")
@pytest.mark.parametrize("half", [False, True])
def test_a_real_gpu_finds_what_the_cpu_finds(corpus, vectors, tmp_path, half: bool) -> None:
    file = publish(tmp_path / "x.index", vectors)
    here, there = opened(corpus, file, device="cpu"), opened(corpus, file, device="cuda", half=half)
    assert "Gpu" in type(there._index).__name__ or hasattr(there._index, "count")
    for expected, found in zip(here.search(QUERIES, 3), there.search(QUERIES, 3), strict=True):
        assert found[0].document == expected[0].document
        assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected], abs=2e-3)


@pytest.mark.parametrize(("default", "used"), [(128_000, 1500), (20, 20)])
def test_few_queries_are_one_product_of_matrices(default: int, used: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss.cvar, "distance_compute_blas_threshold", default)
    assert import_faiss().cvar.distance_compute_blas_threshold == used
