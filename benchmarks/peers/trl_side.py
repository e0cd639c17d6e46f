"""TRL's GRPOTrainer on the same work, in a process that may import it.

TRL lies in `.peers` (`make peers`), over the suite's own packages: all sides run the same torch and transformers. Its
episodes go through the suite's environment. Each turn of all episodes is one call of TRL's own generation with
transformers (`_generate_single_turn`, as its tool loop calls it), on contexts that are sent whole, by a `rollout_func`.
What differs from TRL's defaults makes it faster or the same as ours: no gradient checkpointing, no logging, the suite's
temperature, batch and learning rate.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

from benchmarks.equal_turns import Work, equal_turns, variety
from benchmarks.iterations import questions_of
from benchmarks.measures import Stopwatch
from benchmarks.peers.figures import Settings, Trained, run_side
from envs.interfaces import Sampler
from envs.requests import Request
from envs.rollout import rollout
from envs.sampling import Greedy
from envs.types import Episode, Turn
from modules.policy import Policy, end_of_message


class TRLGeneration(Sampler):
    """A `Sampler` that asks a GRPOTrainer for all open requests in one batch; log-probs are not made: they are 0."""

    def __init__(self, policy: Policy, trainer: Any) -> None:
        super().__init__()
        self.policy, self.trainer = policy, trainer

    def load(self, policy: Policy) -> None:
        """The trainer has the policy."""

    def collect(self) -> list[tuple[Request, Turn]]:
        requests, self._requests = self._requests, []
        settings = self.trainer.generation_config
        settings.max_new_tokens = max(request.max_tokens or 0 for request in requests)
        settings.do_sample = not requests[0].greedy
        rows = self.trainer._generate_single_turn([list(request.prefix()) for request in requests], None, {}, 1)[0]
        return [(request, self._turn(request, row)) for request, row in zip(requests, rows, strict=True)]

    def _turn(self, request: Request, row: Sequence[int]) -> Turn:
        ids = tuple(row[: request.max_tokens])
        finish = "eos" if ids[-1] in end_of_message(self.policy) else "length"
        return request.turn(ids, (0.0,) * len(ids), finish, str(self.policy.tokenizer.decode(list(ids))))


class Training(TrainerCallback):
    """A trainer of the policy whose iterations are measured."""

    def __init__(self, policy: Policy, work: Work, settings: Settings) -> None:
        self._work, questions = work, questions_of(work, 1 + settings["repeats"])
        self._environment = equal_turns(policy.tokenizer, work)
        self._questions = {question.id: question for question in questions}
        self.episodes: list[list[Episode]] = []
        self.seconds: list[tuple[float, float, float]] = []
        self.trainer: Any = GRPOTrainer(
            model=policy.model,
            reward_funcs=self._rewards,
            args=GRPOConfig(
                output_dir=tempfile.mkdtemp(),
                per_device_train_batch_size=settings["micro_batch"],
                gradient_accumulation_steps=work.episodes // settings["micro_batch"],
                num_generations=work.group,
                max_completion_length=work.turn_tokens,
                temperature=1.0,
                learning_rate=1e-6,
                lr_scheduler_type="constant",
                max_grad_norm=1.0,
                max_steps=1 + settings["repeats"],
                beta=0.0,
                gradient_checkpointing=False,
                bf16=False,  # as the policy was loaded
                use_cpu=settings["device"] == "cpu",
                shuffle_dataset=False,
                logging_strategy="no",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict({"prompt": [question.id for question in questions]}),
            processing_class=policy.tokenizer,
            rollout_func=self._rollout,
        )
        self._sampler = TRLGeneration(policy, self.trainer)
        self.trainer.add_callback(self)

    def _rollout(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """What TRL calls for the completions of its prompts, each of which it repeats for its group."""
        questions = [self._questions[prompts[place]] for place in range(0, len(prompts), self._work.group)]
        asked = self._sampler if self.episodes else Greedy(self._sampler)
        number, size, watch = len(self.episodes), self._work.group, Stopwatch()
        episodes = rollout(
            self._environment, asked, questions, seed=0, samples=size, iteration=number, pool=len(prompts)
        )
        self._rollout_s = watch.read()["seconds"]
        self.episodes.append(episodes)
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
        return variety(self.episodes[-1]).tolist()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._watch = Stopwatch()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        read = self._watch.read()
        self.seconds.append((self._rollout_s, read["seconds"], read["cpu_seconds"]))


def trained(policy: Policy, work: Work, settings: Settings) -> Trained:
    """Iterations of `trl.GRPOTrainer`."""
    training = Training(policy, work, settings)
    training.trainer.train()
    return training.episodes, training.seconds


if __name__ == "__main__":
    run_side(trained)
