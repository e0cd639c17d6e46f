from __future__ import annotations

import builtins
import json
import os
from pathlib import Path

import faiss
import numpy as np
import pytest

from common.errors import ConfigError, DataError, RetrievalError
from envs.retrievers import dense
from envs.retrievers.dense import Dense, passage_text
from envs.types import Document
from tests.word_encoder import WordEncoder


def write(path, fields):
    rows = [{"id": str(i), "title": title, "text": text} for i, (title, text) in enumerate(fields)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def corpus(tmp_path):
    """400 passages of eight words, drawn so that no two are alike."""
    random = np.random.default_rng(0)
    texts = [" ".join(f"w{n}" for n in random.integers(200, size=8)) for _ in range(400)]
    return write(tmp_path / "c.jsonl", [(f"T{i}", text) for i, text in enumerate(texts)])


@pytest.fixture
def folder(tmp_path):
    """Where indexes are kept."""
    return str(tmp_path / "cache")


def queries_of(corpus, count=40):
    """Passages as queries, a few of their words left out."""
    rows = [json.loads(line) for line in corpus.read_text().splitlines()[:count]]
    return [f"{row['title']} {' '.join(row['text'].split()[:6])}" for row in rows]


def ids(hits):
    return [[hit.document.id for hit in row] for row in hits]


def test_flat_ranks_by_inner_product_of_query_and_title_line_text(corpus, folder):
    encoder = WordEncoder()
    texts = [f"{row['title']}\n{row['text']}" for row in map(json.loads, corpus.read_text().splitlines())]
    scores = encoder.encode_queries(queries_of(corpus)) @ encoder.encode_queries(texts).T
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :3]
    hits = Dense(corpus, encoder, cache=folder).search(queries_of(corpus), 3)
    found = [[hit.score for hit in row] for row in hits]
    np.testing.assert_allclose(found, np.take_along_axis(scores, expected, 1), atol=1e-6)
    assert [row[0] for row in ids(hits)] == [str(row[0]) for row in expected]


def test_passage_text_is_title_line_text():
    assert passage_text(Document("1", "Oslo", "A city.")) == "Oslo\nA city."


def test_equal_scores_stand_in_the_order_of_the_corpus(tmp_path, folder):
    corpus = write(tmp_path / "ties.jsonl", [("a", "b"), ("c", "d"), ("a", "b"), ("a", "b")])
    assert ids(Dense(corpus, WordEncoder(), cache=folder).search(["a b"], 3)) == [["0", "2", "3"]]


def test_more_hits_than_passages_cannot_be_had(tmp_path, folder):
    corpus = write(tmp_path / "two.jsonl", [("a", "b"), ("c", "d")])
    retriever = Dense(corpus, WordEncoder(), cache=folder)
    assert ids(retriever.search(["c"], 50)) == [["1", "0"]]
    assert retriever.search([], 3) == []


@pytest.mark.parametrize(
    ("index", "agreement"), [("SQfp16", 0.99), ("IVF8,Flat", 0.8), ("HNSW16", 0.95), ("IVF8,SQfp16", 0.8)]
)
def test_other_indexes_find_what_flat_finds(corpus, folder, index, agreement):
    queries = queries_of(corpus)
    exact = ids(Dense(corpus, WordEncoder(), cache=folder).search(queries, 3))
    found = ids(
        Dense(corpus, WordEncoder(), index=index, nprobe=4 if "IVF" in index else None, cache=folder).search(queries, 3)
    )
    shared = sum(len(set(a) & set(b)) for a, b in zip(exact, found, strict=True))
    assert agreement <= shared / (3 * len(queries)) <= 1


def test_a_wider_search_finds_more_and_needs_no_new_index(corpus, folder):
    queries = queries_of(corpus)
    exact = ids(Dense(corpus, WordEncoder(), cache=folder).search(queries, 5))
    encoder = WordEncoder()

    def agreement(**settings):
        found = ids(Dense(corpus, encoder, index="IVF16,Flat", cache=folder, **settings).search(queries, 5))
        return sum(len(set(a) & set(b)) for a, b in zip(exact, found, strict=True)) / (5 * len(queries))

    assert agreement(nprobe=1) < agreement() < agreement(nprobe=16) == 1.0  # by default four clusters of sixteen
    assert encoder.passages == 400 + 400  # the training sample, here the whole corpus, and the corpus


def test_a_cluster_search_may_give_fewer_hits(tmp_path, folder):
    corpus = write(tmp_path / "c.jsonl", [("a", "b"), ("c", "d")] * 20)
    hits = Dense(corpus, WordEncoder(), index="IVF2,Flat", nprobe=1, cache=folder).search(["a b"], 30)
    assert ids(hits) == [[str(i) for i in range(0, 40, 2)]]


def test_the_mapped_index_answers_as_the_fresh_one(corpus, folder):
    encoder = WordEncoder()
    fresh = faiss.IndexFlatIP(32)
    fresh.add(encoder.encode_queries([passage_text(d) for d in Dense(corpus, encoder, cache=folder).documents]))
    scores, found = fresh.search(encoder.encode_queries(queries_of(corpus)), 4)
    loaded = Dense(corpus, encoder, cache=folder)
    hits = loaded.search(queries_of(corpus), 4)
    assert [[hit.score for hit in row] for row in hits] == scores.tolist()
    assert [set(row) for row in ids(hits)] == [set(map(str, row)) for row in found.tolist()]
    assert "index.faiss" in Path("/proc/self/maps").read_text()


