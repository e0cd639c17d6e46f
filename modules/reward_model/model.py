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
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from common.errors import ConfigError
from common.files import write_json
from common.precision import ChosenDtype
from envs.packing import by_length
from envs.score_positions import ScoreBatch, collate_scored, scored_sequences
from envs.token_ids import require_ids_of
from envs.types import Episode
from modules.decoder.fused_decoder import FusedDecoder, can_fuse
from modules.hidden_states import logprobs_of_states, read_states
from modules.policy import Policy, load_policy
from modules.reward_model.features import FEATURES, FeatureWeights, step_features

ReadAt = Literal["observation", "action"]

SCHEMA, _BEFORE = "reward_model/2", "reward_model/1"
_TOKENS = 16384  # of one forward pass


class StepHead(torch.nn.Module):
    """The score of a step: a linear function of its hidden states and, where wanted, of its features.

    The linear part starts at zero; without `features` this is the paper's bias-free linear head. With them the score
    begins as theirs, which `modules.reward_model.training` fits. `zero`, an offset, is trained only where a loss
    depends on it.

    Parameters and arithmetic are float32 in any precision of training: siblings score so close to each other that in
    bfloat16 they would tie.

    Attributes:
        features: the weights of a step's features; None leaves them out.
    """

    def __init__(self, hidden: int, features: FeatureWeights | None = None) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(hidden, 1, bias=False)
        torch.nn.init.zeros_(self.linear.weight)
        self.features = features
        self.zero = torch.nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, hidden_PD: Tensor, features_PF: Tensor | None = None, kinds: Sequence[str] = ()) -> Tensor:
        """Scores `[P]` float32 of hidden states `[P, D]`, of any float type, and features `[P, F]` of these P kinds."""
        with torch.autocast(hidden_PD.device.type, enabled=False):
            scores_P = self.linear(hidden_PD.float()).squeeze(-1) + self.zero
            if self.features is None or features_PF is None:
                return scores_P
            return scores_P + self.features(features_PF, kinds)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow a move of the module around it to a device, but not a cast, such as that of `bf16-true`."""
        return super()._apply(lambda tensor: tensor.to(fn(tensor).device), recurse)


@dataclass(slots=True)
class RewardModel:
    """Scores every step of an episode; a `StepScorer`.

    Attributes:
        policy: the backbone.
        head: maps its hidden states to scores.
        read_at: the score position of a step: the last token of its observation, or its last policy token (`action`).
        scale, offset: the calibration: `scale * raw + offset` is the log-odds that a step is the better one.
    """

    policy: Policy
    head: StepHead
    read_at: ReadAt = "observation"
    scale: float = 1.0
    offset: float = 0.0

    def raw_scores(self, batch: ScoreBatch, decoder: FusedDecoder | None = None) -> Tensor:
        """Scores before calibration at all score positions of a batch, `[P]` float32; gradients flow where enabled.

        Args:
            batch: the sequences.
            decoder: a forward pass without gradients that replaces the backbone's.
        """
        hidden_PD, features_PF = self.states(batch, decoder)
        return self.head(hidden_PD, features_PF, batch.kinds)

    def states(self, batch: ScoreBatch, decoder: FusedDecoder | None = None) -> tuple[Tensor, Tensor | None]:
        """Hidden states `[P, D]` at the score positions and, where the head reads them, features `[P, F]` of steps."""
        place_P = batch.action_P if self.read_at == "action" else batch.observed_P
        until = int(place_P.max()) + 1  # no token after the last one is run
        ids_BT, position_index_BT = batch.ids_BT[:, :until], batch.position_index_BT[:, :until]
        model = self.policy.model

        def hidden(hidden_BTD: Tensor) -> Tensor:
            return hidden_BTD[batch.row_P, place_P]

        def with_features(hidden_BTD: Tensor) -> tuple[Tensor, Tensor]:
            row_N, column_N = (position_index_BT[:, 1:] >= 0).nonzero(as_tuple=True)  # of the token before each
            step_N = position_index_BT[row_N, column_N + 1]
            logps_N, _ = logprobs_of_states(model, hidden_BTD[row_N, column_N], ids_BT[row_N, column_N + 1])
            return hidden(hidden_BTD), step_features(logps_N, step_N, batch.step_P)

        if decoder is not None:
            ends = [0] * len(ids_BT)
            for row, place in zip(batch.row_P.tolist(), place_P.tolist(), strict=True):
                ends[row] = max(ends[row], place + 1)
            rows = [ids[:end] for ids, end in zip(ids_BT.tolist(), ends, strict=True)]
            hidden_BTD = pad_sequence(decoder.last_states(rows), batch_first=True)
            return (hidden(hidden_BTD), None) if self.head.features is None else with_features(hidden_BTD)
        if self.head.features is None:
            return read_states(model, ids_BT, hidden), None
        return read_states(model, ids_BT, with_features)

    @torch.inference_mode()
    def score(self, episodes: Sequence[Episode]) -> list[Tensor]:
        """Calibrated scores of the steps of each episode, `[S]` float32; NaN for a step without policy tokens.

        Sequences of similar length share a batch. Scores depend on the other episodes by rounding alone. On a CPU the
        backbone is run by the forward pass of sampling where that fits: without padding, in fewer operations, from a
        copy of its layers' weights.

        Raises:
            DataError: the token ids of an episode are those of another tokenizer.
        """
        model = self.policy.model
        device, training = model.device, model.training
        for episode in episodes:
            where = f"reward model, question {episode.question.id}"
            require_ids_of(self.policy.tokenizer, episode.tokenizer, where)
        scores = [torch.full((len(episode.steps),), float("nan")) for episode in episodes]
        sequences = [(number, s) for number, e in enumerate(episodes) for s in scored_sequences(e) if s.positions]
        model.eval()
        decoder = FusedDecoder(model) if sequences and device.type == "cpu" and can_fuse(model) else None
        for part in by_length(sequences, length=lambda one: len(one[1].ids), tokens=_TOKENS):
            batch = collate_scored([sequence for _, sequence in part])
            raw = iter(self.raw_scores(to_device(batch, device), decoder).cpu() * self.scale + self.offset)
            for number, sequence in part:
                for position in sequence.positions:
                    scores[number][position.step] = next(raw)
        model.train(training)
        return scores

    def with_weights(self, model: PreTrainedModel, head: Mapping[str, Tensor]) -> RewardModel:
        """This reward model with other weights, such as those gathered from shards."""
        kinds = None if self.head.features is None else self.head.features.kinds
        return dataclasses.replace(self, policy=Policy(model, self.policy.tokenizer), head=_head(head, kinds))

    def save(self, folder: Path | str) -> None:
        """Write the backbone in the Hugging Face format, the head and the settings."""
        folder = Path(folder)
        self.policy.save(folder)
        save_file(
            {name: value.detach().cpu() for name, value in self.head.state_dict().items()}, folder / "head.safetensors"
        )
        features = self.head.features
        read = None if features is None else {"kinds": features.kinds, "names": FEATURES}
        settings = {"read_at": self.read_at, "scale": self.scale, "offset": self.offset, "features": read}
        write_json(folder / "reward_model.json", {"schema": SCHEMA, **settings})


def load_reward_model(model: Path, *, dtype: ChosenDtype = "float32", device: str = "auto") -> RewardModel:
    """Load what `RewardModel.save` wrote.

    Raises:
        ConfigError: there is no reward model in the folder.
    """
    folder = Path(model)
    try:
        settings = json.loads((folder / "reward_model.json").read_text(encoding="utf-8"))
        weights = load_file(folder / "head.safetensors")
        schema, features = settings.pop("schema"), settings.pop("features", None)
        if schema == _BEFORE and float(weights.pop("logp_weight")) == 0:
            schema = SCHEMA  # its head reads hidden states alone, as now
        if schema != SCHEMA or (features or {}).get("names", [*FEATURES]) != [*FEATURES]:
            raise ConfigError(f"{folder}: an earlier version made this reward model; fit it again (--force its stage)")
        head = _head(weights, None if features is None else features["kinds"])
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"no reward model at {folder}: {error!r}; give the model/ folder of a fitted PRM") from error
    policy = load_policy(str(folder), dtype=dtype, device=device)
    return RewardModel(policy, head.to(policy.model.device), **settings)


def _head(weights: Mapping[str, Tensor], kinds: Sequence[str] | None) -> StepHead:
    """The head that has these weights; it reads features of steps of these kinds, or none."""
    head = StepHead(weights["linear.weight"].shape[1], None if kinds is None else FeatureWeights(kinds))
    head.load_state_dict(weights)
    return head


def untrained_reward_model(
    policy: Policy, *, read_at: ReadAt = "observation", kinds: Sequence[str] | None = None
) -> RewardModel:
    """A policy with an untrained head, which gives 0; with `kinds` it reads the features of steps of these kinds."""
    hidden = policy.model.config.get_text_config().hidden_size
    features = None if kinds is None else FeatureWeights(kinds)
    return RewardModel(policy, StepHead(hidden, features).to(policy.model.device), read_at)


def freeze_unused_output(policy: Policy) -> None:
    """Freeze an untied output layer: only log-probabilities use it, and DDP waits for every trainable gradient."""
    output, table = policy.model.get_output_embeddings(), policy.model.get_input_embeddings()
    if output is not None and output.weight is not table.weight:
        output.requires_grad_(False)


def to_device(batch: ScoreBatch, device: torch.device) -> ScoreBatch:
    """The batch with all its tensors on a device."""
    names = ("ids_BT", "position_index_BT", "row_P", "action_P", "observed_P", "step_P")
    return dataclasses.replace(batch, **{name: getattr(batch, name).to(device) for name in names})
