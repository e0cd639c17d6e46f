"""A process reward model: a language model with a scalar head, read once a step (ProRAG §3.2; read in one pass)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from common.errors import ConfigError
from common.files import write_json
from envs.score_positions import ReadBatch, ReadSequence, collate_reads, read_sequences
from envs.types import Episode
from modules.functional.logprobs import token_logprobs
from modules.policy import Dtype, Policy, load_policy

ReadAt = Literal["observation", "action"]

SCHEMA = "reward_model/1"
_TOKENS = 16384  # of one forward pass


class StepHead(torch.nn.Module):
    """The score of a step: a linear function of its hidden state and of the mean log-probability of its tokens.

    It begins as `logp_weight` times the latter alone, so with a weight the untrained model ranks steps as the policy
    itself does, and without one it is the paper's bias-free linear head. `zero` stays 0 unless a loss asks for one.
    """

    def __init__(self, hidden: int, logp_weight: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(hidden, 1, bias=False)
        torch.nn.init.zeros_(self.linear.weight)
        self.reads_logps = logp_weight != 0
        self.logp_weight = torch.nn.Parameter(torch.tensor([float(logp_weight)]), requires_grad=self.reads_logps)
        self.zero = torch.nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, hidden_RD: Tensor, logp_R: Tensor) -> Tensor:
        linear_R = self.linear(hidden_RD.to(self.linear.weight.dtype)).squeeze(-1)
        return linear_R + self.logp_weight * logp_R + self.zero


@dataclass(slots=True)
class RewardModel:
    """Scores every step of an episode; a `StepScorer`.

    Attributes:
        policy: the backbone.
        head: what reads it.
        read_at: a step is read at the last token of its observation, or at its last policy token.
        scale, offset: the calibration: `scale * raw + offset` is the log-odds that a step is the better one.
    """

    policy: Policy
    head: StepHead
    read_at: ReadAt = "observation"
    scale: float = 1.0
    offset: float = 0.0

    def read(self, batch: ReadBatch) -> Tensor:
        """Raw scores of all readings of a batch, `[R]` float32; with gradients where they are on."""
        hidden_RD, logp_R = read_states(self.policy, batch, self.read_at, logps=self.head.reads_logps)
        return self.head(hidden_RD, logp_R).float()

    @torch.inference_mode()
    def score(self, episodes: Sequence[Episode]) -> list[Tensor]:
        """Calibrated scores of the steps of each episode, `[S]` float32; NaN for a step that the policy did not write.

        Sequences of like length share a batch; what else is scored does not matter beyond rounding.
        """
        model = self.policy.model
        device, training = model.device, model.training
        scores = [torch.full((len(episode.steps),), float("nan")) for episode in episodes]
        held = [(number, s) for number, e in enumerate(episodes) for s in read_sequences(e) if s.readings]
        model.eval()
        for part in _batches(held):
            batch = collate_reads([sequence for _, sequence in part])
            raw = iter(self.read(to_device(batch, device)).cpu() * self.scale + self.offset)
            for number, sequence in part:
                for reading in sequence.readings:
                    scores[number][reading.step] = next(raw)
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
    """A policy with a head that has learnt nothing."""
    hidden = policy.model.config.get_text_config().hidden_size
    return RewardModel(policy, StepHead(hidden, logp_weight).to(policy.model.device), read_at)


def read_states(policy: Policy, batch: ReadBatch, read_at: ReadAt, *, logps: bool) -> tuple[Tensor, Tensor]:
    """Hidden states `[R, D]` at the reading positions, and mean log-probabilities of the steps' tokens `[R]`.

    The latter are 0 where they are not asked for.
    """
    places_R = batch.observed_R if read_at == "observation" else batch.action_R
    until = int(places_R.max()) + 1  # what comes after the last reading, an unread observation for one, is not run
    ids_BT, reading_BT = batch.ids_BT[:, :until], batch.reading_BT[:, :until]
    written_T = (reading_BT >= 0).any(dim=0)
    written_T[0] = False
    columns_K = written_T.nonzero().squeeze(-1) if logps else places_R[:1] + 1  # not none: that would be all
    # Through the model itself and not its backbone: a sharded model gathers its weights when it is called.
    output = policy.model(
        input_ids=ids_BT,
        logits_to_keep=columns_K - 1,
        output_hidden_states=True,
    )
    hidden_RD = cast(Tensor, output.hidden_states[-1][batch.row_R, places_R])
    logp_R = torch.zeros(len(places_R), device=hidden_RD.device)
    if not logps:
        return hidden_RD, logp_R
    logps_BK = token_logprobs(output.logits, ids_BT[:, columns_K])
    reading_BK = reading_BT[:, columns_K]
    mine = reading_BK >= 0
    total_R = logp_R.index_add(0, reading_BK[mine], logps_BK[mine])
    count_R = torch.zeros_like(logp_R).index_add(0, reading_BK[mine], torch.ones_like(logps_BK[mine]))
    return hidden_RD, total_R / count_R.clamp(min=1)


def to_device(batch: ReadBatch, device: torch.device) -> ReadBatch:
    """The batch with all its tensors on a device."""
    names = ("ids_BT", "reading_BT", "row_R", "action_R", "observed_R")
    return ReadBatch(*(getattr(batch, name).to(device) for name in names))


def _batches(held: list[tuple[int, ReadSequence]]) -> Iterator[list[tuple[int, ReadSequence]]]:
    """Longest first, so that little is padded; a batch has as many rows as its longest allows."""
    order = sorted(held, key=lambda item: -len(item[1].ids))
    while order:
        rows = max(1, _TOKENS // len(order[0][1].ids))
        yield order[:rows]
        order = order[rows:]
