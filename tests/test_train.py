"""`train.py` from the outside: exit codes, one line a stage, reuse, force, dry run."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests import forked
from tests.toy_runs import ROOT, artifact, chain, config, fitting, run

pytestmark = pytest.mark.usefixtures("without_reports")


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
    costs = manifest["costs"]
    assert costs.pop("cpu_seconds") >= 0
    assert costs == {"tokens": {}, "updates": 0, "judge_calls": 0}
    assert manifest["inputs"]["first"]["artifact"] == artifact(tmp_path, "first").name
    assert (manifest["seed"], manifest["world_size"], manifest["kind"]) == (5, 1, "make")
    assert manifest["versions"]["torch"] == torch.__version__
    stages = json.loads((tmp_path / "runs" / "toy" / "seed5" / "stages.json").read_text())
    assert stages == {name: f"store/{artifact(tmp_path, name).name}" for name in ("first", "more")}
    resolved = yaml.safe_load((artifact(tmp_path, "more") / "config.yaml").read_text())
    assert resolved["data"]["source"] == str(artifact(tmp_path, "first"))
    headline = EventAccumulator(str(tmp_path / "runs" / "toy" / "seed5" / "more")).Reload()
    assert [event.value for event in headline.Scalars("numbers")] == [5.0]


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
    reused = "more: reused, though made by other code or from an earlier input (--force more runs it again)"
    assert reused in capsys.readouterr().out, "in the very run that remakes its input"
    run(path)
    assert reused in capsys.readouterr().out
    run(path, "--force", "more")
    run(path)
    assert "reused" not in capsys.readouterr().out


def test_an_edited_component_of_one_s_own_is_noticed_and_an_untouched_one_is_not(tmp_path: Path, monkeypatch) -> None:
    """In processes of their own: that of a finished stage imports nothing of it."""
    own = tmp_path / "lab" / "lab_numbers.py"
    own.parent.mkdir()
    own.write_text("from tests.toys import Numbers\n\nclass Own(Numbers):\n    pass\n")
    path = config(tmp_path, {"first": {"data": {"target": "lab_numbers:Own", "count": 3}}})
    monkeypatch.syspath_prepend(own.parent)

    def said() -> str:
        return forked.run("--config", str(path)).stdout

    assert "first: finished" in said()
    assert "reused" not in said()
    own.write_text(own.read_text() + "# another rule\n")
    assert "first: reused, though made by other code" in said()


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
    assert "more: resumes what other code or inputs began (--force more starts over)" in capsys.readouterr().out
    finished = json.loads((made / "manifest.json").read_text())
    assert (finished["source"], finished["resumed_by"]["source"]) == ("older", manifest["source"])
    (made / "manifest.json").rename(made / "origin.json")
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
        (["stages.more.data.source=${stage:more}"], "error: stages depend on each other in a cycle: more -> more"),
        (["--show", "mor"], "error: unknown stage 'mor' on the command line; did you mean 'more'?"),
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


def test_a_full_disk_is_one_line(tmp_path: Path, capsys, monkeypatch) -> None:
    """What the system says of it names no file."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("train.announce", full)
    assert run(chain(tmp_path)) == 1
    assert capsys.readouterr().err == "error: writing: No space left on device\n"


def test_an_error_at_work_exits_1_with_one_line_and_leaves_nothing_complete(tmp_path: Path, capsys) -> None:
    path = chain(tmp_path)
    assert run(path, "stages.more.data.fails_on=0") == 1
    assert capsys.readouterr().err == "error: numbers.txt:3: not a number\n"
    assert not (artifact(tmp_path, "more") / "manifest.json").exists()
    assert (artifact(tmp_path, "first") / "manifest.json").exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").touch()
    assert run(chain(tmp_path), f"output={tmp_path / 'file'}") == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'file'}/toy/seed0: Not a directory\n"


def test_on_the_cpu_no_gpu_is_seen(tmp_path: Path, monkeypatch) -> None:
    """What a config leaves to `device: auto` must not go where Lightning does not."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert run(chain(tmp_path), "--dry-run", "accelerator=auto") == 0
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert run(chain(tmp_path), "--dry-run") == 0
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_a_recipe_for_gpus_does_not_train_on_a_cpu_in_silence(tmp_path: Path, capsys, monkeypatch) -> None:
    def too_old() -> bool:
        warnings.warn(
            "CUDA initialization: The NVIDIA driver is too old (Triggered internally at x.cpp:1)", stacklevel=1
        )
        return False

    monkeypatch.setattr("torch.cuda.is_available", too_old)
    assert run(chain(tmp_path), "--dry-run", "accelerator=gpu") == 0, "any machine can plan it"
    capsys.readouterr()
    assert run(chain(tmp_path), "accelerator=gpu") == 2
    captured = capsys.readouterr()
    assert captured.err == (
        "error: accelerator is gpu, devices 1, and torch sees 0 GPUs here (CUDA initialization: The NVIDIA driver is "
        "too old): set accelerator=cpu to run without\n"
    )
    assert captured.out == ""
    assert not (tmp_path / "runs").exists()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert run(chain(tmp_path), "accelerator=gpu", "devices=2") == 2
    assert "devices 2, and torch sees 1 GPUs here" in capsys.readouterr().err


def test_a_bug_is_not_dressed_up(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a bug"):
        run(chain(tmp_path), "stages.more.data.fails_on=0", "stages.more.data.bug=true")


def test_a_finished_fit_is_found_without_importing_lightning(tmp_path: Path) -> None:
    path = fitting(tmp_path, epochs=1)
    assert run(path) == 0
    code = f"import sys, train; train.main(['--config', {str(path)!r}]); print('lightning' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[0].startswith("fit: done")
    assert found.stdout.splitlines()[-1] == "False"


def test_a_dry_run_imports_no_library_that_computes() -> None:
    code = (
        "import sys, train; code = train.main(['--config', 'configs/compare.yaml', '--dry-run']); "
        "print(code, {'torch', 'lightning', 'transformers', 'scipy', 'bm25s'} & sys.modules.keys())"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "0 set()"
