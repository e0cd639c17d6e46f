"""A process reward model: a language model with a scalar head that scores every step in one pass (ProRAG §3.2)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from common.errors import ConfigError
from common.files import write_json
from envs.packing import by_length
from envs.score_positions import ScoreBatch, collate_scored, scored_sequences
from envs.types import Episode
from modules.hidden_states import logprobs_of_states, read_states
from modules.policy import Dtype, Policy, load_policy

ReadAt = Literal["observation", "action", "both"]

SCHEMA = "reward_model/1"
_TOKENS = 16384  # of one forward pass


class StepHead(torch.nn.Module):
    """The score of a step: a linear function of its hidden states and of the mean log-probability of its tokens.

    The linear part starts at zero. With a `logp_weight` the untrained model therefore ranks steps by the policy's own
    log-probability; with `logp_weight` 0 this is the paper's bias-free linear head. `zero`, an offset, is trained only
    where a loss depends on it.

    Parameters and arithmetic are float32 in any precision of training: siblings score so close to each other that in
    bfloat16 they would tie.
    """

    def __init__(self, hidden: int, logp_weight: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(hidden, 1, bias=False)
        torch.nn.init.zeros_(self.linear.weight)
        self.uses_logps = logp_weight != 0
        self.logp_weight = torch.nn.Parameter(torch.tensor([float(logp_weight)]), requires_grad=self.uses_logps)
        self.zero = torch.nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, hidden_PD: Tensor, logp_P: Tensor) -> Tensor:
        """Scores `[P]` float32 of hidden states `[P, D]` and mean log-probabilities `[P]` of any float type."""
        with torch.autocast(hidden_PD.device.type, enabled=False):
            return self.linear(hidden_PD.float()).squeeze(-1) + self.logp_weight * logp_P.float() + self.zero

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow a move of the module around it to a device, but not a cast, such as that of `bf16-true`."""
        return super()._apply(lambda tensor: tensor.to(fn(tensor).device), recurse)


@dataclass(slots=True)
class RewardModel:
    """Scores every step of an episode; a `StepScorer`.

    Attributes:
        policy: the backbone.
        head: maps its hidden states to scores.
        read_at: the score position of a step: the last token of its observation, its last policy token (`action`), or
            `both`: the head then reads the two hidden states side by side.
        scale, offset: the calibration: `scale * raw + offset` is the log-odds that a step is the better one.
    """

    policy: Policy
    head: StepHead
    read_at: ReadAt = "observation"
    scale: float = 1.0
    offset: float = 0.0

    def raw_scores(self, batch: ScoreBatch) -> Tensor:
        """Scores before calibration at all score positions of a batch, `[P]` float32; gradients flow where enabled."""
        hidden_PD, logp_P = position_states(self.policy, batch, self.read_at, logps=self.head.uses_logps)
        return self.head(hidden_PD, logp_P)

    @torch.inference_mode()
    def score(self, episodes: Sequence[Episode]) -> list[Tensor]:
        """Calibrated scores of the steps of each episode, `[S]` float32; NaN for a step without policy tokens.

        Sequences of similar length share a batch. Scores depend on the other episodes by rounding alone.
        """
        model = self.policy.model
        device, training = model.device, model.training
        scores = [torch.full((len(episode.steps),), float("nan")) for episode in episodes]
        sequences = [(number, s) for number, e in enumerate(episodes) for s in scored_sequences(e) if s.positions]
        model.eval()
        for part in by_length(sequences, length=lambda one: len(one[1].ids), tokens=_TOKENS):
            batch = collate_scored([sequence for _, sequence in part])
            raw = iter(self.raw_scores(to_device(batch, device)).cpu() * self.scale + self.offset)
            for number, sequence in part:
                for position in sequence.positions:
                    scores[number][position.step] = next(raw)
        model.train(training)
        return scores

    def with_weights(self, model: PreTrainedModel, head: Mapping[str, Tensor]) -> RewardModel:
        """This reward model with other weights, such as those gathered from shards."""
        return dataclasses.replace(self, policy=Policy(model, self.policy.tokenizer), head=_head(head))

    def save(self, folder: Path | str) -> None:
        """Write the backbone in the Hugging Face format, the head and the settings."""
        folder = Path(folder)
        self.policy.save(folder)
        save_file(
            {name: value.detach().cpu() for name, value in self.head.state_dict().items()}, folder / "head.safetensors"
        )
        settings = {"read_at": self.read_at, "scale": self.scale, "offset": self.offset}
        write_json(folder / "reward_model.json", {"schema": SCHEMA, **settings})


