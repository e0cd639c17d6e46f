"""`train.py` from the outside: exit codes, one line a stage, reuse, force, dry run, signals, resume, two ranks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import train

ROOT = Path(train.__file__).parent
NUMBERS = {"target": "tests.toys:Numbers"}


def config(folder: Path, stages: dict[str, Any], **settings: Any) -> Path:
    path = folder / "x.yaml"
    settings = {"experiment": "toy", "output": str(folder / "runs"), "accelerator": "cpu", "stages": stages} | settings
    path.write_text(yaml.safe_dump(settings))
    return path


def chain(folder: Path, **settings: Any) -> Path:
    more = NUMBERS | {"count": 2, "source": "${stage:first}"}
    return config(folder, {"first": {"data": NUMBERS | {"count": 3}}, "more": {"data": more}}, **settings)


def fitting(folder: Path, epochs: int = 4, **callbacks: Any) -> Path:
    checkpoints = {"target": "lightning.pytorch.callbacks:ModelCheckpoint", "save_last": True}
    stage = {
        "module": {"target": "tests.toy_training:Slope"},
        "data": {"target": "tests.toy_training:Line"},
        "callbacks": {"checkpoints": checkpoints} | callbacks,
        "trainer": {"max_epochs": epochs},
    }
    return config(folder, {"fit": stage})


def run(path: Path, *arguments: str) -> int:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return train.main(["--config", str(path), *arguments])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def process(path: Path, *arguments: str, launcher: Sequence[str] = ()) -> subprocess.Popen[str]:
    command = [sys.executable, *launcher, str(ROOT / "train.py"), "--config", str(path), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=environment
    )


def until(condition: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def artifact(folder: Path, stage: str) -> Path:
    (found,) = [path for path in (folder / "runs" / "store").glob(f"{stage}-*") if path.suffix != ".old"]
    return found


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(artifact(folder, "fit") / "model" / "weights.pt")


def test_stages_run_in_order_and_a_second_run_finds_them_done(tmp_path: Path, capsys) -> None:
    path = chain(tmp_path)
    assert run(path) == 0
    out = capsys.readouterr().out
    assert out.index("first: finished") < out.index("more: make")
    assert (artifact(tmp_path, "more") / "data" / "all.jsonl").read_text() == "0\n1\n0\n1\n2\n"
    manifest = artifact(tmp_path, "more") / "manifest.json"
    before = manifest.read_bytes()
    assert run(path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["first:", "done,"], ["more:", "done,"]]
    assert manifest.read_bytes() == before


def test_the_manifest_and_the_experiment_say_where_things_come_from(tmp_path: Path) -> None:
    run(chain(tmp_path, seed=5))
    manifest = json.loads((artifact(tmp_path, "more") / "manifest.json").read_text())
    assert manifest["metrics"] == {"numbers": 5.0}
    assert manifest["inputs"]["first"]["artifact"] == artifact(tmp_path, "first").name
    assert (manifest["seed"], manifest["world_size"], manifest["kind"]) == (5, 1, "make")
    assert manifest["versions"]["torch"] == torch.__version__
    stages = json.loads((tmp_path / "runs" / "toy" / "seed5" / "stages.json").read_text())
    assert stages == {name: f"store/{artifact(tmp_path, name).name}" for name in ("first", "more")}
    resolved = yaml.safe_load((artifact(tmp_path, "more") / "config.yaml").read_text())
    assert resolved["data"]["source"] == str(artifact(tmp_path, "first"))


def test_headline_metrics_of_makers_are_tensorboard_scalars(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(chain(tmp_path))
    (events,) = (tmp_path / "runs" / "toy" / "seed0" / "tensorboard" / "more").iterdir()
    accumulator = EventAccumulator(str(events)).Reload()
    assert [event.value for event in accumulator.Scalars("numbers")] == [5.0]


def test_experiments_share_artifacts_without_being_told(tmp_path: Path, capsys) -> None:
    run(chain(tmp_path))
    capsys.readouterr()
    run(chain(tmp_path, experiment="ablation"), "stages.more.data.count=1")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("first: done")
    assert lines[1].startswith("more: make")


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys) -> None:
    assert run(chain(tmp_path), "--dry-run") == 0
    assert [line.split()[:4] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["first", "make", "would", "run"],
        ["more", "make", "would", "run"],
    ]
    assert not (tmp_path / "runs").exists()


def test_choosing_a_stage_leaves_the_rest(tmp_path: Path) -> None:
    assert run(chain(tmp_path), "--stage", "first", "stages.first.data.count=4") == 0
    assert [path.name.split("-")[0] for path in (tmp_path / "runs" / "store").iterdir() if path.is_dir()] == ["first"]
    assert (artifact(tmp_path, "first") / "data" / "all.jsonl").read_text() == "0\n1\n2\n3\n"


def test_force_remakes_under_the_same_name_and_keeps_the_old_one(tmp_path: Path, capsys) -> None:
    path = chain(tmp_path)
    run(path)
    made = artifact(tmp_path, "first")
    (made / "data" / "all.jsonl").write_text("spoilt\n")
    capsys.readouterr()
    assert run(path, "--force", "first") == 0
    assert (made / "data" / "all.jsonl").read_text() == "0\n1\n2\n"
    assert (made.with_name(f"{made.name}.old") / "data" / "all.jsonl").read_text() == "spoilt\n"
    reused = "more: reused, though made by other code or from an earlier input (--force more remakes)"
    assert reused in capsys.readouterr().out, "in the very run that remakes its input"
    run(path)
    assert reused in capsys.readouterr().out
    run(path, "--force", "more")
    run(path)
    assert "reused" not in capsys.readouterr().out


def test_reuse_across_changed_source_is_said(tmp_path: Path, capsys, monkeypatch) -> None:
    path = chain(tmp_path)
    run(path)
    monkeypatch.setattr("configs.stages.source_hash", lambda: "changed")
    capsys.readouterr()
    run(path)
    reused = [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if "reused, though" in line]
    assert reused == ["first", "more"]


def test_a_killed_run_that_other_code_began_says_so_and_can_be_started_over(tmp_path: Path, capsys) -> None:
    path = chain(tmp_path)
    run(path)
    made = artifact(tmp_path, "more")
    manifest = json.loads((made / "manifest.json").read_text())
    (made / "manifest.json").unlink()
    begun = {key: manifest[key] for key in ("inputs", "versions", "commit")} | {"source": "older"}
    (made / "origin.json").write_text(json.dumps(begun))
    capsys.readouterr()
    run(path)
    assert "more: goes on with what other code or inputs began (--force more starts over)" in capsys.readouterr().out
    finished = json.loads((made / "manifest.json").read_text())
    assert (finished["source"], finished["resumed_by"]["source"]) == ("older", manifest["source"])
    (made / "manifest.json").unlink()
    (made / "data" / "half.jsonl").write_text("begun\n")
    assert run(path, "--force", "more") == 0
    assert not (made / "data" / "half.jsonl").exists()
    assert "resumed_by" not in json.loads((made / "manifest.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stages.first.data.cont=1"], "error: unknown key 'cont' at stages.first.data (command line); did you mean"),
        (["stages.first.data.source=nowhere"], "error: no file or folder 'nowhere' at stages.first.data.source"),
        (["--stage", "frist"], "error: unknown stage 'frist' on the command line; did you mean 'first'?"),
        (["stages.more.data.source=${stage:more}"], "error: stages need each other in a circle: more -> more"),
    ],
)
def test_wrong_settings_exit_2_with_one_line_before_any_work(
    tmp_path: Path, capsys, arguments: list[str], message: str
) -> None:
    assert run(chain(tmp_path), *arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not (tmp_path / "runs").exists()


def test_a_missing_config_exits_2(tmp_path: Path, capsys) -> None:
    assert run(tmp_path / "none.yaml") == 2
    assert "none.yaml: No such file or directory" in capsys.readouterr().err


def test_unknown_and_shortened_flags_are_rejected(tmp_path: Path) -> None:
    for flag in ("--stages", "--dry"):
        with pytest.raises(SystemExit, match="2"):
            run(chain(tmp_path), flag)


def test_an_error_at_work_exits_1_with_one_line_and_leaves_nothing_complete(tmp_path: Path, capsys) -> None:
    path = chain(tmp_path)
    assert run(path, "stages.more.data.fails_on=0") == 1
    assert capsys.readouterr().err == "error: numbers.txt:3: not a number\n"
    assert not (artifact(tmp_path, "more") / "manifest.json").exists()
    assert (artifact(tmp_path, "first") / "manifest.json").exists()


def test_a_bug_is_not_dressed_up(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a bug"):
        run(chain(tmp_path), "stages.more.data.fails_on=0", "stages.more.data.bug=true")


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGTERM, 143, ""), (signal.SIGINT, 130, "interrupted: the same command goes on\n")],
)
def test_a_signal_in_a_maker_exits_quietly_and_leaves_nothing_complete(
    tmp_path: Path, number: int, code: int, said: str
) -> None:
    flag = tmp_path / "began"
    maker = {"target": "tests.toys:Sleeper", "seconds": 600, "flag": str(flag)}
    running = process(config(tmp_path, {"sleep": {"data": maker}}))
    until(flag.exists)
    running.send_signal(number)
    _, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (code, said)
    assert not (artifact(tmp_path, "sleep") / "manifest.json").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_broken_fit_goes_on_to_the_weights_of_an_unbroken_one(tmp_path: Path, number: int, code: int) -> None:
    """The same callbacks in both: in the unbroken run the flag is there from the start, so nothing is sent."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        (folder / "runs").mkdir(parents=True)
    arguments = {"target": "tests.toy_training:SignalOnce", "number": int(number)}
    (whole / "runs" / "flag").touch()
    assert run(fitting(whole, breaks=arguments | {"flag": str(whole / "runs" / "flag")})) == 0
    path = fitting(broken, breaks=arguments | {"flag": str(broken / "runs" / "flag")})
    first = process(path)
    first.communicate(timeout=120)
    assert first.returncode == code
    assert (artifact(broken, "fit") / "checkpoints" / "last.ckpt").exists()
    assert not (artifact(broken, "fit") / "manifest.json").exists()
    assert run(path) == 0
    assert all(torch.equal(weights(broken)[name], value) for name, value in weights(whole).items())
    epochs = [(folder / "runs" / "flag.epochs").read_text() for folder in (whole, broken)]
    assert epochs == ["0 1 2 3 ", "0 1 2 2 3 "], "the second run must go on, not start again"
    manifests = [json.loads((artifact(folder, "fit") / "manifest.json").read_text()) for folder in (whole, broken)]
    assert manifests[0]["metrics"] == manifests[1]["metrics"]


