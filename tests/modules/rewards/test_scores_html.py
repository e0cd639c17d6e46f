"""What a notebook shows of the rewards of some episodes."""

from __future__ import annotations

import re

import torch

from modules.rewards.terms import NAN, Scores


def test_a_row_an_episode_with_a_value_a_sampled_step() -> None:
    mask_BS = torch.tensor([[True, True], [True, False]])
    step_BS = torch.tensor([[0.25, NAN], [1.0, 0.0]])
    outcome_B = torch.tensor([0.5, NAN])
    scores = Scores(step_BS, mask_BS, outcome_B, {"f1": outcome_B, "prm": step_BS}, failures={"prm": "<down>"})
    page = scores._repr_html_()
    rows = [re.findall(r">([^<>]*)</t[dh]>", row) for row in re.findall(r"<tr>.*</tr>", page)]
    assert rows == [
        ["", "outcome", "steps", "f1", "prm"],
        ["0", "0.50", "0.25 –", "0.50", "0.25 –"],
        ["1", "–", "1.00", "–", "1.00"],
    ]
    assert "<caption>2 episodes; prm failed: &lt;down&gt;</caption>" in page
