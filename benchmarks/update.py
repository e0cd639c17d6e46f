"""Supervised fine-tuning against transformers' Trainer: tokens a second of an epoch over the same episodes.

    python -m benchmarks.update --episodes runs/store/teach-…/data/episodes.jsonl [--model models/SmolLM2-135M-Instruct]

Both sides train all weights of one model by AdamW on the policy's tokens of the first `--count` episodes, `--batch` a
step, in `--precision`, and clip gradients; `--tokenizer` is the episodes', where it has tags that the model's lacks.
`suite` is `modules.sft:SFT` with the passes that `--micro-tokens` gives. `Trainer` pads each of its passes of
`--micro-batch` episodes, and is run once with each size that is given. `gradient` is the norm of the gradient of the
whole set, which shows that both do the same work. The sides take turns.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor
from transformers import Trainer as PeerTrainer
from transformers import TrainerCallback, TrainingArguments

from benchmarks.report import read_options, report
from common.errors import ConfigError
from common.precision import chosen_precision
from common.row_files import read_file
from datamodules.episode_data import EpisodeData
from datamodules.records import write_rows
from envs.packing import PackedSequence
from modules.optimizer import AdamW
from modules.policy import Policy, load_policy
from modules.sft import SFT

RATE, CLIP = 1e-5, 1.0
CPU = torch.device("cpu")


class Watch(Callback):
    """Seconds of a fit, and the norm of its last gradient."""

    seconds = gradient = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._start = time.perf_counter()

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.seconds = time.perf_counter() - self._start
        self.gradient = float(trainer.callback_metrics["grad_norm"])


class PeerWatch(TrainerCallback):
    """Seconds of a fit of transformers' Trainer, without its set-up."""

    seconds = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._start = time.perf_counter()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.seconds = time.perf_counter() - self._start


def suite(policy: Policy, stage: Path, batch: int, micro_tokens: int, precision: str) -> tuple[float, float]:
    """Seconds of an epoch, and the norm of its last gradient."""
    module = SFT(policy, AdamW(lr=RATE, warmup_steps=0, floor=1.0), control_weight=1.0)
    watch = Watch()
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        precision=precision,  # pyright: ignore[reportArgumentType]
        gradient_clip_val=CLIP,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[watch],
    )
    trainer.fit(module, EpisodeData(stage, batch_size=batch, micro_tokens=micro_tokens))
    return watch.seconds, watch.gradient


def peer(
    policy: Policy, sequences: Sequence[PackedSequence], batch: int, micro_batch: int, precision: str, folder: Path
) -> tuple[float, float]:
    """Seconds of an epoch of transformers' Trainer, and the norm of its last gradient."""
    settings = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=1,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=batch // micro_batch,
        learning_rate=RATE,
        max_grad_norm=CLIP,
        bf16=precision == "bf16-mixed",
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        remove_unused_columns=False,
        disable_tqdm=True,
    )
    rows = [{"ids": one.ids_T, "mask": one.loss_mask_T} for one in sequences]
    watch = PeerWatch()
    model = policy.model.train()
    trainer = PeerTrainer(model, settings, data_collator=padded, train_dataset=rows, callbacks=[watch])  # pyright: ignore
    trainer.train()
    return watch.seconds, [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row][-1]


def padded(rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A batch `[B, T]` as the library's models take it."""
    size = (len(rows), max(len(row["ids"]) for row in rows))
    batch = {name: torch.zeros(size, dtype=torch.long) for name in ("input_ids", "attention_mask")}
    batch["labels"] = torch.full(size, -100)
    for place, row in enumerate(rows):
        length = len(row["ids"])
        batch["input_ids"][place, :length] = row["ids"]
        batch["attention_mask"][place, :length] = 1
        batch["labels"][place, :length] = row["ids"].masked_fill(~row["mask"].bool(), -100)
    return batch


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the comparison."""
    options = read_options(
        __doc__,
        arguments,
        episodes="",
        model="models/SmolLM2-135M-Instruct",
        tokenizer="",
        count=32,
        batch=8,
        micro_tokens=1400,
        micro_batch=[1, 4],
        precision="auto",
    )
    if not Path(options.episodes).is_file():
        raise ConfigError("give --episodes: the data/episodes.jsonl of a stage, such as a teacher's")
    precision = str(chosen_precision(options.precision, CPU))
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder)
        taken = itertools.islice(read_file(Path(options.episodes), None), options.count)
        write_rows(stage / "data" / "episodes.jsonl", (row for _, row in taken))
        data = EpisodeData(stage)
        data.load()
        sides: dict[str, Any] = {
            "suite": lambda policy, batch: suite(policy, stage, batch, options.micro_tokens, precision)
        }
        for size in options.micro_batch:
            sides[f"Trainer, {size} a pass"] = lambda policy, batch, size=size: peer(
                policy, data.train, batch, min(size, batch), precision, stage / "peer"
            )
        rows = compared(sides, options, len(data.train))
    tokens = sum(len(one) for one in data.train)
    for row in rows:
        row["tokens_per_s"] = tokens / row["seconds"]
        row["ratio"] = row["seconds"] / rows[0]["seconds"]
    report(rows, options, tokens=tokens, episodes=len(data.train), precision=precision)


def compared(sides: dict[str, Any], options: Any, count: int) -> list[dict[str, Any]]:
    """A row for each side: the median of its seconds, and the gradient of all episodes in one step."""
    tokenizer = Path(options.tokenizer) if options.tokenizer else None
    load = lambda: load_policy(options.model, device="cpu", tokenizer=tokenizer)  # noqa: E731 (for every fit anew)
    gradients = {name: side(load(), count)[1] for name, side in sides.items()}  # the first fits also warm up
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.repeats):
        for name, side in sides.items():
            seconds[name].append(side(load(), options.batch)[0])
    return [{"side": name, "seconds": statistics.median(seconds[name]), "gradient": gradients[name]} for name in sides]


if __name__ == "__main__":
    main()
