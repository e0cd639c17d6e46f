from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertForSequenceClassification

from common.errors import ConfigError, RetrievalError
from envs.retrievers.reranked import Reranked
from envs.types import Document
from tests.tiny import FixedRetriever
from tests.tiny_bert import save_tiny_bert

DOCUMENTS = [
    Document(str(n), title, text) for n, (title, text) in enumerate([("red", "stone"), ("", "blue"), ("city", "")])
]
WORDS = ["red", "blue", "stone", "city", "river"]


@pytest.fixture(scope="module", params=[1, 2])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of one score, and of two classes."""
    return cross_encoder(tmp_path_factory.mktemp("cross"), request.param)


def cross_encoder(folder: Path, labels: int) -> str:
    return save_tiny_bert(folder, WORDS, BertForSequenceClassification, num_labels=labels, max_position_embeddings=512)


def own_scores(model: str, query: str) -> list[float]:
    """Each pair alone, by transformers itself."""
    tokenizer, network = AutoTokenizer.from_pretrained(model), AutoModelForSequenceClassification.from_pretrained(model)
    pairs = [tokenizer(query, f"{one.title}\n{one.text}", return_tensors="pt") for one in DOCUMENTS]
    with torch.inference_mode():
        logits = [network.eval()(**pair).logits[0] for pair in pairs]
    return [float(one[-1] - (one[0] if len(one) == 2 else 0.0)) for one in logits]


def test_hits_are_in_the_order_of_the_cross_encoder(model: str) -> None:
    reranked = Reranked(FixedRetriever(DOCUMENTS), model, batch_size=2)
    found = reranked.search(["river city", "red"], 3)
    for query, hits in zip(["river city", "red"], found, strict=True):
        scores = own_scores(model, query)
        assert [hit.document for hit in hits] == sorted(DOCUMENTS, key=lambda one: -scores[int(one.id)])
        assert [hit.score for hit in hits] == pytest.approx(sorted(scores, reverse=True), abs=1e-5)


def test_the_order_before_and_after_is_counted(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reranked = Reranked(FixedRetriever(DOCUMENTS), model, depth=3)
    reranked.search(["river city"], 1)
    # [CLS] river city [SEP], then red stone [SEP], blue [SEP] and city [SEP]
    assert reranked.counts["cost/read_tokens/reranker"] == 3 * 4 + 3 + 2 + 2
    reranked = Reranked(FixedRetriever(DOCUMENTS), model, depth=3)
    monkeypatch.setattr(reranked, "_scores", lambda pairs: [0.0, 1.0, 2.0, 2.0, 2.0, 2.0])
    found = [[hit.document.id for hit in hits] for hits in reranked.search(["turn", "keep"], 2)]
    assert found == [["2", "1"], ["0", "1"]]
    assert reranked.counts == {"rerank/queries": 2, "rerank/new_first": 1, "rerank/new_hits": 1}


def test_the_identity_follows_retriever_and_settings(model: str) -> None:
    behind: Any = FixedRetriever(DOCUMENTS)
    assert not hasattr(Reranked(behind, model), "identity")
    behind.identity = "fixed"
    assert Reranked(behind, model).identity == Reranked(behind, model, batch_size=1).identity
    assert Reranked(behind, model).identity != Reranked(behind, model, depth=9).identity


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 0}, "depth 0 must be at least 1"),
        ({"max_tokens": 999}, "reranker .*: max_tokens 999 is more than the model's 512 positions"),
        ({"dtype": "int8"}, "reranker .*: dtype must be one of float32"),
        ({"model": "no/where/there"}, "reranker no/where/there"),
    ],
)
def test_settings_that_cannot_be_are_refused(model: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Reranked(FixedRetriever(DOCUMENTS), **({"model": model} | settings))


def test_a_model_of_other_classes_and_scores_that_are_not_finite_are_refused(tmp_path: Path, model: str) -> None:
    three = cross_encoder(tmp_path, 3)
    with pytest.raises(ConfigError, match="3 classes; give a cross-encoder with one score or two classes"):
        Reranked(FixedRetriever(DOCUMENTS), three)
    reranked = Reranked(FixedRetriever(DOCUMENTS), model)
    torch.nn.init.constant_(reranked._model.classifier.bias, float("nan"))
    with pytest.raises(RetrievalError, match="a score that is not finite"):
        reranked.search(["red"], 1)