def load_reward_model(model: Path, *, dtype: Dtype = "float32", device: str = "auto") -> RewardModel:
    """Load what `RewardModel.save` wrote.

    Raises:
        ConfigError: there is no reward model in the folder.
    """
    folder = Path(model)
    try:
        settings = json.loads((folder / "reward_model.json").read_text(encoding="utf-8"))
        weights = load_file(folder / "head.safetensors")
        if settings.pop("schema") != SCHEMA:
            raise KeyError("schema")
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ConfigError(f"no reward model at {folder}: {error!r}; give the model/ folder of a fitted PRM") from error
    policy = load_policy(str(folder), dtype=dtype, device=device)
    return RewardModel(policy, _head(weights).to(policy.model.device), **settings)


def _head(weights: Mapping[str, Tensor]) -> StepHead:
    """The head that has these weights."""
    head = StepHead(weights["linear.weight"].shape[1], float(weights["logp_weight"]))
    head.load_state_dict(weights)
    return head


def untrained_reward_model(policy: Policy, *, read_at: ReadAt = "observation", logp_weight: float = 0.0) -> RewardModel:
    """A policy with an untrained head."""
    hidden = policy.model.config.get_text_config().hidden_size * (2 if read_at == "both" else 1)
    return RewardModel(policy, StepHead(hidden, logp_weight).to(policy.model.device), read_at)


def freeze_unused_output(policy: Policy) -> None:
    """Freeze an untied output layer: only log-probabilities use it, and DDP waits for every trainable gradient."""
    output, table = policy.model.get_output_embeddings(), policy.model.get_input_embeddings()
    if output is not None and output.weight is not table.weight:
        output.requires_grad_(False)


def position_states(policy: Policy, batch: ScoreBatch, read_at: ReadAt, *, logps: bool) -> tuple[Tensor, Tensor]:
    """Hidden states `[P, D]` at the score positions, and mean log-probabilities of the steps' policy tokens `[P]`.

    Read at both, the states are `[P, 2 D]`, those at the last policy tokens first. Without `logps` the
    log-probabilities are 0.
    """
    places = {"action": [batch.action_P], "observation": [batch.observed_P]}
    read_places = places.get(read_at, [batch.action_P, batch.observed_P])
    until = max(int(places_P.max()) for places_P in read_places) + 1  # no token after the last one is run
    ids_BT, position_index_BT = batch.ids_BT[:, :until], batch.position_index_BT[:, :until]

    def read(hidden_BTD: Tensor) -> tuple[Tensor, Tensor]:
        hidden_PD = torch.cat([hidden_BTD[batch.row_P, places_P] for places_P in read_places], dim=-1)
        total_P = torch.zeros(len(hidden_PD), dtype=torch.float32, device=hidden_PD.device)
        if not logps:
            return hidden_PD, total_P
        row_N, column_N = (position_index_BT[:, 1:] >= 0).nonzero(as_tuple=True)  # of the token before each
        step_N = position_index_BT[row_N, column_N + 1]
        logps_N, _ = logprobs_of_states(policy.model, hidden_BTD[row_N, column_N], ids_BT[row_N, column_N + 1])
        count_P = total_P.index_add(0, step_N, torch.ones_like(logps_N))
        return hidden_PD, total_P.index_add(0, step_N, logps_N) / count_P.clamp(min=1)

    return read_states(policy.model, ids_BT, read)


def to_device(batch: ScoreBatch, device: torch.device) -> ScoreBatch:
    """The batch with all its tensors on a device."""
    names = ("ids_BT", "position_index_BT", "row_P", "action_P", "observed_P")
    return ScoreBatch(*(getattr(batch, name).to(device) for name in names))