def test_a_finished_fit_is_found_without_importing_lightning(tmp_path: Path) -> None:
    path = fitting(tmp_path, epochs=1)
    assert run(path) == 0
    code = f"import sys, train; train.main(['--config', {str(path)!r}]); print('lightning' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[0].startswith("fit: done")
    assert found.stdout.splitlines()[-1] == "False"


@pytest.mark.slow
def test_two_ranks_share_the_work_and_rank_0_merges(tmp_path: Path) -> None:
    running = process(chain(tmp_path, devices=2))
    out, err = running.communicate(timeout=300)
    assert running.returncode == 0, err
    data = artifact(tmp_path, "first") / "data"
    assert [(data / f"rank-{rank}.jsonl").read_text() for rank in (0, 1)] == ["0\n2\n", "1\n"]
    assert (artifact(tmp_path, "more") / "data" / "all.jsonl").read_text() == "0\n1\n0\n2\n1\n"
    assert [line.split(":")[0] for line in out.splitlines()[:4]] == ["first", "first", "more", "more"]
    assert json.loads((artifact(tmp_path, "more") / "manifest.json").read_text())["world_size"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("bug", [False, True])
def test_one_rank_that_fails_ends_all_with_one_line(tmp_path: Path, bug: bool) -> None:
    first = {"data": NUMBERS | {"count": 3, "fails_on": 1, "bug": bug}}
    running = process(config(tmp_path, {"first": first}, devices=2))
    _, err = running.communicate(timeout=300)
    assert running.returncode == 1
    lines = [line for line in err.splitlines() if line.startswith("error:")]
    assert lines == ["error: rank 1: ValueError: a bug" if bug else "error: rank 1: numbers.txt:3: not a number"]
    assert ("Traceback" in err) == bug
    assert not (artifact(tmp_path, "first") / "manifest.json").exists()


@pytest.mark.slow
def test_a_rank_that_fails_while_fitting_ends_all_with_one_line(tmp_path: Path) -> None:
    path = fitting(tmp_path, fails={"target": "tests.toy_training:FailOnRank", "rank": 1})
    running = process(path, "devices=2")
    _, err = running.communicate(timeout=300)
    assert running.returncode == 1
    assert [line for line in err.splitlines() if "error" in line.lower()] == ["error: questions.jsonl:7: no answer"]
    assert "Traceback" not in err


@pytest.mark.slow
def test_sigterm_ends_all_ranks_of_a_fit_with_143(tmp_path: Path) -> None:
    running = process(fitting(tmp_path, epochs=1_000_000), "devices=2")
    until(lambda: list((tmp_path / "runs").glob("store/fit-*/checkpoints/last.ckpt")))
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=120)
    assert running.returncode == 143
    assert "Traceback" not in err
    assert not (artifact(tmp_path, "fit") / "manifest.json").exists()


