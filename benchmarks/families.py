"""Families of models: log-probs in sampling and training against a plain forward pass, as docs/models.md has them.

`python -m benchmarks.families` makes a tiny random model of each family and prints a line of the table for each; with
`--all` one of every causal language model that transformers knows, as far as it can be made this small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from benchmarks.report import read_options, report
from common.errors import ConfigError
from envs.packing import SequenceBatch, collate, pack
from envs.requests import Request
from envs.sampling import take_turns
from envs.types import Episode, Question
from modules.decoder.fused_decoder import can_fuse
from modules.functional.logprobs import token_logprobs
from modules.model_checks import require_independent_rows
from modules.policy import Policy
from modules.samplers.in_process import InProcessSampler
from modules.sequence_logprobs import logprobs_and_entropy, sequence_logprobs
from tests.tiny import byte_tokenizer

WINDOW = 12  # shorter than every prompt but the shortest
# By the names that configs have for them; a config gets those that it knows.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "word_embed_proj_dim", "lru_width"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "decoder_ffn_dim", "encoder_ffn_dim"), 48),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 24),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "v_head_dim", "qk_rope_head_dim", "head_dim", "state_size"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 256),
    **dict.fromkeys(("sliding_window", "window_size", "attention_chunk_size", "keep_window_size"), WINDOW),
    "vocab_size": 271, "num_key_value_heads": 2, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1, "rotary_dim": 4, "encoder_attention_heads": 4,
    "pad_token_id": None, "bos_token_id": None, "eos_token_id": 256,
}  # fmt: skip
MIXED = ["sliding_attention", "full_attention"]
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [3.0, 4.0, 5.0, 6.0]}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}


def _longrope(original: int) -> dict[str, Any]:
    rope = LONGROPE | {"original_max_position_embeddings": original}
    return {"sliding_window": None, "original_max_position_embeddings": original, "rope_parameters": rope}


# What is said of a family: its type and settings.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, biases, padded vocabulary, tied": (
        "llama", {"attention_bias": True, "mlp_bias": True, "vocab_size": 320, "tie_word_embeddings": True}
    ),
    "llama, linear RoPE": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama, YaRN": ("llama", {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64,
    }}),
    "llama, Llama 3 RoPE": ("llama", {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }}),
    "llama, dynamic RoPE within its context": ("llama", {"rope_parameters": DYNAMIC}),
    "llama, dynamic RoPE beyond": ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 40}),
    "qwen2": ("qwen2", {}),
    "qwen2, window": ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, window": ("mistral", {}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {"final_logit_softcapping": 5.0, "attn_logit_softcapping": 5.0, "layer_types": MIXED}),
    "gemma3_text": ("gemma3_text", {"layer_types": MIXED}),
    "phi": ("phi", {}),
    "phi3, window": ("phi3", {}),
    "phi3, LongRoPE within its original context": ("phi3", _longrope(100)),
    "phi3, LongRoPE beyond": ("phi3", _longrope(40)),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {"layer_types": MIXED}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0], "use_sliding_window": True, "layer_types": MIXED}),
    "gpt2": ("gpt2", {}),
    "gpt_neox": ("gpt_neox", {}),
    "gptj": ("gptj", {}),
    "opt": ("opt", {}),
    "mpt": ("mpt", {}),
    "qwen3_moe": ("qwen3_moe", {}),
    "mixtral": ("mixtral", {}),
    "gpt_oss": ("gpt_oss", {"layer_types": MIXED}),
    "llama4_text": ("llama4_text", {"layer_types": ["chunked_attention", "full_attention"]}),
    "stablelm": ("stablelm", {}),
    "falcon": ("falcon", {}),
    "glm4": ("glm4", {}),
    "granite": ("granite", {"logits_scaling": 3.0, "embedding_multiplier": 2.0, "residual_multiplier": 0.5}),
    "cohere": ("cohere", {"logit_scale": 0.3}),
    "cohere2": ("cohere2", {"logit_scale": 0.3, "layer_types": MIXED}),
    "starcoder2": ("starcoder2", {}),
    "gpt_neo": ("gpt_neo", {"attention_types": [[["global", "local"], 1]]}),
    "bloom": ("bloom", {}),
    "falcon, ALiBi": ("falcon", {"alibi": True}),
    "deepseek_v3": ("deepseek_v3", {"head_dim": 4, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4}),
    "hyperclovax, scaled logits": ("hyperclovax", {"logits_scaling": 3.0}),
    "mamba": ("mamba", {}),
    "rwkv": ("rwkv", {}),
    "jamba": ("jamba", {"attn_layer_period": 2, "attn_layer_offset": 1}),
    "qwen3_next": ("qwen3_next", {"layer_types": ["linear_attention", "full_attention"]}),
    "bert": ("bert", {}),
    "bart": ("bart", {}),
}  # fmt: skip
TOKENIZER = byte_tokenizer()


def tiny_config(kind: str, settings: dict[str, Any]) -> PretrainedConfig:
    """A small config of this type of model."""
    known = {field.name for field in dataclasses.fields(cast(Any, type(AutoConfig.for_model(kind))))}
    return AutoConfig.for_model(kind, **{name: size for name, size in SIZES.items() if name in known} | settings)


def tiny_model(config: PretrainedConfig) -> PreTrainedModel:
    """A random model whose log-probs differ from token to token and depend on the whole context."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim == 1:
                    weight.add_(torch.randn_like(weight) / 5)
                else:
                    weight.mul_(10)
    return model


