from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from peft import LoraConfig
from transformers import Phi3Config, Phi3ForCausalLM

from common.errors import ConfigError
from envs.requests import Request
from envs.sampling import Greedy, take_turns
from envs.types import Episode, Question
from modules.decoder.fused_decoder import FusedDecoder
from modules.functional.logprobs import token_logprobs
from modules.functional.token_choice import uniforms
from modules.policy import Policy
from modules.samplers.in_process import InProcessSampler
from tests.tiny import byte_tokenizer, tiny_policy

TOKENIZER = byte_tokenizer()
POLICY = tiny_policy(TOKENIZER, scale=3.0)
STOP = ("</step>", "ab")


def episode(number: int) -> Episode:
    """Prompts of different lengths, the same for the same number."""
    ids = tuple((7 * number + 13 * j) % 250 for j in range(5 + 11 * (number % 7)))
    return Episode(Question(f"q{number}", "?", ("a",)), ids)


def run_turns(sampler: InProcessSampler, episodes: Sequence[Episode], turns: int = 3) -> None:
    """Several turns with openings and observations of different lengths."""
    for turn in range(turns):
        requests = [
            Request(e, (5, 6), STOP, max_tokens=8 + 3 * turn, seed=1000 * int(e.question.id[1:]) + turn)
            for e in episodes
        ]
        for e, sampled in zip(episodes, take_turns(sampler, requests), strict=True):
            sampled.observation_ids = tuple(range(3, 3 + int(e.question.id[1:]) % 4 * 5))
            e.turns.append(sampled)


def training_logps(policy: Policy, e: Episode, temperature: float = 1.0) -> tuple[list[float], list[float]]:
    """Stored log-probs and those of one fresh forward pass over the training view."""
    [row] = e.sequences()
    ids = torch.tensor([row.ids])
    with torch.no_grad():
        fresh = token_logprobs(policy.model(ids).logits[:, :-1], ids[:, 1:], temperature)[0].tolist()
    sampled = [t for t, on in enumerate(row.loss_mask) if on]
    return [row.logps[t] for t in sampled], [fresh[t - 1] for t in sampled]


def ties(policy: Policy, e: Episode, temperature: float) -> int:
    """Sampled tokens whose random number lies within 1e-6 of a border: there rounding may choose the neighbour."""
    count, context = 0, list(e.prompt_ids)
    for number, turn in enumerate(e.turns):
        context += turn.opening_ids
        ids = torch.tensor([context + list(turn.action_ids)])
        with torch.no_grad():
            logits = policy.model(ids).logits[0, len(context) - 1 : -1]
        steps = torch.arange(len(turn.action_ids))
        seeds = torch.full_like(steps, 1000 * int(e.question.id[1:]) + number)
        borders = torch.softmax(logits.double() / temperature, -1).cumsum(-1)
        count += int(((borders - uniforms(seeds, steps)[:, None]).abs().amin(-1) < 1e-6).sum())
        context += [*turn.action_ids, *turn.observation_ids]
    return count


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_stored_logprobs_equal_a_training_forward(temperature: float) -> None:
    sampler = InProcessSampler(POLICY, temperature=temperature, batch_size=8)
    episodes = [episode(n) for n in range(20)]
    run_turns(sampler, episodes)
    for e in episodes:
        stored, fresh = training_logps(POLICY, e, temperature)
        assert stored == pytest.approx(fresh, abs=1e-4)
    assert {"stop", "length"} <= {turn.finish for e in episodes for turn in e.turns}


def test_an_episode_alone_and_among_64_is_the_same() -> None:
    sampler = InProcessSampler(POLICY, temperature=1.0, batch_size=64)
    together = [episode(n) for n in range(64)]
    run_turns(sampler, together)
    tied = 0
    for n in range(64):
        alone = episode(n)
        run_turns(InProcessSampler(POLICY, temperature=1.0), [alone])
        if ties(POLICY, alone, 1.0):
            tied += 1
            continue
        for a, b in zip(alone.turns, together[n].turns, strict=True):
            assert a.action_ids == b.action_ids
            assert a.action_logps == pytest.approx(b.action_logps, abs=1e-4)
    assert tied <= 2


