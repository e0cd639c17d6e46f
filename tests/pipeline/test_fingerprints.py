"""What changes a stage's fingerprint and what does not."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, close_session

from pipeline.fingerprints import (
    Inputs,
    _hub_revision,
    canonical,
    fingerprint,
    settings_of,
    stage_names,
    with_folders,
)
from pipeline.schema import Experiment, Stage, TrainerSettings


def of(stage: Stage, output: Path = Path("runs"), **experiment: Any) -> str:
    settings = {"experiment": "x", "stages": {}, "output": str(output)} | experiment
    pinned = Inputs(output).pinned(settings_of(stage))
    return fingerprint(pinned, Experiment(**settings), {"world": "f" * 64, "other": "0" * 64})


def data(**arguments: Any) -> Stage:
    return Stage(data={"target": "a:A", **arguments})


def test_key_order_names_logging_and_output_do_not_count(tmp_path: Path) -> None:
    reference = of(data(x=1, y=2))
    assert reference == of(data(y=2, x=1))
    assert reference == of(
        data(x=1, y=2), tmp_path, experiment="y", accelerator="cpu", parts={"z": 1}, loggers={"l": 1}
    )
    logged = Stage(data=data(x=1, y=2).data, trainer=TrainerSettings(log_every_n_steps=7))
    assert reference == of(logged)


def test_settings_seed_and_world_size_count() -> None:
    stages = [
        data(x=1),
        data(x=2),
        data(x=1, y=None),
        Stage(data=data(x=1).data, module={"target": "m:M"}),
        Stage(data=data(x=1).data, callbacks={"c": {"target": "c:C"}}),
        Stage(data=data(x=1).data, trainer=TrainerSettings(max_epochs=3)),
        data(x="${stage:world}"),
        data(x="${stage:other}"),
        data(x="${stage:world}/model"),
    ]
    found = [of(stage) for stage in stages]
    found += [of(data(x=1), seed=1), of(data(x=1), devices=2)]
    assert len(set(found)) == len(found)
    assert of(data(x=1), devices=2) == of(data(x=1), num_nodes=2)


def test_the_name_of_a_stage_that_is_read_counts() -> None:
    """A fit begins at random numbers that follow from its name, whatever it has in common with another."""
    hashes = {"sft": "f" * 64, "warm_up": "f" * 64}
    found = {fingerprint(settings_of(data(x=f"${{stage:{name}}}")), Experiment("x", {}), hashes) for name in hashes}
    assert len(found) == 2


def test_files_and_folders_count_by_content_not_by_name(tmp_path: Path) -> None:
    output = tmp_path / "runs"
    for name in ("one", "two"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "a.txt").write_text("a")
        (tmp_path / name / "deep" / "b.txt").write_text("b")
    one = of(data(path=str(tmp_path / "one")), output)
    assert one == of(data(path=str(tmp_path / "two")), output)
    (tmp_path / "two" / ".hidden").write_text("h")
    assert one == of(data(path=str(tmp_path / "two")), output)
    (tmp_path / "two" / "deep" / "b.txt").rename(tmp_path / "two" / "deep" / "c.txt")
    assert one != of(data(path=str(tmp_path / "two")), output)
    assert of(data(path=str(tmp_path / "one" / "a.txt")), output) != one


@pytest.mark.parametrize("name", ["test", "dev"])
def test_a_name_is_no_path_whatever_folders_there_are(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    stage = data(split=name, metrics=[name], model=f"{name}-model")
    before = of(stage)
    (tmp_path / name).mkdir()
    (tmp_path / name / "a.txt").write_text("a")
    assert of(stage) == before


@pytest.mark.parametrize(
    ("key", "text"), [("path", "./test"), ("path", "rows.csv"), ("paths", ["sub/test"]), ("model", "tiny")]
)
def test_a_path_counts_by_content_and_so_does_a_models_folder(key: str, text: Any, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / (text if isinstance(text, str) else text[0])
    file.parent.mkdir(exist_ok=True)
    before = of(data(**{key: text}))
    file.write_text("a")
    first = of(data(**{key: text}))
    file.write_text("other")
    assert len({before, first, of(data(**{key: text}))}) == 3


@pytest.mark.parametrize("key", ["cache", "scratch"])
def test_what_a_run_fills_itself_is_no_input(tmp_path: Path, key: str) -> None:
    output = tmp_path / "runs"
    filled = data(**{key: str(tmp_path / "filled"), "index": str(output / "filled")})
    before = of(filled, output)
    for folder in (tmp_path / "filled", output / "filled"):
        folder.mkdir(parents=True)
        (folder / "index").write_text("x")
    assert before == of(filled, output)


@pytest.mark.parametrize("text", [".", "/", "..", "", "~", "x" * 5000, "a\0b"])
def test_punctuation_and_nonsense_are_never_read_as_folders(tmp_path: Path, text: str) -> None:
    assert Inputs(tmp_path / "runs").pinned({"stop": text}) == {"stop": text}


def test_content_hashes_are_remembered_from_run_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, output = tmp_path / "corpus.jsonl", tmp_path / "runs"
    file.write_text("first")
    inputs = Inputs(output)
    first = inputs.content(file)
    inputs.save()
    with monkeypatch.context() as patch:
        patch.setattr("hashlib.file_digest", None)
        assert Inputs(output).content(file) == first
    file.write_text("other")
    assert Inputs(output).content(file) != first


def test_looking_again_asks_for_revisions_again_but_for_those_that_nobody_knew(tmp_path: Path, monkeypatch) -> None:
    revisions = iter(["abc", "main", "def"])
    monkeypatch.setattr("pipeline.fingerprints._hub_revision", lambda *_: next(revisions))
    settings = {"model": "org/tiny", "policy": "org/none"}
    inputs = Inputs(tmp_path / "runs")
    assert inputs.pinned(settings) == {"model": "org/tiny@abc", "policy": "org/none@main"}
    assert inputs.pinned(settings) == {"model": "org/tiny@abc", "policy": "org/none@main"}
    assert inputs.again().pinned(settings) == {"model": "org/tiny@def", "policy": "org/none@main"}


def test_stamps_differ_where_a_file_is_replaced_by_an_equal_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for file in (tmp_path / "corpus.jsonl", tmp_path / "folder" / "a.txt"):
        file.write_text("first")
    texts = [str(tmp_path / "corpus.jsonl"), str(tmp_path / "folder"), str(tmp_path / "none.jsonl"), "x/y"]
    inputs = Inputs(tmp_path / "runs")
    before = inputs.stamps({"paths": texts, "cache": texts[0]})
    assert list(before) == texts[:2]
    assert inputs.stamps({"paths": texts}) == before
    shutil.copy2(tmp_path / "corpus.jsonl", tmp_path / "copy")
    (tmp_path / "copy").rename(tmp_path / "corpus.jsonl")
    after = inputs.stamps({"paths": texts})
    assert after[texts[0]] != before[texts[0]]
    assert after[texts[1]] == before[texts[1]]


@pytest.mark.parametrize("damaged", [b"{", b"\xff", b"[1]", b'{"FILE": 3}', b'{"FILE": [1, 2]}', b"[" * 100_000])
def test_a_damaged_memory_of_hashes_is_begun_afresh(tmp_path: Path, damaged: bytes) -> None:
    file, output = tmp_path / "corpus.jsonl", tmp_path / "runs"
    file.write_text("first")
    inputs = Inputs(output)
    first = inputs.content(file)
    inputs.save()
    memory = output / "inputs.json"
    whole = memory.read_bytes()
    memory.write_bytes(damaged.replace(b"FILE", str(file).encode()))
    again = Inputs(output)
    assert again.content(file) == first
    again.save()
    assert memory.read_bytes() == whole


def test_looking_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    of(data(path=str(tmp_path / "a.txt")), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_hub_ids_count_by_their_cached_revision(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    refs = tmp_path / "models--org--tiny" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("abc\n")
    (refs / "v2").write_text("def\n")
    pinned = Inputs(tmp_path / "runs").pinned
    assert pinned({"model": "org/tiny"}) == {"model": "org/tiny@abc"}
    assert pinned({"model": "org/tiny", "revision": "v2"}) == {"model": "org/tiny@def", "revision": "v2"}
    assert pinned({"name": "org/tiny"}) == {"name": "org/tiny"}


def test_a_hub_id_that_nobody_knows_keeps_its_name(tmp_path: Path, monkeypatch) -> None:
    """The port refuses connections, so this is the error that huggingface_hub itself raises without a network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    hub = HfApi(endpoint="http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: hub)
    pinned = Inputs(tmp_path / "runs").pinned
    assert pinned({"policy": "org/big"}) == {"policy": "org/big@main"}
    assert pinned({"policy": "org/no--id"}) == {"policy": "org/no--id@main"}


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "ftp://x"])
def test_so_does_one_behind_a_proxy_that_cannot_be_used(tmp_path: Path, monkeypatch, proxy: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", proxy)
    close_session()
    assert _hub_revision("model", "some/model", "main") == "main"
    close_session()


def test_a_local_model_that_is_not_there_is_not_sought_on_the_hub(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("pipeline.fingerprints._hub_revision", lambda *_: "asked")
    pinned = Inputs(tmp_path / "runs").pinned
    assert pinned({"model": "models/none", "policy": "org/none"}) == {
        "model": "models/none",
        "policy": "org/none@asked",
    }


def test_stage_references_are_found_and_replaced_anywhere() -> None:
    value = {"a": ["${stage:world}/data", {"b": "x"}], "c": "${stage:sft-1} ${stage:world}"}
    assert stage_names(value) == ["world", "sft-1"]
    assert with_folders(value, {"world": "W", "sft-1": Path("S")}) == {"a": ["W/data", {"b": "x"}], "c": "S W"}


def test_canonical_text_tells_numbers_from_text() -> None:
    assert canonical({"b": 1, "a": [True, None]}) == '{"a":[true,null],"b":1}'
    assert canonical({"a": 1}) != canonical({"a": "1"})
