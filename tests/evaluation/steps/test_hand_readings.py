"""Steps read by a person beside the labels of a judge."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from datamodules.records import labelled_to_row, write_rows
from envs.labelled_steps import LabelledEpisode
from envs.protocols.prorag import ProRAG
from envs.types import Gold, GoldStep
from evaluation.steps.hand_readings import Reading, agreement, main
from tests.labelled import path
from tests.tiny import byte_tokenizer


@pytest.fixture(scope="module")
def protocol() -> ProRAG:
    return ProRAG(byte_tokenizer(), instruction="")  # type: ignore[arg-type]


@pytest.fixture
def labels(protocol: ProRAG, tmp_path: Path) -> Path:
    """Three episodes of a query, a claim and an answer; of the second the query's label is held elsewhere."""
    rows = []
    for number, (name, known) in enumerate((("Ada", 1.0), ("Bob", None), ("Eve", 0.0))):
        episode = path(protocol, "query Who?", f"subanswer {name}", f"answer {name}", identity=f"q{number}")
        rows.append(LabelledEpisode(episode, (known, float(name == "Ada"), float(name != "Bob"))))
    write_rows(tmp_path / "label" / "data" / "labels.jsonl", map(labelled_to_row, rows))
    return tmp_path / "label"


def sheet_rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def write_sheet(path: Path, rows: list[dict[str, str]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)


def test_a_sheet_shows_the_step_and_what_was_found_and_no_label(labels: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.csv"
    assert main(["draw", str(labels), str(sheet), "--steps", "8"]) == 0
    rows = {row["step"]: row for row in sheet_rows(sheet)}
    assert len(rows) == 8, "each label once"
    row = rows["q2/query Who?/subanswer Eve"]
    assert list(row) == ["step", "kind", "text", "reading", "note"]
    assert (row["kind"], row["reading"], row["note"]) == ("subanswer", "", "")
    lines = row["text"].split("\n")
    assert lines[:2] == ["Question: What of q2?", "Gold: Ada"]
    assert lines[2].startswith("step 1, query: ")
    assert any(line.startswith("    [") for line in lines), "what the search found"
    assert ">>> TO READ 2, subanswer: I say Eve." in row["text"]
    assert "answer Eve" not in row["text"], "nothing of what follows"


def test_a_smaller_draw_is_among_a_larger_one(labels: Path, tmp_path: Path) -> None:
    drawn = []
    for name, steps, seed in (("a", "3", "0"), ("b", "6", "0"), ("c", "3", "1")):
        assert main(["draw", str(labels), str(tmp_path / name), "--steps", steps, "--seed", seed]) == 0
        drawn.append([row["step"] for row in sheet_rows(tmp_path / name)])
    assert drawn[1][:3] == drawn[0] != drawn[2]


def test_the_gold_reasoning_is_shown(protocol: ProRAG, tmp_path: Path) -> None:
    episode = path(protocol, "query Who?")
    object.__setattr__(episode.question, "gold", Gold(steps=(GoldStep("Who wrote it?", "Ada"),)))
    write_rows(tmp_path / "data" / "labels.jsonl", [labelled_to_row(LabelledEpisode(episode, (1.0,)))])
    assert main(["draw", str(tmp_path), str(tmp_path / "sheet"), "--steps", "1"]) == 0
    assert "  Who wrote it? -> Ada\n" in sheet_rows(tmp_path / "sheet")[0]["text"]


def test_the_agreement_of_what_was_read(labels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet, kept = tmp_path / "sheet.csv", tmp_path / "kept.csv"
    main(["draw", str(labels), str(sheet), "--steps", "8"])
    rows = sheet_rows(sheet)
    for row in rows:
        row["reading"] = "" if row["step"].startswith("q2") else "1"
        row["note"] = "=SUM(A1) too few passages" if row["reading"] else ""
    write_sheet(sheet, rows)
    capsys.readouterr()
    assert main(["compare", str(labels), str(sheet), "--out", str(kept)]) == 0
    cells = {line.split("|")[1].strip(): line.replace(" ", "") for line in capsys.readouterr().out.splitlines()}
    # Of q0 all three labels are 1, of q1 the claim and the answer are called bad.
    assert cells["all"] == "|all|5|5|60.0%|0.00|2|0|"
    assert cells["query"] == "|query|1|1|100.0%|–|0|0|"
    assert cells["answer"] == "|answer|2|2|50.0%|0.00|1|0|"
    assert sorted((row["step"], row["label"]) for row in sheet_rows(kept))[0] == ("q0/query Who?", "1.0")
    assert set(sheet_rows(kept)[0]) == {"step", "kind", "reading", "label", "note"}
    assert "passages" not in kept.read_text().replace("too few passages", ""), "no text of question or passage"


def test_kappa_of_four_steps() -> None:
    readings = [
        Reading("a", "query", good=True, label=1.0),
        Reading("b", "query", good=True, label=0.5),
        Reading("c", "query", good=False, label=0.2),
        Reading("d", "query", good=False, label=0.9),
    ]
    # By chance 0.5 × 0.75 + 0.5 × 0.25 = 0.5 agree, here 0.75: κ = 0.5.
    assert agreement(readings).splitlines()[2].replace(" ", "") == "|all|4|2|75.0%|0.50|0|1|"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reading": "yes"}, "reading 'yes' must be 1, 0 or empty"),
        ({"reading": "1", "step": "q9"}, "step 'q9' is not among the labels"),
        ({"reading": ""}, "no step has a reading"),
    ],
)
def test_a_bad_sheet_is_one_line(
    labels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, str], said: str
) -> None:
    sheet = tmp_path / "sheet.csv"
    main(["draw", str(labels), str(sheet), "--steps", "1"])
    write_sheet(sheet, [sheet_rows(sheet)[0] | change])
    assert main(["compare", str(labels), str(sheet)]) == 2
    assert said in capsys.readouterr().err


def test_a_step_is_read_once(labels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet = tmp_path / "sheet.csv"
    main(["draw", str(labels), str(sheet), "--steps", "1"])
    row = sheet_rows(sheet)[0] | {"reading": "1"}
    write_sheet(sheet, [row, row])
    assert main(["compare", str(labels), str(sheet)]) == 2
    assert "is in the sheet twice" in capsys.readouterr().err


def test_readings_are_never_overwritten(labels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet = tmp_path / "sheet.csv"
    sheet.write_text("mine")
    assert main(["draw", str(labels), str(sheet)]) == 2
    assert "may hold readings" in capsys.readouterr().err
    assert sheet.read_text() == "mine"
    assert main(["draw", str(labels), str(tmp_path / "new"), "--steps", "99"]) == 2
    assert "holds 8 labelled steps, not 99" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