def test_the_order_of_the_requests_is_kept_whatever_the_batches() -> None:
    requests = [Request(episode(n), (), (), max_tokens=5, seed=n) for n in range(11)]
    large = take_turns(InProcessSampler(POLICY, temperature=1.0, batch_size=64), requests)
    small = take_turns(InProcessSampler(POLICY, temperature=1.0, batch_size=3), requests)
    assert [t.uid for t in large] == [f"q{n}/0/0/0" for n in range(11)] == [t.uid for t in small]
    assert [t.action_ids for t in large] == [t.action_ids for t in small]


def test_greedy_equals_the_library_generate() -> None:
    e = episode(5)
    [turn] = take_turns(InProcessSampler(POLICY, temperature=0.0), [Request(e, (), (), max_tokens=12)])
    ids = torch.tensor([e.prompt_ids])
    expected = POLICY.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    assert list(turn.action_ids) == expected[0, len(e.prompt_ids) :].tolist()


def test_the_end_of_message_token_ends_a_turn() -> None:
    policy = tiny_policy(TOKENIZER, scale=0.0)
    with torch.no_grad():  # all logits equal but the end's
        policy.model.lm_head.weight[TOKENIZER.eos_token_id] = 1.0  # pyright: ignore
        policy.model.model.norm.weight.fill_(1.0)  # pyright: ignore
    requests = [Request(episode(n), (), STOP, max_tokens=9) for n in range(6)]
    turns = take_turns(InProcessSampler(policy, temperature=0.0), requests)
    ended = [t for t in turns if t.finish == "eos"]
    assert ended
    assert all(t.action_ids[-1] == TOKENIZER.eos_token_id and t.action_ids.count(t.action_ids[-1]) == 1 for t in ended)


