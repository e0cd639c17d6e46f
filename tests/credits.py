"""Credit inputs for tests that need a few of their fields: the others say as little as possible."""

from __future__ import annotations

from typing import Any

import torch

from modules.functional.credit_inputs import CreditInputs


def credit_inputs_of(**given: Any) -> CreditInputs:
    """Of episodes with these rewards; each step is a valid one of one token, kind and agent, in a turn of its own."""
    mask_BS = given["step_mask_BS"]
    lengths_BS = given.setdefault("step_lengths_BS", mask_BS.long())
    trained_BT = (
        torch.arange(int(lengths_BS.sum(dim=1).max()) if lengths_BS.numel() else 0) < lengths_BS.sum(1)[:, None]
    )
    alike = tuple(("step",) * mask_BS.shape[1] for _ in mask_BS)
    turns = tuple(tuple(f"{b}/{s}" for s in range(mask_BS.shape[1])) for b in range(len(mask_BS)))
    rest = {
        "step_kinds_BS": alike,
        "step_valid_BS": torch.ones_like(mask_BS),
        "step_turns_BS": turns,
        "step_states_BS": turns,
        "step_passages_BS": turns,
        "questions_B": tuple(f"q{b // given['group_size']}" for b in range(len(mask_BS))),
        "outcomes_BR": given["outcome_B"][:, None],
        "outcome_weights_R": torch.ones(1),
        "step_agents_BS": alike,
        "trained_BT": trained_BT,
        "old_logps_BT": torch.zeros(given.get("trained_BT", trained_BT).shape),
    }
    return CreditInputs(**(rest | given))
