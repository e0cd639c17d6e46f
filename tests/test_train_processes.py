"""`train.py` as processes: signals and resume, several ranks, several machines."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import forked
from tests.toy_runs import NUMBERS, ROOT, artifact, chain, config, fitting, run, until, weights

pytestmark = pytest.mark.usefixtures("without_reports")


def interrupted(
    number: int, path: Path | str, said: str = "kept: 0 of 1 stages", python: str = sys.orig_argv[0]
) -> str:
    """The line of a run of `path` that a signal ends."""
    name, command = signal.Signals(number).name, f"{python} {ROOT / 'train.py'} --config {path}"
    return f"interrupted ({name}); {said}; to resume: {command}\n"


def started(path: Path, *arguments: str, **settings: Any) -> subprocess.Popen[str]:
    return forked.start("--config", str(path), *arguments, **settings)


def sleeping(folder: Path, seconds: float = 600, **settings: Any) -> tuple[Path, Path]:
    """An experiment whose one stage sleeps, and the flag that it sets before."""
    flag = folder / "began"
    maker = {"target": "tests.toys:Sleeper", "seconds": seconds, "flag": str(flag)}
    return config(folder, {"sleep": {"data": maker}}, **settings), flag


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_a_maker_says_how_to_resume_and_leaves_nothing_complete(tmp_path: Path, number: int) -> None:
    path, flag = sleeping(tmp_path)
    running = started(path)
    until(flag.exists)
    running.send_signal(number)
    _, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (128 + number, interrupted(number, path))
    assert not (artifact(tmp_path, "sleep") / "manifest.json").exists()


def test_ctrl_c_while_libraries_are_imported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "omegaconf.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    command = [sys.executable, str(ROOT / "train.py"), "--config", "x.yaml"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    line = interrupted(signal.SIGINT, "x.yaml", "nothing has begun", sys.executable)
    assert (done.returncode, done.stderr) == (130, line)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_lost_terminal_or_ctrl_c_ends_all_ranks_with_one_line_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Both go to all processes of the terminal."""
    (temporary := tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    path, flag = sleeping(tmp_path, devices=2)
    running = started(path, start_new_session=True)
    until(flag.exists)
    os.killpg(running.pid, number)
    _, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (128 + number, interrupted(number, path))
    assert not list(temporary.iterdir())
    assert not list((tmp_path / "runs").rglob("*.tmp"))


def test_nohup_is_respected(tmp_path: Path) -> None:
    path, flag = sleeping(tmp_path, 1)
    running = started(path, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))  # all that nohup does
    until(flag.exists)
    running.send_signal(signal.SIGHUP)
    running.communicate(timeout=120)
    assert running.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_rank_or_a_launcher_that_is_to_end_ends_all_of_a_fit_and_is_all_that_is_said(
    tmp_path: Path, number: int
) -> None:
    """The other rank fails too, for it waits for the killed one; how it fails is no news."""
    killed = number == signal.SIGKILL
    running = started(fitting(tmp_path, epochs=1_000_000), "devices=2")
    until(lambda: list((tmp_path / "runs").glob("store/fit-*/checkpoints/last.ckpt")), seconds=300)
    os.kill(ranks_of(running.pid)[1] if killed else running.pid, number)
    _, err = running.communicate(timeout=120)
    assert running.returncode == 128 + number
    said = "error: rank 1 was killed (SIGKILL, often for lack of memory): run the same command to resume"
    kept = r"interrupted \(SIGTERM\); kept: 0 of 1 stages, and fit up to its checkpoint of \d+ s ago; to resume: .*"
    assert re.fullmatch(re.escape(said) if killed else kept, err.splitlines()[0])
    assert killed or err.count("\n") == 1
    assert "Traceback" not in err
    assert not (artifact(tmp_path, "fit") / "manifest.json").exists()