def test_the_index_is_built_again_only_when_something_changes_it(corpus, folder):
    def encoded(corpus, identity="words", **settings):
        encoder = WordEncoder(identity)
        return encoder.passages, Dense(corpus, encoder, cache=folder, **settings).identity, encoder.passages

    assert [encoded(corpus)[2], encoded(corpus)[2]] == [400, 0]
    assert encoded(corpus, identity="other words")[2] == 400
    assert encoded(corpus, index="HNSW16")[2] == 400
    assert encoded(corpus, index="HNSW16", ef_search=8)[2] == 0
    write(corpus, [("a", "b"), ("c", "d")])
    os.utime(corpus, ns=(1, 1))
    assert encoded(corpus)[2] == 2


def test_identity_tells_apart_all_that_changes_an_answer(corpus, folder):
    settings = [{}, {"index": "HNSW16"}, {"index": "HNSW16", "ef_search": 8}, {"index": "IVF8,Flat"}]
    settings += [{"index": "IVF8,Flat", "nprobe": 8}]
    identities = [Dense(corpus, WordEncoder(), cache=folder, **change).identity for change in settings]
    identities.append(Dense(corpus, WordEncoder("other"), cache=folder).identity)
    assert len(set(identities)) == 6
    assert Dense(corpus, WordEncoder(), cache=folder).identity == identities[0]


def test_the_same_index_is_built_byte_for_byte(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(dense, "_TRAIN_AT_LEAST", 0)  # so that IVF4 trains on 256 of the 400

    def built(name, index):
        Dense(corpus, WordEncoder(), index=index, cache=str(tmp_path / name))
        [path] = (tmp_path / name).glob("dense-*/index.faiss")
        return path.read_bytes()

    for index in ("Flat", "HNSW16", "IVF4,Flat"):
        assert built(f"one-{index}", index) == built(f"two-{index}", index)


def test_a_build_that_dies_is_not_taken_for_complete(corpus, folder, monkeypatch):
    class Dying(WordEncoder):
        def encode_passages(self, texts):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Dense(corpus, Dying(), cache=folder)
    assert not list(Path(folder).glob("dense-*"))
    assert len(Dense(corpus, WordEncoder(), cache=folder).search(["w1"], 3)[0]) == 3


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    middle = len(content) // 2
    if how == "half":
        path.write_bytes(content[:middle])
    elif how == "flipped":
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["half", "flipped", "empty", "absent"])
@pytest.mark.parametrize("name", ["index.faiss", "checksums.json"])
def test_a_damaged_index_is_an_error_that_names_the_folder_to_remove(corpus, folder, name, how):
    Dense(corpus, WordEncoder(), cache=folder)
    [path] = Path(folder).glob("dense-*")
    damage(path / name, how)
    with pytest.raises(
        DataError, match=r"dense-\w+ is damaged: .*; remove this folder, and it is built again"
    ) as error:
        Dense(corpus, WordEncoder(), cache=folder)
    assert "\n" not in str(error.value)


def test_an_index_made_here_that_is_changed_while_it_is_used_is_an_error(corpus, folder):
    retriever = Dense(corpus, WordEncoder(), cache=folder)
    [path] = Path(folder).glob("dense-*/index.faiss")
    with open(path, "r+b") as file:
        file.write(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    with pytest.raises(DataError, match=r"index.faiss was changed while it was in use"):
        retriever.search(["w1"], 3)


def test_vectors_that_are_not_finite_are_never_searched(corpus, folder):
    class Overflowing(WordEncoder):
        def encode_queries(self, texts):
            return super().encode_queries(texts) + np.array([[np.inf if "w1" in text else 0] for text in texts], "f4")

    with pytest.raises(RetrievalError, match=r"the encoder's vector of 'T\d+ .*' is not finite: use dtype float32"):
        Dense(corpus, Overflowing(), cache=folder)
    Dense(corpus, WordEncoder(), cache=folder)
    retriever = Dense(corpus, Overflowing(), cache=folder)
    assert len(retriever.search(["w2"], 3)[0]) == 3
    with pytest.raises(RetrievalError, match="the encoder's vector of 'w1 w2' is not finite"):
        retriever.search(["w2", "w1\nw2"], 3)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"index": "Flatt"}, "FAISS makes no index of 'Flatt': could not parse"),
        ({"index": "IVF500,Flat"}, "IVF500,Flat has more clusters than .*c.jsonl has passages"),
        ({"index": "Flat", "nprobe": 4}, "index Flat takes no nprobe: leave it out"),
        ({"index": "IVF8,Flat", "ef_search": 4}, "index IVF8,Flat takes no efSearch"),
        ({"index": "IVF8,PQ7"}, "FAISS makes no index|cannot be trained"),
    ],
)
def test_settings_that_faiss_does_not_take_are_one_line(corpus, folder, settings, reason):
    encoder = WordEncoder()
    with pytest.raises(ConfigError, match=reason) as caught:
        Dense(corpus, encoder, cache=folder, **settings)
    assert "\n" not in str(caught.value)
    assert encoder.passages in (0, 400)


def test_without_faiss_the_extras_are_named(corpus, folder, monkeypatch):
    real = builtins.__import__

    def absent(name, *args, **kwargs):
        if name == "faiss":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ConfigError, match=r"FAISS is not installed.*\[cpu\].*\[gpu\]"):
        Dense(corpus, WordEncoder(), cache=folder)
