from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from common.errors import ConfigError
from envs.retrievers.encoder import Encoder
from tests.tiny_bert import save_tiny_bert

WORDS = ["query:", "passage:", "red", "green", "blue", "stone", "river", "city"]
TEXTS = ["red", "green river city red red blue", "", "blue stone", "city city city"]
MINILM = Path("models/all-MiniLM-L6-v2")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("bert"), WORDS)


def hidden_states(model, text):
    """Last hidden states [T, D] of one text alone, by transformers itself."""
    inputs = AutoTokenizer.from_pretrained(model)(text, return_tensors="pt")
    with torch.inference_mode():
        return AutoModel.from_pretrained(model).eval()(**inputs).last_hidden_state[0].numpy()


@pytest.mark.parametrize(
    ("pooling", "pool"), [("mean", lambda h: h.mean(0)), ("cls", lambda h: h[0]), ("last", lambda h: h[-1])]
)
def test_a_batch_is_pooled_as_each_text_alone(model, pooling, pool):
    expected = np.stack([pool(hidden_states(model, text)) for text in TEXTS])
    vectors = Encoder(model, pooling=pooling, normalize=False, batch_size=3).encode_passages(TEXTS)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_normalised_vectors_keep_their_direction(model):
    plain = Encoder(model, normalize=False).encode_queries(TEXTS)
    unit = Encoder(model).encode_queries(TEXTS)
    np.testing.assert_allclose(unit, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6)


def test_queries_and_passages_take_their_own_prefixes(model):
    bare, prefixed = Encoder(model), Encoder(model, query_prefix="query: ", passage_prefix="passage: ")
    np.testing.assert_allclose(prefixed.encode_queries(["red"]), bare.encode_queries(["query: red"]), atol=1e-6)
    np.testing.assert_allclose(prefixed.encode_passages(["red"]), bare.encode_queries(["passage: red"]), atol=1e-6)
    assert np.abs(prefixed.encode_queries(["red"]) - prefixed.encode_passages(["red"])).max() > 1e-3


def test_texts_are_cut_at_max_tokens(model):
    short = Encoder(model, max_tokens=4)  # two words between [CLS] and [SEP]
    np.testing.assert_allclose(short.encode_queries(["red blue city"]), short.encode_queries(["red blue"]), atol=1e-6)
    assert np.abs(short.encode_queries(["red city"]) - short.encode_queries(["red blue"])).max() > 1e-3


def test_no_texts_no_vectors(model):
    assert Encoder(model).encode_queries([]).shape == (0, 16)


def test_half_precision_stays_close_and_comes_back_as_float32(model):
    vectors = Encoder(model, dtype="bfloat16").encode_queries(TEXTS)
    assert vectors.dtype == np.float32
    gap = np.abs(vectors - Encoder(model).encode_queries(TEXTS)).max()
    assert 0 < gap < 0.05


def test_identity_follows_all_that_changes_vectors(model, tmp_path):
    changes = [{}, {"pooling": "cls"}, {"normalize": False}, {"max_tokens": 8}, {"dtype": "bfloat16"}]
    changes += [{"passage_prefix": "passage: "}, {"query_prefix": "query: "}]
    encoders = [Encoder(model, **{"max_tokens": 16} | change) for change in changes]
    assert len({encoder.identity for encoder in encoders}) == 7
    assert encoders[0].passage_identity == encoders[-1].passage_identity
    assert len({encoder.passage_identity for encoder in encoders}) == 6
    assert Encoder(model, max_tokens=16, batch_size=2).identity == encoders[0].identity

    other = AutoModel.from_pretrained(model)
    with torch.no_grad():
        other.embeddings.word_embeddings.weight[5] += 1
    other.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(model).save_pretrained(tmp_path)
    assert Encoder(str(tmp_path), max_tokens=16).identity != encoders[0].identity


@pytest.mark.parametrize("name", ["models/none", "./none", "/none/none"])
def test_a_missing_folder_is_named_with_the_way_out(name):
    with pytest.raises(ConfigError, match=f"{name}: no such folder; `make models`"):
        Encoder(name)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ConfigError, match="neither a model folder nor a hub id") as caught:
        Encoder(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pooling": "max"}, "pooling must be one of mean, cls, last; got 'max'"),
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"max_tokens": 257}, "max_tokens 257 is more than the model's 256 positions"),
        ({"batch_size": 0}, "at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(model, change, reason):
    with pytest.raises(ConfigError, match=reason):
        Encoder(model, **{"max_tokens": 16} | change)


@pytest.mark.skipif(not MINILM.is_dir(), reason="models/all-MiniLM-L6-v2 is absent: run `make models`")
def test_minilm_holds_alike_what_means_alike():
    encoder = Encoder(str(MINILM))
    queries = encoder.encode_queries(["A man is eating food.", "Who leads the city?"])
    passages = encoder.encode_passages(["Somebody has his meal.", "Anna Berg is the mayor of the town."])
    similarity = queries @ passages.T
    assert similarity[0, 0] > similarity[0, 1] + 0.3
    assert similarity[1, 1] > similarity[1, 0] + 0.3


def test_a_gpu_would_not_compile_a_plan_for_every_length(model, monkeypatch):
    monkeypatch.setattr("torch.backends.cuda.enable_cudnn_sdp", (said := []).append)
    Encoder(model)
    assert said == [False]
