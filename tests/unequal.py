"""A callback whose ranks use the model different numbers of times, as rollouts do, and the one way that is safe."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from envs.requests import Request
from envs.sampling import take_turns
from envs.types import Episode
from modules.samplers.in_process import InProcessSampler
from modules.sharding import gathered
from modules.training import Training
from tests.tiny import question


class UnequalTurns(Callback):
    """Rank r samples 2 + 3r turns before every epoch and appends their tokens to `<file>.<rank>`."""

    def __init__(self, file: str) -> None:
        self.file = file

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Training)
        pl_module.model.eval()
        with gathered(pl_module), Path(f"{self.file}.{trainer.global_rank}").open("a") as f:
            sampler = InProcessSampler(pl_module.policy, temperature=1.0)
            for number in range(2 + 3 * trainer.global_rank):
                episode = Episode(question(), tuple(range(5 + number)))
                request = Request(episode, opening_ids=(), stop=("</answer>",), max_tokens=6, seed=number)
                (turn,) = take_turns(sampler, [request])
                f.write(f"{turn.action_ids} {[round(logp, 2) for logp in turn.action_logps]}\n")
        pl_module.model.train()