def test_a_lora_policy_samples_with_its_adapter() -> None:
    policy = tiny_policy(TOKENIZER, scale=3.0)
    policy.model.add_adapter(LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    sampler, e = InProcessSampler(policy, temperature=1.0), episode(4)
    run_turns(sampler, [e])
    stored, fresh = training_logps(policy, e)
    assert stored == pytest.approx(fresh, abs=1e-4)
    _, without = training_logps(POLICY, e)
    assert max(abs(a - b) for a, b in zip(stored, without, strict=True)) > 1e-3


def test_a_bfloat16_policy_is_close_to_its_training_forward() -> None:
    policy = tiny_policy(TOKENIZER, scale=1.0)
    policy.model.to(torch.bfloat16)
    episodes = [episode(n) for n in range(8)]
    run_turns(InProcessSampler(policy, temperature=1.0), episodes)
    for e in episodes:
        stored, fresh = training_logps(policy, e)
        assert stored == pytest.approx(fresh, abs=0.15)


def test_layers_that_cannot_be_continued_are_refused() -> None:
    policy = tiny_policy(TOKENIZER)
    policy.model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(ConfigError, match=r"Qwen3ForCausalLM \(qwen3\) has layers of linear_attention, which"):
        InProcessSampler(policy)


def test_generating_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    run_turns(InProcessSampler(POLICY, temperature=1.0), [episode(1)])
    assert torch.equal(torch.rand(1), expected)


def test_writes_are_fast_while_it_samples_and_deterministic_again_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit asks PyTorch for determinism, whose way of writing keys and values copies whole buffers on a GPU."""
    modes: list[int] = []
    read = FusedDecoder.read

    def noting(self: FusedDecoder, *arguments: Any) -> torch.Tensor:
        modes.append(torch.get_deterministic_debug_mode())
        if len(modes) == 2:
            raise RuntimeError("no memory is left")
        return read(self, *arguments)

    monkeypatch.setattr(FusedDecoder, "read", noting)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        run_turns(InProcessSampler(POLICY), [episode(1)], turns=1)
        assert torch.get_deterministic_debug_mode() == 1
        with pytest.raises(RuntimeError, match="no memory is left"):
            run_turns(InProcessSampler(POLICY), [episode(1)], turns=1)
        assert torch.get_deterministic_debug_mode() == 1
        assert modes == [0, 0]
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_model_of_another_kind_is_sampled_through_the_library() -> None:
    policy = tiny_policy(TOKENIZER, scale=3.0)
    policy.model = type(policy.model)(
        type(policy.model.config)(**policy.model.config.to_dict() | {"hidden_act": "gelu"})
    )
    policy.model.eval()
    episodes = [episode(n) for n in range(9)]
    run_turns(InProcessSampler(policy, temperature=1.0, batch_size=4), episodes)
    for e in episodes:
        stored, fresh = training_logps(policy, e)
        assert stored == pytest.approx(fresh, abs=1e-4)


@pytest.mark.gpu
def test_the_gpu_samples_the_same_tokens_in_float32() -> None:
    policy = tiny_policy(TOKENIZER, scale=3.0)
    policy.model.to("cuda")
    on_gpu, on_cpu = [episode(n) for n in range(16)], [episode(n) for n in range(16)]
    run_turns(InProcessSampler(policy, temperature=1.0), on_gpu)
    run_turns(InProcessSampler(POLICY, temperature=1.0), on_cpu)
    same = [
        [t.action_ids for t in a.turns] == [t.action_ids for t in b.turns]
        for a, b in zip(on_gpu, on_cpu, strict=True)
        if not ties(POLICY, b, 1.0)
    ]
    assert all(same)


def longrope(original: int) -> Policy:
    """A Phi-3 whose frequencies change once the longest row of a batch is longer than this."""
    config = Phi3Config(
        vocab_size=len(TOKENIZER), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, max_position_embeddings=256, original_max_position_embeddings=original, pad_token_id=None,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
            "original_max_position_embeddings": original,
        },
    )  # fmt: skip
    return Policy(Phi3ForCausalLM(config).eval(), TOKENIZER)


def test_a_turn_past_the_context_at_which_positions_change_is_refused_before_it_begins() -> None:
    [turn] = take_turns(InProcessSampler(longrope(26)), [Request(episode(1), (), (), max_tokens=10)])  # of 16 tokens
    assert len(turn.action_ids) <= 10
    expected = "a row of 26 tokens is too long for phi3: it has LongRoPE positions, which follow the longest row beyond"
    with pytest.raises(ConfigError, match=f"{expected} 25 tokens; give rows of 25 at most"):
        take_turns(InProcessSampler(longrope(25)), [Request(episode(1), (), (), max_tokens=10)])


@pytest.mark.parametrize(
    "settings", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"batch_size": 0}, {"kept_gb": -1.0}]
)
def test_settings_out_of_range_are_refused(settings: dict) -> None:
    with pytest.raises(ConfigError, match="must be"):
        InProcessSampler(POLICY, **settings)


def test_a_greedy_request_among_sampled_ones_is_answered_as_by_a_greedy_sampler() -> None:
    def requests(greedy: Sequence[bool]) -> list[Request]:
        return [Request(episode(n), (5,), STOP, max_tokens=8, seed=n, greedy=on) for n, on in enumerate(greedy)]

    mixed = take_turns(InProcessSampler(POLICY, temperature=1.0), requests([n % 2 == 0 for n in range(8)]))
    sampled = take_turns(InProcessSampler(POLICY, temperature=1.0), requests([False] * 8))
    greedy = take_turns(InProcessSampler(POLICY, temperature=0.0), requests([False] * 8))
    through = take_turns(Greedy(InProcessSampler(POLICY, temperature=1.0)), requests([False] * 8))
    for n, turn in enumerate(mixed):
        assert turn.action_ids == (sampled if n % 2 else greedy)[n].action_ids
    assert [turn.action_ids for turn in through] == [turn.action_ids for turn in greedy]
    assert [turn.action_ids for turn in greedy] != [turn.action_ids for turn in sampled]


def test_what_finished_greedily_is_told_by_the_request_that_was_made() -> None:
    sampler = Greedy(InProcessSampler(POLICY, temperature=1.0))
    asked = Request(episode(1), (5,), STOP, max_tokens=3)
    sampler.submit([asked])
    [(request, _)] = sampler.collect()
    assert request is asked
