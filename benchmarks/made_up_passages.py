"""Passages, vectors and queries of any number, made up by seed, for retrieval at the sizes that count."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from common.seeds import stable_hash
from envs.retrievers.dense import Dense

DIMENSION = 384  # that of all-MiniLM-L6-v2
_BLOCK = 10_000


def write_corpus(path: Path, passages: int) -> list[str]:
    """Write passages of 50 content words and a title of two; returns 1,024 queries, each 8 words of one passage."""
    random = np.random.default_rng(stable_hash("benchmark", "passages"))
    frequency = 1 / np.arange(100, 200_000)  # the Zipf-Mandelbrot law, without the hundred words most used
    frequency /= frequency.sum()
    chosen = set(random.integers(passages, size=1024).tolist())
    queries: list[str] = []
    with open(path, "w") as file:
        for start in range(0, passages, _BLOCK):
            drawn = random.choice(len(frequency), (min(_BLOCK, passages - start), 52), p=frequency)
            for number, row in enumerate(drawn.tolist(), start):
                words = [f"w{i}" for i in row]
                # The row's number stands in front of the title: `GivenVectors` knows its passage by it.
                fields = {"id": str(number), "title": " ".join([str(number), *words[:2]]), "text": " ".join(words[2:])}
                file.write(json.dumps(fields) + "\n")
                if number in chosen:
                    queries.append(" ".join(words[:50:7]))
    return queries


def clustered_vectors(count: int, dimension: int = DIMENSION) -> np.ndarray:
    """Vectors [N, D] of length 1 around a thousand centres, as those of texts are around topics."""
    random = np.random.default_rng(stable_hash("benchmark", "vectors"))
    centres = random.standard_normal((1000, dimension), dtype=np.float32)
    vectors = np.empty((count, dimension), dtype=np.float32)
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        noise = random.standard_normal((size, dimension), dtype=np.float32)
        block = centres[random.integers(len(centres), size=size)] + noise
        vectors[start : start + size] = block / np.linalg.norm(block, axis=1, keepdims=True)
    return vectors


class GivenVectors:
    """An encoder that looks up: a passage's vector by the number in its title, a query's by the number that it is.

    A query's vector is that of a passage with noise, so that it has a neighbour to be found.
    """

    identity = passage_identity = "given"

    def __init__(self, vectors_ND: np.ndarray) -> None:
        self.vectors_ND, self.dimension = vectors_ND, vectors_ND.shape[1]
        self._random = np.random.default_rng(stable_hash("benchmark", "queries"))
        picks = self._random.integers(len(vectors_ND), size=1024)
        noise = self._random.standard_normal((1024, self.dimension), dtype=np.float32) / self.dimension**0.5
        self._queries_ND = vectors_ND[picks] + 0.5 * noise

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors [N, D] of passages."""
        return self.vectors_ND[[int(text.split(maxsplit=1)[0]) for text in texts]]

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors [N, D] of queries "0" to "1023"."""
        return self._queries_ND[[int(text) for text in texts]]


class EncodesQueries:
    """A real encoder for queries beside given vectors of passages: what a search costs, without encoding a corpus."""

    identity = passage_identity = "queries"

    def __init__(self, encoder: Any, vectors_ND: np.ndarray) -> None:
        self._encoder, self._given, self.dimension = encoder, GivenVectors(vectors_ND), vectors_ND.shape[1]

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors [N, D] of passages, looked up."""
        return self._given.encode_passages(texts)

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors [N, D] of queries, encoded."""
        return self._encoder.encode_queries(texts)


def publish(path: Path, factory: str, vectors_ND: np.ndarray) -> None:
    """Train, fill and write a FAISS index."""
    index = faiss.index_factory(vectors_ND.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    clusters = faiss.try_extract_index_ivf(index)
    sample = vectors_ND if clusters is None else vectors_ND[: 64 * clusters.nlist]  # the order is random already
    index.train(sample)
    index.add(vectors_ND)
    faiss.write_index(index, str(path))


def served(folder: str, encoder: str | None = None) -> Dense:
    """The retriever that the server serves: a flat index of the folder, queries by `encoder` or one of MiniLM's shape.

    The weights of the latter are random, which costs the same.
    """
    from envs.retrievers.encoder import Encoder

    here = Path(folder)
    model = Encoder(encoder or random_encoder(here / "encoder"))
    stored: Any = faiss.read_index(str(here / "Flat.index"))
    both: Any = EncodesQueries(model, stored.reconstruct_n(0, stored.ntotal))
    return Dense(here / "corpus.jsonl", both, index_file=here / "Flat.index", cache=str(here / "cache"))


def random_encoder(folder: Path) -> str:
    """A BERT of MiniLM's shape with random weights over made-up words, written once."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    if not folder.is_dir():
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *_words()]
        tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        with torch.random.fork_rng():
            torch.manual_seed(0)
            shape: dict[str, Any] = {"hidden_size": DIMENSION, "num_hidden_layers": 6, "num_attention_heads": 12}
            BertModel(BertConfig(vocab_size=len(words), intermediate_size=1536, **shape)).save_pretrained(folder)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return str(folder)


def _words() -> Iterator[str]:
    return (f"w{i}" for i in range(30_000))
