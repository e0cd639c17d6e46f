"""`train.py` on a damaged store: what is not whole is never taken for finished."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import DataError
from pipeline.loader import load
from pipeline.plan import Plan
from pipeline.store import Artifact
from tests.toy_runs import artifact, chain, made, reading, run

pytestmark = pytest.mark.usefixtures("without_reports")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finished chain."""
    folder = tmp_path_factory.mktemp("finished")
    made(chain(folder))
    return folder


@pytest.fixture
def path(finished: Path, tmp_path: Path) -> Path:
    """The experiment file of a finished chain of one's own."""
    shutil.copytree(finished / "runs", tmp_path / "runs")
    return chain(tmp_path)


def half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file: Path) -> None:
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "half": (lambda data: half(data / "all.jsonl"), "data/all.jsonl is damaged (3 bytes, not 6)"),
    "longer": (lambda data: (data / "all.jsonl").open("a").write("9\n"), "data/all.jsonl is damaged (8 bytes, not 6)"),
    "empty": (lambda data: (data / "all.jsonl").write_text(""), "data/all.jsonl is damaged (0 bytes, not 6)"),
    "file gone": (lambda data: (data / "rank-0.jsonl").unlink(), "data/rank-0.jsonl is missing"),
    "folder gone": (shutil.rmtree, "data/all.jsonl is missing"),
    "folder for a file": (
        lambda data: ((data / "all.jsonl").unlink(), (data / "all.jsonl").mkdir()),
        "data/all.jsonl is missing",
    ),
    "dead link": (
        lambda data: ((data / "all.jsonl").unlink(), (data / "all.jsonl").symlink_to("none")),
        "data/all.jsonl is missing",
    ),
    "settings": (lambda data: half(data.parent / "config.yaml"), "config.yaml is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_artifact_that_is_not_whole_is_not_reused(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    do, told = DAMAGES[damage]
    first = artifact(tmp_path, "first")
    do(first / "data")
    capsys.readouterr()
    for arguments in ([], ["--dry-run"], ["--stage", "more"], ["--verify"]):
        assert run(path, *arguments) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith(f"error: {first}/{told}")
        assert captured.err.splitlines()[0].endswith(f": remove {first} to make it again, or copy it again")
        assert "--verify" in arguments or captured.err.count("\n") == 1
        assert captured.out == ""


def test_what_is_removed_is_made_again(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half(artifact(tmp_path, "first") / "data" / "all.jsonl")
    with pytest.raises(DataError, match="is damaged"):
        made(path)
    shutil.rmtree(artifact(tmp_path, "first"))
    made(path)
    assert (artifact(tmp_path, "first") / "data" / "all.jsonl").read_text() == "0\n1\n2\n"
    assert "more: reused, though made by other code or from an earlier input" in capsys.readouterr().out


def test_one_that_is_not_chosen_is_checked_too(path: Path, tmp_path: Path) -> None:
    half(artifact(tmp_path, "more") / "data" / "all.jsonl")
    assert run(path, "--stage", "first") == 2


def test_a_damaged_artifact_can_be_forced(path: Path, tmp_path: Path) -> None:
    (artifact(tmp_path, "first") / "manifest.json").write_text("{")
    assert run(path) == 2
    assert run(path, "--force", "first") == 0


def test_a_flipped_bit_is_found_when_a_stage_reads_the_file(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = artifact(tmp_path, "first")
    shutil.rmtree(artifact(tmp_path, "more"))
    flip(first / "data" / "all.jsonl")
    assert run(path) == 1
    told = f"{first}/data/all.jsonl is damaged (its content has another hash than in manifest.json)"
    assert capsys.readouterr().err == f"error: {told}: remove {first} to make it again, or copy it again\n"


def test_a_file_is_read_for_its_hash_once_on_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = made(chain(tmp_path)).stages["first"].artifact
    everything = ["all.jsonl", "config.yaml", "rank-0.jsonl"]
    assert hashed(first) == [], "what was made here need not be read again"
    monkeypatch.setattr("common.contents._machine", lambda: "another")
    assert hashed(first) == everything
    assert hashed(first) == []
    shutil.copytree(first.folder, tmp_path / "copy")
    shutil.rmtree(first.folder)
    (tmp_path / "copy").rename(first.folder)
    assert hashed(first) == everything, "other files of the same names"


def hashed(artifact: Artifact) -> list[str]:
    """The names of the files whose content is read when a stage is to read an artifact."""
    read: list[str] = []
    digest = hashlib.file_digest

    def noting(file: Any, name: str) -> Any:
        read.append(Path(file.name).name)
        return digest(file, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hashlib.file_digest", noting)
        assert artifact.damages() == []
    return sorted(read)


@pytest.mark.parametrize("name", ["data/notes.txt", "chat_template.jinja", "data/deep/x"])
def test_a_file_that_was_added_is_named(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    added = artifact(tmp_path, "first") / name
    added.parent.mkdir(exist_ok=True)
    added.write_text("x")
    assert run(path) == 2
    assert capsys.readouterr().err == f"error: {added} was added after the stage was finished: move it elsewhere\n"


def test_files_of_readers_come_and_go(path: Path, tmp_path: Path) -> None:
    for name in (".DS_Store", "data/.nfs01", "tokenizer.lock", "events.out.tfevents.1.host", "origin.json"):
        (artifact(tmp_path, "first") / name).write_text("x")
    assert Plan.of(load(path)).checked().done


def test_what_an_earlier_version_made_is_reused_and_not_called_checked(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = artifact(tmp_path, "more") / "manifest.json"
    told = json.loads(manifest.read_text())
    del told["files"]
    manifest.write_text(json.dumps(told))
    capsys.readouterr()
    assert run(path, "--dry-run") == 0
    assert "  done, unchecked  " in capsys.readouterr().out
    assert run(path) == 0
    said = f"more: done, {manifest.parent} (its files are not checked: an earlier version made it)\n"
    assert said in capsys.readouterr().out
    assert run(path, "--verify") == 0
    out = capsys.readouterr().out
    assert f"not verified: {manifest.parent}, whose manifest lists no files: an earlier version made it\n" in out
    assert "verified: 3 files of 1 artifacts, " in out


def test_verification_names_every_damaged_file(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, more = artifact(tmp_path, "first"), artifact(tmp_path, "more")
    files = (tmp_path / "runs" / "store").rglob("*")
    size = sum(file.stat().st_size for file in files if file.suffix in (".jsonl", ".yaml"))
    capsys.readouterr()
    assert run(path, "--verify") == 0
    assert capsys.readouterr().out.startswith(f"verified: 6 files of 2 artifacts, {size:,} bytes\n")
    flip(first / "data" / "all.jsonl")
    (first / "data" / "rank-0.jsonl").unlink()
    (more / "manifest.json").write_text("{}")
    assert run(path, "--verify") == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert [line.partition(" is ")[0] for line in lines] == [
        f"error: {first}/data/all.jsonl",
        f"error: {first}/data/rank-0.jsonl",
        f"error: {more}/manifest.json",
    ]
    assert captured.out == ""


def test_what_is_not_finished_is_not_verified(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (artifact(tmp_path, "more") / "manifest.json").unlink()
    capsys.readouterr()
    assert run(path, "--verify") == 0
    assert capsys.readouterr().out.startswith("verified: 3 files of 1 artifacts, ")


def test_verification_reads_files_whose_times_are_as_they_were(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that forgets a bit changes no time."""
    monkeypatch.setattr("common.hashes.stamp", lambda path: [path.stat().st_size, 0, 0, 0])
    assert run(path, "--verify") == 0
    flip(artifact(tmp_path, "first") / "data" / "all.jsonl")
    assert run(path, "--verify") == 2
    assert "data/all.jsonl is damaged" in capsys.readouterr().err


def copies(source: Path, target: Path) -> Iterator[str]:
    """Copy a store as docs/configuration.md says; yields the name of each file half-way and when it is there."""
    everything = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    last = [path for path in everything if path.name in ("manifest.json", "origin.json")]
    for path in [*(path for path in everything if path not in last), *last]:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, target / path)
        whole = (target / path).read_bytes()
        half(target / path)
        yield f"half of {path}"
        (target / path).write_bytes(whole)
        yield f"{path}"


def test_a_copy_that_is_cut_off_anywhere_is_made_anew_or_named(tmp_path: Path) -> None:
    """With a stage that was killed in the middle: its units are whole in a store, and half in a copy."""
    path = reading(tmp_path)
    plan = made(path)
    names = {name: planned.artifact.folder.name for name, planned in plan.stages.items()}
    store = tmp_path / "runs" / "store"
    whole = {name: (store / name / "data" / "all.txt").read_bytes() for name in names.values()}
    (store / names["two"] / "manifest.json").rename(store / names["two"] / "origin.json")
    (store / names["two"] / "data" / "all.txt").unlink()
    moments = 0
    for moment in copies(tmp_path / "runs", tmp_path / "other" / "runs"):
        shutil.rmtree(tmp_path / "cut", ignore_errors=True)
        shutil.copytree(tmp_path / "other", tmp_path / "cut")
        moments += 1
        try:
            made(path, f"output={tmp_path / 'cut' / 'runs'}")
        except DataError:
            assert "half of" in moment, "a copy of whole files is never damaged"
            continue
        for name in names.values():
            assert (tmp_path / "cut" / "runs" / "store" / name / "data" / "all.txt").read_bytes() == whole[name], moment
    assert moments > 16
