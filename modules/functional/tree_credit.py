"""Credit of the decisions of a tree, whose paths are the episodes: arithmetic, and the credit functions that use it.

Configs name the credit functions as those of `modules.functional.credit`, which has them too.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from modules.functional.credit_inputs import CreditInputs
from modules.functional.gae import generalized_advantages
from modules.functional.normalization import normalize_rows


def tree_credit(
    leaf_rewards: Tensor | Sequence[float], process: Tensor | float, *, alpha: float = 0.5, beta: float = 0.5
) -> Tensor:
    """What an action of a tree is worth, a scalar: `alpha` * mean leaf reward + `beta` * process reward (SIRAG).

    Args:
        leaf_rewards: `[L]`, outcomes of the episodes that the action led to; it is in all their paths.
        process: how reasonable the action itself was, in [0, 1].

    Where one of the two is unknown (NaN) and its weight is not 0, the credit is unknown.
    """
    credit = torch.zeros(())
    if alpha:
        credit = credit + alpha * torch.as_tensor(leaf_rewards, dtype=torch.float32).mean()
    if beta:
        credit = credit + beta * torch.as_tensor(process, dtype=torch.float32).reshape(())
    return credit


def leaf_groups(outcomes_N: Tensor, tree_N: Tensor | Sequence[Hashable]) -> Tensor:
    """`[N]`: an outcome compared with all leaves of its question, plus the same within its own tree.

    Both are (value - mean) / (sample std + 1e-6), and 0 without spread: a tree of one leaf adds nothing. NaN is left
    out, 0. Source: Tree-GRPO, arXiv 2509.21240; its code adds the raw outcome where a tree has one leaf.

    Args:
        outcomes_N: `[N]`, outcomes of a question's leaves.
        tree_N: `[N]` numbers or names of the trees that they belong to.
    """
    outcomes_N = outcomes_N if outcomes_N.is_floating_point() else outcomes_N.float()
    trees: list[Hashable] = [int(tree) for tree in tree_N] if isinstance(tree_N, Tensor) else list(tree_N)
    known_N = outcomes_N.isfinite()
    own = [torch.tensor([other == tree for other in trees]) & known_N for tree in dict.fromkeys(trees)]
    weights_UN = torch.stack([known_N, *own]).to(outcomes_N.dtype)  # the first row: all leaves of the question
    return normalize_rows(outcomes_N.expand(weights_UN.shape), weights_UN, correction=1, eps=1e-6).sum(dim=0)


def node_values(
    value: Tensor | float,
    value_parent: Tensor | float,
    value_root: Tensor | float,
    leaves: Tensor | float,
    *,
    divide: bool = True,
) -> Tensor:
    """((V - V_root) + (V - V_parent)) / sqrt(leaves below), a scalar or elementwise. Source: TreeRL, arXiv 2506.11902.

    Args:
        value: V, the mean outcome of the leaves below the node.
        value_parent: that of its parent.
        value_root: that of the root, the mean of all leaves.
        leaves: how many there are below it, at least 1.
        divide: false does not divide, as TreePS-RAG (arXiv 2601.06922).
    """
    V, V_parent, V_root, count = (torch.as_tensor(x) for x in (value, value_parent, value_root, leaves))
    credit = (V - V_root) + (V - V_parent)
    return credit / count.sqrt() if divide else credit


def node_leaves(nodes_BS: Sequence[Sequence[str]], outcome_B: Tensor) -> dict[str, list[float]]:
    """By name of a node the known outcomes of the episodes whose paths it is in; each episode is one leaf of it.

    Args:
        nodes_BS: the names of the nodes on the path of each episode; empty names are none.
    """
    leaves: dict[str, list[float]] = {}
    for nodes, outcome in zip(nodes_BS, outcome_B, strict=True):
        for node in {*nodes} - {""} if outcome.isfinite() else ():
            leaves.setdefault(node, []).append(float(outcome))
    return leaves


def path_credits(nodes_NS: Sequence[Sequence[str]], outcomes_N: Tensor, *, divide: bool = True) -> Tensor:
    """`[N, S]`: `node_values` of the node that each step of a question's N paths lies in; 0 without a known leaf.

    Args:
        nodes_NS: the names of the nodes on each path, S each; steps in one node have its name, empty names are none.
        outcomes_N: `[N]`, of the paths; NaN is no leaf.
    """
    leaves, root = node_leaves(nodes_NS, outcomes_N), float(outcomes_N.nanmean())
    values = {node: sum(below) / len(below) for node, below in leaves.items()}
    credits: dict[str, float] = {"": 0.0}
    for nodes in nodes_NS:
        parent = root
        for node in dict.fromkeys(nodes):
            if node in values:
                credits[node] = float(node_values(values[node], parent, root, len(leaves[node]), divide=divide))
                parent = values[node]
    return torch.tensor([[credits.get(node, 0.0) for node in nodes] for nodes in nodes_NS])


def tree_gae_credit(
    inputs: CreditInputs, *, alpha: float = 0.5, beta: float = 0.5, gamma: float = 1.0, lam: float = 0.95
) -> Tensor:
    """SIRAG's credit, `[B, T]`: `tree_credit` on the last token of an action, generalised over its own tokens.

    An action is the part of a step that one agent wrote. Its credit holds the mean outcome of all that it led to, so
    nothing that follows is added, neither later credits nor the value of the next state. An action that is in several
    episodes has the same advantage in all of them. Where none of its leaves has a known outcome, or its process reward
    is unknown, it has none (0).

    Raises:
        MissingInput: there are no values.
    """
    mask_BT, values_BT = inputs.trained_BT, inputs.critic_values_BT
    credits_BS = _tree_credits(inputs, alpha, beta)
    known_BS = credits_BS.isfinite()
    rewards_BS = credits_BS.masked_fill(~known_BS, 0.0)
    ends_BS = inputs.step_lengths_BS.cumsum(dim=1)
    starts_BS = ends_BS - inputs.step_lengths_BS
    places_T = torch.arange(mask_BT.shape[1])
    advantages_BT = torch.zeros_like(values_BT)
    for s in range(ends_BS.shape[1]):
        inside_BT = (places_T >= starts_BS[:, s, None]) & (places_T < ends_BS[:, s, None])
        own_BT = inside_BT & mask_BT & known_BS[:, s, None]
        rewards_BT = rewards_BS[:, s, None] * (own_BT & (own_BT.cumsum(1) == own_BT.sum(1, keepdim=True)))
        advantages_BT += generalized_advantages(rewards_BT, values_BT, own_BT, gamma=gamma, lam=lam)[0]
    return advantages_BT


def _tree_credits(inputs: CreditInputs, alpha: float, beta: float) -> Tensor:
    """`[B, S]`: `tree_credit` of every step, NaN where it is unknown."""
    leaves = node_leaves(inputs.step_turns_BS, inputs.outcome_B)
    credits_BS = torch.full(inputs.step_mask_BS.shape, math.nan)
    for row, turns in enumerate(inputs.step_turns_BS):
        for column, turn in enumerate(turns):
            if outcomes := leaves.get(turn):
                process = inputs.step_rewards_BS[row, column]
                credits_BS[row, column] = tree_credit(outcomes, process, alpha=alpha, beta=beta)
    return credits_BS.masked_fill(~inputs.step_mask_BS, math.nan)


def leaf_groups_credit(inputs: CreditInputs) -> Tensor:
    """Tree-GRPO's credit, `[B, S]`: an episode compared with those of its question, and with those of its tree.

    A tree begins with the first turn of an episode. A turn that several episodes share has the mean of their
    advantages, and trains once. `leaf_groups` is its arithmetic.
    """
    advantages_B, totals_B = torch.zeros_like(inputs.outcome_B), inputs.total_B
    for rows in _by_question(inputs):
        trees = [next(filter(None, inputs.step_turns_BS[row]), str(row)) for row in rows]
        advantages_B[rows] = leaf_groups(totals_B[rows], trees)
    return advantages_B[:, None] * inputs.step_mask_BS


def node_values_credit(inputs: CreditInputs, *, divide: bool = True) -> Tensor:
    """TreeRL's credit, `[B, S]`: what the turn of a step adds to the mean rewards of the episodes that hold it.

    It is compared with the turn before it and with all episodes of the question, whatever their outcomes' spread.
    `node_values` is its arithmetic.
    """
    advantages_BS = torch.zeros(inputs.step_mask_BS.shape)
    for rows in _by_question(inputs):
        turns_NS = [inputs.step_turns_BS[row] for row in rows]
        advantages_BS[rows] = path_credits(turns_NS, inputs.total_B[rows], divide=divide)
    return advantages_BS.masked_fill(~inputs.step_mask_BS, 0.0)


def _by_question(inputs: CreditInputs) -> list[list[int]]:
    """The rows of each question."""
    rows: dict[str, list[int]] = {}
    for row, question in enumerate(inputs.questions_B):
        rows.setdefault(question, []).append(row)
    return list(rows.values())