def breaking(folder: Path, **arguments: Any) -> Path:
    """A fit that a signal breaks once: with the flag there from the start, it is whole."""
    flag = folder / "runs" / "flag"
    flag.parent.mkdir(parents=True)
    return fitting(folder, breaks={"target": "tests.toy_training:SignalOnce", "flag": str(flag)} | arguments)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fit that nothing breaks, with the same callbacks."""
    folder = tmp_path_factory.mktemp("whole")
    path = breaking(folder)
    (folder / "runs" / "flag").touch()
    assert run(path) == 0
    return folder


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_broken_fit_goes_on_to_the_weights_of_an_unbroken_one(
    tmp_path: Path, whole: Path, number: int, code: int
) -> None:
    path = breaking(tmp_path, number=int(number))
    assert forked.run("--config", str(path)).returncode == code
    assert (artifact(tmp_path, "fit") / "checkpoints" / "last.ckpt").exists()
    assert not (artifact(tmp_path, "fit") / "manifest.json").exists()
    assert run(path) == 0
    assert all(torch.equal(weights(tmp_path)[name], value) for name, value in weights(whole).items())
    epochs = [(folder / "runs" / "flag.epochs").read_text() for folder in (whole, tmp_path)]
    assert epochs == ["0 1 2 3 ", "0 1 2 2 3 "], "the second run must go on, not start again"
    manifests = [json.loads((artifact(folder, "fit") / "manifest.json").read_text()) for folder in (whole, tmp_path)]
    assert manifests[0]["metrics"] == manifests[1]["metrics"]


@pytest.mark.slow
def test_a_broken_fit_of_three_ranks_ends_in_the_bytes_of_an_unbroken_one(tmp_path: Path) -> None:
    """From three ranks on the sum of a gradient depends on its place among those that DDP sends together."""
    large = ("devices=3", "stages.fit.module.hidden=700", "stages.fit.module.lr=1e-3")
    paths = [str(breaking(tmp_path / name)) for name in ("whole", "broken")]
    (tmp_path / "whole" / "runs" / "flag").touch()
    assert "rank" in forked.run("--config", paths[1], *large).stderr
    for path in paths:
        ended = forked.run("--config", path, *large)
        assert (ended.returncode, "error" in ended.stderr) == (0, False)
    whole, broken = weights(tmp_path / "whole"), weights(tmp_path / "broken")
    assert all(torch.equal(broken[name], value) for name, value in whole.items())


@pytest.mark.slow
def test_two_ranks_share_the_work_and_rank_0_merges(tmp_path: Path) -> None:
    ended = forked.run("--config", str(chain(tmp_path, devices=2)))
    assert ended.returncode == 0, ended.stderr
    data = artifact(tmp_path, "first") / "data"
    assert [(data / f"rank-{rank}.jsonl").read_text() for rank in (0, 1)] == ["0\n2\n", "1\n"]
    assert (artifact(tmp_path, "more") / "data" / "all.jsonl").read_text() == "0\n1\n0\n2\n1\n"
    assert [line.split(":")[0] for line in ended.stdout.splitlines()[:4]] == ["first", "first", "more", "more"]
    assert json.loads((artifact(tmp_path, "more") / "manifest.json").read_text())["world_size"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "said", "traceback"),
    [
        ({"data": NUMBERS | {"count": 3, "fails_on": 1}}, "rank 1: numbers.txt:3: not a number", False),
        ({"data": NUMBERS | {"count": 3, "fails_on": 1, "bug": True}}, "rank 1: ValueError: a bug", True),
        (None, "questions.jsonl:7: no answer", False),
    ],
    ids=["making", "a bug", "fitting"],
)
def test_one_rank_that_fails_ends_all_with_one_line(
    tmp_path: Path, stage: dict[str, Any] | None, said: str, traceback: bool
) -> None:
    fails = {"target": "tests.toy_training:FailOnRank", "rank": 1}
    path = config(tmp_path, {"first": stage}) if stage else fitting(tmp_path, fails=fails)
    ended = forked.run("--config", str(path), "devices=2")
    assert ended.returncode == 1
    assert [line for line in ended.stderr.splitlines() if line.startswith("error:")] == [f"error: {said}"]
    assert ("Traceback" in ended.stderr) == traceback
    assert "Not finished" in (tmp_path / "runs" / "toy" / "seed0" / "report.html").read_text()
    assert not list((tmp_path / "runs").rglob("manifest.json"))


def ranks_of(launcher: int) -> list[int]:
    """The processes that a launcher started: `train.py`, or forks of the test as itself."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    own = Path(f"/proc/{launcher}/cmdline").read_bytes()
    lines = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    return [child for child, line in lines.items() if line == own or b"train.py" in line]


