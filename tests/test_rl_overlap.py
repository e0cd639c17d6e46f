"""Sampling and training that overlap: in which order, and killed and resumed to the bytes of an unbroken run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Callback

from common.errors import RetrievalError
from datamodules.records import episode_from_row
from envs.rollout import independent_groups
from envs.types import Episode
from modules.samplers.vllm.engine import VLLMEngine
from modules.samplers.vllm.sampler import VLLMSampler
from tests.callbacks.test_rollout_callback import TEMPERATURE, gap
from tests.micro import run
from tests.test_rl import artifact, config, process, watched, weights
from tests.test_rl_engine import with_engine
from tests.toy_rl import learn, small_policy
from tests.vllm_server import VLLMServer, vllm_server

pytestmark = pytest.mark.usefixtures("without_reports")


@contextmanager
def engine(folder: Path) -> Iterator[tuple[VLLMServer, dict[str, Any]]]:
    """A scripted server, and the settings of a run of three iterations that overlap and sample from it."""
    with vllm_server() as server:
        made = VLLMEngine(256, dtype="float32", urls=[server.url], scratch=str(folder), timeout=20.0)
        rollout = {"sampler": VLLMSampler(made, temperature=TEMPERATURE), "overlap": 1}
        settings = {"importance_cap": 2.0, "temperature": TEMPERATURE, "data": {"updates": 2}, "lr": 1e-2}
        yield server, settings | {"rollout": rollout, "iterations": 3, "policy": small_policy()}


@pytest.mark.parametrize("dies", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_next_iteration_is_sampled_while_this_one_trains(tmp_path: Path, dies: bool) -> None:
    """The first turn of iteration 1 is asked for before the first update of iteration 0, and answered after it.

    A server that loses a turn after that update is given the weights of before the update again.
    """
    events: list[str] = []
    asked, updated = Event(), Event()
    loads: dict[int, tuple[int, int]] = {}  # updates of the server's weights before and after an iteration was sampled

    with engine(tmp_path) as (server, settings):

        def sampling(*arguments: Any, iteration: int, **given: Any) -> list[Episode]:
            def held(_: Any) -> float:
                if iteration == 1 and not asked.is_set():
                    events.append("asked")
                    asked.set()
                assert iteration != 1 or updated.wait(20)
                return 0.0

            server.delay = held
            begun = server.control().count("/update_weights")
            episodes = independent_groups(*arguments, iteration=iteration, **given)
            loads[iteration] = begun, server.control().count("/update_weights")
            events.append(f"sampled {iteration}")
            return episodes

        class Training(Callback):
            def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
                if trainer.current_epoch == 0 and batch_idx == 0:
                    assert asked.wait(20), "nothing is sampled while this iteration trains"
                if trainer.current_epoch == 0 and batch_idx == 1:
                    events.append("updated")
                    server.faults = ["hangs up"] * dies
                    updated.set()

        settings["rollout"]["sampling"] = sampling
        _, watch, metrics = learn(tmp_path, callbacks=[Training()], **settings)
    assert events == ["sampled 0", "asked", "updated", "sampled 1", "sampled 2"]
    again = int(dies)
    assert loads == {0: (0, 1), 1: (1, 1 + again), 2: (2 + again, 2 + again)}, "never while a turn is open"
    for k, sampler in enumerate([0, 0, 1]):
        assert gap(watch.before[sampler], watch.buffers[k]) <= 1e-4
    assert metrics["logp_gap/max"] == pytest.approx(gap(watch.before[2], watch.buffers[2]), rel=0.01)
    assert metrics["logp_gap/max"] > 1e-3


def test_what_ends_the_sampling_in_its_thread_ends_the_run(tmp_path: Path) -> None:
    def sampling(*arguments: Any, iteration: int, **given: Any) -> list[Episode]:
        if iteration == 1:
            raise RetrievalError("server down")
        return independent_groups(*arguments, iteration=iteration, **given)

    with engine(tmp_path) as (_, settings):
        settings["rollout"]["sampling"] = sampling
        with pytest.raises(RetrievalError, match="server down"):
            learn(tmp_path, **settings)


def overlapping(path: Path) -> Path:
    """The stage of `tests.test_rl` with overlap."""
    content = yaml.safe_load(path.read_text())
    stage = content["stages"]["rl"]
    stage["callbacks"]["rollout"]["overlap"] = 1
    stage["module"]["importance_cap"] = 2.0
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    assert run(config=overlapping(config(folder))) == 0
    return folder


@pytest.mark.parametrize("moment", ["rollout", "sampled", "update", "trained"])
def test_a_killed_run_ends_in_the_bytes_of_an_unbroken_one(tmp_path: Path, unbroken: Path, moment: str) -> None:
    """Killed while it samples ahead, between sampling and training, while it trains, and before the checkpoint."""
    path = overlapping(config(tmp_path, moment=moment))
    assert process(path).returncode == -signal.SIGKILL
    last = torch.load(artifact(tmp_path) / "checkpoints" / "last.ckpt", weights_only=True)
    (rollout,) = [state for key, state in last["callbacks"].items() if "Rollout" in key]
    (kept,) = rollout["ahead"]
    episodes = [episode_from_row(yaml.safe_load(row)) for row in kept["episodes"]]
    assert [episode.iteration for episode in episodes] == [1] * 16, "what iteration 1 trains on is safe"
    assert run(config=path) == 0
    assert watched(tmp_path, "epochs") == [0, 1, 2], "the second run goes on, it does not start again"
    assert weights(tmp_path) == weights(unbroken)


@pytest.mark.slow
def test_a_killed_run_with_an_engine_trains_on_the_same(tmp_path: Path) -> None:
    """The scripted server computes every turn alone, so here even the bytes are those of a run that was not killed."""
    with vllm_server() as server:
        whole = overlapping(with_engine(config(tmp_path / "unbroken"), server))
        assert run(config=whole) == 0
        for moment in ("sampled", "trained"):
            killed = overlapping(with_engine(config(tmp_path / moment, moment=moment), server))
            assert process(killed).returncode == -signal.SIGKILL
            assert run(config=killed) == 0
            assert weights(killed.parent) == weights(whole.parent), moment


@pytest.mark.slow
def test_each_of_two_ranks_resumes_with_its_own_episodes(tmp_path: Path) -> None:
    folders = [tmp_path / "unbroken", tmp_path / "killed"]
    paths = [overlapping(config(folder, devices=2, strategy="ddp", moment="rollout")) for folder in folders]
    (folders[0] / "runs" / "flag").touch()  # is not killed
    assert [process(path).returncode for path in paths] == [0, 128 + signal.SIGKILL]
    ended = process(paths[1])
    assert ended.returncode == 0, ended.stderr
    assert weights(folders[1]) == weights(folders[0])