def measured(model: PreTrainedModel) -> dict[str, Any]:
    """The largest differences of log-probs from those of a plain forward pass of each row alone.

    Raises:
        ConfigError: the model is refused.
    """
    require_independent_rows(model)
    policy = Policy(model, TOKENIZER)
    together = [_episode(number) for number in range(16)]
    _run(policy, together)
    alone = [_episode(number) for number in (3, 8, 15)]
    for episode in alone:
        _run(policy, [episode])
    batch = collate([pack(episode.sequences()[0]) for episode in together])
    with torch.no_grad():
        model.train()
        sft, grpo = sequence_logprobs(model, batch), logprobs_and_entropy(model, batch, 0.7)[0]
        model.eval()
    return {
        "forward pass": "fused" if can_fuse(model) else "plain",
        "alone": _sampling_gap(model, alone),
        "among 16": _sampling_gap(model, together),
        "greedy": "equal" if _greedy(policy) == _generated(model) else "differs",
        "SFT": _training_gap(model, together, batch, sft, 1.0),
        "GRPO": _training_gap(model, together, batch, grpo, 0.7),
    }


def _episode(number: int) -> Episode:
    """Prompts of different lengths, from 5 tokens to 45."""
    ids = tuple((7 * number + 13 * place) % 250 for place in range(5 + 5 * (number % 9)))
    return Episode(Question(f"q{number}", "?", ("a",)), ids)


def _run(policy: Policy, episodes: Sequence[Episode]) -> None:
    """Two turns, with observations of different lengths."""
    sampler = InProcessSampler(policy, temperature=1.0, batch_size=16)
    for turn in range(2):
        numbers = [int(episode.question.id[1:]) for episode in episodes]
        requests = [
            Request(episode, (5, 6), (), max_tokens=8 + 3 * turn + number % 3, seed=1000 * number + turn)
            for episode, number in zip(episodes, numbers, strict=True)
        ]
        for episode, number, sampled in zip(episodes, numbers, take_turns(sampler, requests), strict=True):
            sampled.observation_ids = tuple(range(3, 3 + number % 4 * 3))
            episode.turns.append(sampled)


@torch.no_grad()
def _plain(model: PreTrainedModel, episode: Episode, temperature: float = 1.0) -> Tensor:
    """Log-probs of the sampled tokens by a forward pass of the row alone, without padding and without a cache."""
    [row] = episode.sequences()
    ids_1T = torch.tensor([row.ids])
    logps_T = token_logprobs(model(ids_1T).logits[:, :-1], ids_1T[:, 1:], temperature)[0]
    return logps_T[torch.tensor(row.loss_mask).bool()[1:]]


def _sampling_gap(model: PreTrainedModel, episodes: Sequence[Episode]) -> float:
    gaps = []
    for episode in episodes:
        stored = torch.tensor([logp for turn in episode.turns for logp in turn.action_logps])
        gaps.append(float((stored - _plain(model, episode)).abs().max()))
    return max(gaps)


def _training_gap(
    model: PreTrainedModel, episodes: Sequence[Episode], batch: SequenceBatch, logps_BT: Tensor, temperature: float
) -> float:
    rows = zip(episodes, logps_BT, batch.loss_mask_BT, strict=True)
    return max(float((logps[mask] - _plain(model, episode, temperature)).abs().max()) for episode, logps, mask in rows)


def _greedy(policy: Policy) -> list[int]:
    [turn] = take_turns(InProcessSampler(policy), [Request(_episode(7), (), (), max_tokens=14)])
    return list(turn.action_ids)


def _generated(model: PreTrainedModel) -> list[int]:
    """Output of the library's own greedy search."""
    ids = torch.tensor([_episode(7).prompt_ids])
    settings = {"max_new_tokens": 14, "do_sample": False, "eos_token_id": TOKENIZER.eos_token_id, "pad_token_id": 0}
    return cast(Any, model).generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, ids.shape[1] :].tolist()


def line(family: str, kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    """A row of the table; of a model that is refused the reason."""
    try:
        return {"family": family, **measured(tiny_model(tiny_config(kind, settings))), "refused": None}
    except ConfigError as error:
        return {"family": family, "forward pass": "refused", "refused": str(error)}


def _all() -> Iterator[dict[str, Any]]:
    """A line for every causal language model of the library that can be made small."""
    for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        try:
            config = tiny_config(kind, {})
            with torch.device("meta"):
                size = AutoModelForCausalLM.from_config(config).num_parameters()
            if size > 4_000_000:
                raise ValueError(f"{size:,} weights at these sizes")
            tiny_model(tiny_config(kind, {}))(input_ids=torch.tensor([[5, 6, 7]]))
        except Exception as error:  # whatever a config of sizes that do not fit together raises
            yield {"family": kind, "forward pass": "not made", "refused": str(error).strip().split("\n")[0]}
            continue
        yield line(kind, kind, {})


def main() -> None:
    options = read_options(__doc__, None, all=False)
    report(list(_all()) if options.all else [line(family, *made) for family, made in FAMILIES.items()], options)


if __name__ == "__main__":
    main()
