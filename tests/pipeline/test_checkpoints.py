"""Checkpoints and archives of events that cannot be read, and disks that are full while one is written."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from common.errors import DataError
from pipeline.checkpoints import AtomicCheckpointIO, check_checkpoints
from tests import forked
from tests.toy_runs import artifact, fitting, run

pytestmark = pytest.mark.usefixtures("without_reports")


def whole(path: Path) -> bytes:
    parts = {"state_dict": {"w": torch.ones(300)}, "loops": {}, "epoch": 1, "global_step": 2}
    AtomicCheckpointIO().save_checkpoint(parts, path)
    return path.read_bytes()


def test_whole_checkpoints_and_none_at_all_are_fine(tmp_path: Path) -> None:
    check_checkpoints(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    whole(tmp_path / "checkpoints" / "last.ckpt")
    check_checkpoints(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: (
            content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 1]) + content[len(content) // 2 + 1 :]
        ),
        lambda content: b"",
        lambda content: b"\xff" * 100,
        lambda content: b"{}",
        lambda content: content[:10] + b"\0" * (len(content) - 20) + content[-10:],
    ],
    ids=["half", "a bit", "empty", "bytes", "json", "a hole"],
)
def test_a_damaged_checkpoint_says_what_to_remove(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "checkpoints" / "best.ckpt"
    path.parent.mkdir()
    path.write_bytes(damage(whole(path)))
    with pytest.raises(DataError) as raised:
        check_checkpoints(tmp_path)
    assert str(raised.value) == f"{path} is damaged: remove {tmp_path} to begin the fit anew"


@pytest.mark.parametrize(
    "wrong", [b"not a checkpoint\n", b"\x80\x02cnowhere\nThing\n.", None], ids=["text", "pickle", "list"]
)
def test_what_is_no_checkpoint_is_named_with_what_to_do(tmp_path: Path, wrong: bytes | None) -> None:
    path = tmp_path / "last.ckpt"
    whole(path)
    assert AtomicCheckpointIO().load_checkpoint(path, weights_only=False)["epoch"] == 1
    torch.save([1, 2], path) if wrong is None else path.write_bytes(wrong)
    with pytest.raises(
        DataError, match=r"^.*last\.ckpt is (damaged|no checkpoint of a fit): remove it, and .* starts over$"
    ):
        AtomicCheckpointIO().load_checkpoint(path, weights_only=False)


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.ckpt"
    before = whole(path)

    def full(checkpoint: object, file: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("torch.save", full)
    with pytest.raises(OSError, match="No space left"):
        AtomicCheckpointIO().save_checkpoint({}, path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_disk_that_is_full_in_the_middle_of_a_checkpoint_is_one_line_and_the_run_resumes(
    tmp_path: Path,
) -> None:
    """For real: no file may be larger than a twentieth of the checkpoint, so its writing stops in the middle."""
    path, wide = fitting(tmp_path, epochs=1), "stages.fit.module.hidden=100"
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (20_000, 20_000))
    ended = forked.run("--config", str(path), wide, preexec_fn=limit)
    said = ended.stderr
    assert ended.returncode == 1
    assert said.splitlines()[-1].startswith("error: writing: File too large; raise the limit on file sizes")
    assert "Traceback" not in said
    assert not list((tmp_path / "runs").rglob("*.tmp"))
    assert run(path, wide) == 0


def test_a_run_that_finds_its_checkpoint_or_events_damaged_says_so_in_one_line(tmp_path: Path, capsys) -> None:
    path = fitting(tmp_path, epochs=1)
    assert run(path) == 0
    made = artifact(tmp_path, "fit")
    events, shown = made / "events.tar", tmp_path / "runs" / "toy" / "seed0" / "fit"
    content = events.read_bytes()
    for wrong in (b"", content[:512], content[: len(content) // 2], b"x" * 5000):
        events.write_bytes(wrong)
        (shown / "artifact").unlink(missing_ok=True)
        capsys.readouterr()
        assert run(path) == 2
        size = f"{len(wrong):,} bytes, not {len(content):,}"
        said = f"error: {events} is damaged ({size}): remove {made} to make it again, or copy it again\n"
        assert capsys.readouterr().err == said
    events.write_bytes(b"x" * len(content))
    assert run(path) == 1
    assert capsys.readouterr().err == f"error: {events} is damaged: remove {made} to make it again\n"
    events.write_bytes(content)
    assert run(path) == 0
    assert (shown / "artifact").exists()
    (made / "manifest.json").rename(made / "origin.json")  # as a killed run leaves it
    last = made / "checkpoints" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:-100])
    capsys.readouterr()
    assert run(path) == 1
    assert capsys.readouterr().err == f"error: {last} is damaged: remove {made} to begin the fit anew\n"
    last.unlink()
    assert run(path) == 0
