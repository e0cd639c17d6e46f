"""Episodes of random tokens in the shape of a search agent's: a prompt, then turns that are sampled and answered."""

from __future__ import annotations

from pathlib import Path
from random import Random

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from common.seeds import stable_hash
from envs.types import Episode, Question, Step, Turn

WORLD_BASE = Path(__file__).parents[1] / "assets" / "world_base"


def load_model(folder: str, dtype: str, device: str) -> PreTrainedModel:
    """A causal language model with dropout off."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    torch.nn.Module.to(model, torch.device(device))
    return model.eval()


def made_up_episodes(
    count: int, vocabulary: int, *, turns: tuple[int, int], prompt: int = 60, sampled: int = 40, observed: int = 110
) -> list[Episode]:
    """Episodes of random tokens, always the same.

    Args:
        turns: the least and the most turns of an episode; each number is as likely.
        prompt, sampled, observed: tokens of the prompt and, of each turn, that the policy samples and then reads.
    """
    return [_episode(number, vocabulary, turns, prompt, sampled, observed) for number in range(count)]


def _episode(number: int, vocabulary: int, turns: tuple[int, int], prompt: int, sampled: int, observed: int) -> Episode:
    rng = Random(stable_hash("made up", number))

    def ids(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocabulary) for _ in range(length))

    made = [
        Turn("policy", (), ids(sampled), (-1.0,) * sampled, "stop", f"{number}/{turn}", observation_ids=ids(observed))
        for turn in range(rng.randint(*turns))
    ]
    steps = tuple(Step("query", True, ((turn, 0, sampled),)) for turn in range(len(made)))
    return Episode(Question(f"q{number}", "", ("",)), ids(prompt), made, "step_budget", "", steps)
