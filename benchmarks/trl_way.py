"""TRL's GRPOTrainer as a way of `benchmarks.rollouts` and of `benchmarks.rl_step`, in a process that may import it.

TRL lies in `.peers` (`make peers`), over the suite's own packages: both sides run the same torch and transformers. Its
episodes go through the suite's environment. Each turn of all episodes is one call of TRL's own generation with
transformers (`_generate_single_turn`, as its tool loop calls it), on contexts that are sent whole, by a `rollout_func`
as the released code of ProRAG has one. What differs from TRL's defaults makes it faster or the same as ours: no
gradient checkpointing, no logging, the suite's temperature, batch and learning rate.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

from benchmarks.equal_turns import Work, equal_turns
from benchmarks.measures import Stopwatch
from benchmarks.resending import Ids, Resending
from benchmarks.rollout_way import Sampling, policy_of, world_questions
from benchmarks.scored import Scored
from benchmarks.ways import Turns
from common.seeds import stable_hash
from envs.rollout import rollout
from modules.policy import Policy


class TRLGeneration(Resending):
    """A `Sampler` that asks a GRPOTrainer."""

    def __init__(self, policy: Policy, temperature: float, trainer: Any) -> None:
        super().__init__(policy, temperature)
        self.trainer = trainer

    def continued(self, contexts: Sequence[Ids], max_tokens: int, temperature: float) -> list[list[int]]:
        trainer = self.trainer
        trainer.generation_config.max_new_tokens = max_tokens
        trainer.generation_config.do_sample = temperature > 0
        return trainer._generate_single_turn([list(ids) for ids in contexts], None, {}, 1)[0]


def trainer_of(policy: Policy, settings: Mapping[str, Any], rewards: Any, rollout_func: Any = None) -> Any:
    """A trainer of the policy; `rewards` and `rollout_func` as TRL calls them."""
    work = Work(**settings["work"])
    micro = settings.get("micro_batch", work.episodes)
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=work.episodes // micro,
        num_generations=work.group,
        max_completion_length=work.turn_tokens,
        temperature=settings["temperature"],
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        max_steps=10**6,
        beta=0.0,
        gradient_checkpointing=False,
        bf16=False,  # as the policy was loaded
        use_cpu=settings["device"] == "cpu",
        shuffle_dataset=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **(_paged(work, settings["context"]) if settings.get("continuous") else {}),
    )
    # In the order in which `QuestionData` asks them, so that both sides train on the same ones.
    names = [question.id for question in world_questions(settings["world"])]
    data = Dataset.from_dict({"prompt": sorted(names, key=lambda name: stable_hash(0, "questions", 0, name))})
    return GRPOTrainer(
        model=policy.model,
        reward_funcs=rewards,
        args=config,
        train_dataset=data,
        processing_class=policy.tokenizer,
        rollout_func=rollout_func,
    )


def _paged(work: Work, context: int) -> dict[str, Any]:
    """Settings of continuous batching, with room for all episodes; by itself it takes half of the memory."""
    config = {"page_size": 256, "num_blocks": work.episodes * -(-context // 256)}
    return {"use_transformers_continuous_batching": True, "transformers_continuous_batching_config": config}


class Training(TrainerCallback):
    """Iterations of TRL, each when it is this way's turn, on the questions that ours gets."""

    def __init__(self, policy: Policy, settings: Mapping[str, Any], turns: Turns) -> None:
        work = Work(**settings["work"])
        corpus = Path(settings["world"]) / "data" / "corpus.jsonl"
        self._environment = equal_turns(settings["model"], work, corpus)
        self._questions = {question.id: question for question in world_questions(settings["world"])}
        self._scored, self._turns, self._iteration = Scored(policy, settings), turns, 0
        self._work = work
        self.trainer = trainer_of(policy, settings, self._rewards, self._rollout)
        self._sampler = TRLGeneration(policy, settings["temperature"], self.trainer)
        self.trainer.add_callback(self)

    def _rollout(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """What TRL calls for the completions of its prompts, each of which it repeats for its group."""
        questions = [self._questions[prompts[place]] for place in range(0, len(prompts), self._work.group)]
        watch, size, number = Stopwatch(), self._work.group, self._iteration
        episodes = rollout(
            self._environment, self._sampler, questions, seed=0, samples=size, iteration=number, pool=len(prompts)
        )
        self._scored.rollout_s = watch.read()["seconds"]
        self._episodes = episodes
        sequences = [sequence for episode in episodes for sequence in episode.sequences()]
        heads = [len(episode.prompt_ids) for episode in episodes]
        return {
            "prompt_ids": [list(one.ids[:head]) for one, head in zip(sequences, heads, strict=True)],
            "completion_ids": [list(one.ids[head:]) for one, head in zip(sequences, heads, strict=True)],
            "env_mask": [list(one.loss_mask[head:]) for one, head in zip(sequences, heads, strict=True)],
            "logprobs": None,  # it makes them itself
        }

    def _rewards(self, **_: Any) -> list[float]:
        """Rewards of the episodes of this iteration, in their order."""
        return self._scored.outcomes(self._episodes).tolist()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if self._turns.wait() is None:
            raise SystemExit
        self._iteration += 1
        self._watch = Stopwatch()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._turns.answer(self._scored.figures(self._watch, self._episodes))


def main() -> None:
    """Sample or train whenever it is this way's turn."""
    turns, settings = Turns(), json.loads(sys.argv[1])
    policy = policy_of(settings)
    if settings["train"]:
        Training(policy, settings, turns).trainer.train()
    else:
        trainer = trainer_of(policy, settings, _no_reward)
        torch.nn.Module.eval(policy.model)
        turns.serve(Sampling(TRLGeneration(policy, settings["temperature"], trainer), settings))


def _no_reward(completions: list[Any], **_: Any) -> list[float]:
    """Rewards that nobody asks for, where nothing is trained."""
    return [0.0] * len(completions)


if __name__ == "__main__":
    main()
