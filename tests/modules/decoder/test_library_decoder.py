"""What is sampled through the library is tried once: in any number type, in evaluation mode, with rows that fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.families import tiny_config, tiny_model
from common.errors import ConfigError
from common.precision import has_fast_bfloat16
from modules.decoder.library_decoder import LibraryDecoder, require_decodable


def model_of(kind: str, **settings: Any) -> Any:
    return tiny_model(tiny_config(kind, settings))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["gemma2", "mixtral", "gpt2"])
def test_rounding_is_no_reason_to_refuse(kind: str, dtype: torch.dtype) -> None:
    require_decodable(model_of(kind).to(dtype))


def test_dropout_is_none_either_and_stays_as_it_was() -> None:
    model = model_of("gpt2").train()
    require_decodable(model)
    assert model.training
    assert model.config.resid_pdrop == 0.1


def test_a_table_of_few_positions_is_not_passed() -> None:
    require_decodable(model_of("gpt2", n_positions=4))


def test_logits_of_rows_that_depend_on_the_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("gpt2")
    own = model.transformer.wpe.forward
    monkeypatch.setattr(model.transformer.wpe, "forward", lambda ids: own(ids.amax(dim=0, keepdim=True).expand_as(ids)))
    with pytest.raises(
        ConfigError, match=r"GPT2LMHeadModel \(gpt2\) gives other logits \(by .*% of their deviation\) where"
    ):
        require_decodable(model)


@pytest.mark.parametrize("kind", ["gemma2", "mixtral", "gpt2"])
def test_logits_are_not_rounded_to_the_type_of_the_weights(kind: str) -> None:
    if has_fast_bfloat16(torch.device("cpu")):
        pytest.skip("this CPU rounds the results of its fast matmuls")
    model = model_of(kind).to(torch.bfloat16).eval()
    with torch.inference_mode():
        decoder = LibraryDecoder(model)
        decoder.rows.reserve(1, 4, ())
        logits_1V = decoder.read(0, [[5, 9, 2]], [0])
        rounded_1V = model(torch.tensor([[5, 9, 2]])).logits[:, -1]
    assert logits_1V.dtype == torch.float32
    assert not torch.equal(logits_1V, rounded_1V.float())
    assert torch.allclose(logits_1V, rounded_1V.float(), atol=2**-6)
