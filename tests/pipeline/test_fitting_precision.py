"""What a fit computes in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.pipeline.test_fitting import fitted
from tests.toy_training import Slope


@pytest.mark.parametrize(("features", "precision"), [({"amx_bf16": True}, "bf16-mixed"), ({}, "32-true")])
def test_precision_auto_is_chosen_by_the_processor(
    features: dict[str, bool], precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    monkeypatch.setattr(Slope, "on_fit_start", lambda self: seen.append(str(self.trainer.precision)), raising=False)
    fitted(tmp_path, precision="auto")
    assert seen == [precision]
