from __future__ import annotations

import math

import pytest
import torch

from modules.functional.logprobs import token_logprobs

LOGITS = torch.tensor([[[math.log(1.0), math.log(3.0)], [math.log(2.0), math.log(2.0)]]])


def test_literal_probabilities() -> None:
    logps = token_logprobs(LOGITS, torch.tensor([[1, 0]]))
    assert logps.tolist() == [[pytest.approx(math.log(0.75)), pytest.approx(math.log(0.5))]]


def test_temperature_divides_the_logits() -> None:
    logps = token_logprobs(LOGITS, torch.tensor([[1, 0]]), temperature=0.5)
    assert logps[0, 0].item() == pytest.approx(math.log(9 / 10))


def test_bfloat16_logits_are_summed_in_float32() -> None:
    logits = torch.randn((2, 3, 5000), generator=torch.Generator().manual_seed(0)).bfloat16()
    ids = torch.arange(6).view(2, 3)
    assert torch.equal(token_logprobs(logits, ids), token_logprobs(logits.float(), ids))
    assert token_logprobs(logits, ids).dtype == torch.float32


def test_a_shape_that_does_not_predict_is_refused() -> None:
    with pytest.raises(ValueError, match="do not predict"):
        token_logprobs(LOGITS, torch.tensor([[1]]))