def test_a_launcher_with_another_number_of_processes_is_refused(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert run(chain(tmp_path, devices=2)) == 2
    assert capsys.readouterr().err.startswith("error: the launcher started 3 processes, but the experiment asks for")


def test_several_machines_need_a_launcher_on_each(tmp_path: Path, capsys) -> None:
    assert run(chain(tmp_path, num_nodes=2)) == 2
    assert "start train.py with torchrun on each machine" in capsys.readouterr().err


@pytest.mark.slow
def test_two_machines_with_a_launcher_each_fit_as_one(tmp_path: Path) -> None:
    """They share the output folder; a step is over all the data, for Lightning deals it out in an order of its own."""
    whole = tmp_path / "whole"
    whole.mkdir()
    batches = "stages.fit.trainer.accumulate_grad_batches={}".format
    assert run(fitting(whole), batches(4)) == 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path, launcher = fitting(tmp_path), ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    launcher += ["--master-addr=127.0.0.1", f"--master-port={port}"]
    launchers = [[*launcher, f"--node-rank={number}"] for number in (0, 1)]
    machines = [process(path, "num_nodes=2", batches(2), launcher=launcher) for launcher in launchers]
    try:
        said = [machine.communicate(timeout=300) for machine in machines]
    finally:
        for machine in machines:
            machine.terminate()  # where one fails, the other waits for it
    assert [machine.returncode for machine in machines] == [0, 0], said
    assert [out.count("fit: finished") for out, _ in said] == [1, 0]
    assert json.loads((artifact(tmp_path, "fit") / "manifest.json").read_text())["world_size"] == 2
    assert all(torch.allclose(weights(tmp_path)[name], value, atol=1e-6) for name, value in weights(whole).items())