def is_alive(process: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("moment", ["started", "meeting"])
def test_ranks_end_with_a_launcher_that_is_killed(tmp_path: Path, moment: str) -> None:
    """Two orphans that wait for each other would hold their devices for half an hour."""
    command = [sys.executable, str(ROOT / "train.py"), "--config", str(sleeping(tmp_path, devices=2)[0])]
    launcher = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: len(ranks_of(launcher.pid)) == 2)
    ranks = ranks_of(launcher.pid)
    try:
        if moment == "meeting":
            os.kill(ranks[1], signal.SIGSTOP)  # the other waits for it
            until(lambda: "libtorch" in Path(f"/proc/{ranks[0]}/maps").read_text())
            time.sleep(1)
        launcher.kill()
        launcher.wait()
        os.kill(ranks[1], signal.SIGCONT)
        until(lambda: not any(map(is_alive, ranks)), seconds=10)
    finally:
        for rank in filter(is_alive, ranks):
            os.kill(rank, signal.SIGKILL)


def test_what_one_launcher_cannot_start_is_refused(tmp_path: Path, capsys) -> None:
    for settings, said in (
        ({"num_nodes": 2}, "start train.py with torchrun on each machine"),
        ({"devices": 100_000}, "devices is 100000: this machine takes"),
    ):
        assert run(chain(tmp_path, **settings)) == 2
        assert said in capsys.readouterr().err


@pytest.mark.slow
def test_two_machines_with_a_launcher_each_fit_as_one(tmp_path: Path) -> None:
    """They share the output folder; a step is over all the data, for Lightning deals it out in an order of its own."""
    (alone := tmp_path / "alone").mkdir()
    batches = "stages.fit.data.accumulate={}".format
    assert run(fitting(alone), batches(4)) == 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path, launcher = fitting(tmp_path), ["--nnodes=2", "--nproc-per-node=1"]
    launcher += ["--master-addr=127.0.0.1", f"--master-port={port}"]
    launchers = [[*launcher, f"--node-rank={number}"] for number in (0, 1)]
    machines = [started(path, "num_nodes=2", batches(2), launcher=launcher) for launcher in launchers]
    try:
        said = [machine.communicate(timeout=300) for machine in machines]
    finally:
        for machine in machines:
            machine.terminate()  # where one fails, the other waits for it
    assert [machine.returncode for machine in machines] == [0, 0], said
    assert [out.count("fit: finished") for out, _ in said] == [1, 0]
    assert json.loads((artifact(tmp_path, "fit") / "manifest.json").read_text())["world_size"] == 2
    assert all(torch.allclose(weights(tmp_path)[name], value, atol=1e-6) for name, value in weights(alone).items())


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}, "error: srun started 4 tasks, and each"),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "1"}, "error: srun started several tasks"),
        ({"RANK": "x", "WORLD_SIZE": "1"}, "error: RANK is 'x', which is no number"),
        ({"RANK": "0", "WORLD_SIZE": ""}, "error: WORLD_SIZE is '', which is no number"),
        ({"RANK": "0", "WORLD_SIZE": "3"}, "error: the launcher started 3 processes, but the experiment has"),
        ({"RANK": "1", "WORLD_SIZE": "1"}, "error: RANK is 1, and WORLD_SIZE 1: ranks count from 0"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "error: RANK is set, but not every variable that a launcher sets"),
    ],
)
def test_what_a_launcher_set_wrongly_is_one_line(
    tmp_path: Path, capsys, monkeypatch, variables: dict[str, str], message: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert run(chain(tmp_path)) == 2
    assert capsys.readouterr().err.startswith(message)
    assert not (tmp_path / "runs").exists()


def test_a_slurm_job_of_other_tasks_than_devices_fits(tmp_path: Path, monkeypatch) -> None:
    """In the job's own script, and in an interactive allocation, SLURM's variables are those of the whole job."""
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "4", "SLURM_PROCID": "0"}
    job |= {"SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_JOB_NAME": "run.sh", "SLURM_NNODES": "1"}
    job |= {"SLURM_STEP_NUM_TASKS": "1", "SLURM_JOB_NODELIST": "node1"}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    assert run(fitting(tmp_path, epochs=1)) == 0
