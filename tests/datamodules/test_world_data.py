from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError, DataError
from datamodules.records import numbered_rows
from datamodules.sources.world_questions import WorldQuestions
from datamodules.world_data import WorldData
from envs.types import Document
from envs.world.facts import World

SMALL: dict[str, Any] = {
    "people": 40,
    "cities": 12,
    "works": 20,
    "organisations": 12,
    "countries": 4,
    "questions": 300,
    "comparison": 0.1,
    "skew": 1.0,
}


def make(folder: Path, seed: int = 0, **settings: Any) -> dict[str, float]:
    stage = WorldData(**(SMALL | settings))
    stage.make(folder, seed=seed, rank=0, world_size=1)
    return stage.merge(folder, seed=seed, world_size=1)


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make(folder)
    return folder


def test_the_stage_writes_what_it_says(world: Path) -> None:
    assert set(digest(world)) == {
        "data/corpus.jsonl",
        "data/facts.jsonl",
        "data/questions.jsonl",
        "data/world.json",
        "tokenizer/chat_template.jinja",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
    }
    summary = json.loads((world / "data" / "world.json").read_text())
    assert (summary["entities"], summary["questions"], summary["seed"]) == (88, 300, 0)
    assert summary["splits"] == {"dev": 38, "refine": 47, "rl": 88, "search": 40, "sft": 50, "test": 37}
    assert summary["settings"]["comparison"] == 30
    assert 0 < summary["guess_single_em"] < summary["guess_em"] < 1


def test_the_bytes_of_worlds_that_were_made_before_stay(world: Path) -> None:
    """Artifacts are kept and compared by their bytes: a new setting must not change a world that has it not."""
    assert {name[5:]: value[:16] for name, value in digest(world).items() if name.startswith("data/")} == {
        "corpus.jsonl": "788cb1e763e4c166",
        "facts.jsonl": "ce63047f5e209a2b",
        "questions.jsonl": "9863826115919822",
        "world.json": "eee1f7becea95c2d",
    }


def test_the_same_seed_gives_the_same_bytes_in_every_process(world: Path, tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from datamodules.world_data import WorldData
WorldData(**{SMALL!r}).make(Path({str(tmp_path)!r}), seed=0, rank=0, world_size=1)
"""
    environment = os.environ | {"PYTHONPATH": ".", "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert digest(tmp_path) == digest(world)


def test_another_seed_gives_another_world_with_the_same_tokenizer(world: Path, tmp_path: Path) -> None:
    make(tmp_path, seed=1)
    ours, theirs = digest(world), digest(tmp_path)
    assert {name for name in ours if ours[name] == theirs[name]} == {name for name in ours if "tokenizer" in name}


def test_rank_0_alone_writes_and_a_whole_world_is_kept(tmp_path: Path) -> None:
    stage = WorldData(**SMALL)
    stage.make(tmp_path, seed=0, rank=1, world_size=2)
    assert list(tmp_path.iterdir()) == []
    make(tmp_path)
    (tmp_path / "data" / "corpus.jsonl").unlink()
    stage.make(tmp_path, seed=0, rank=0, world_size=2)
    assert not (tmp_path / "data" / "corpus.jsonl").exists()


def test_a_killed_run_is_made_anew(world: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "corpus.jsonl").write_text("of another seed")
    make(tmp_path)
    assert digest(tmp_path) == digest(world)


def test_headline_metrics_count_and_guess(tmp_path: Path) -> None:
    metrics = make(tmp_path)
    guesses = {"guess_em", "guess_single_em", "facts_seen"}
    assert set(metrics) == {"entities", "facts", "questions", "vocabulary"} | guesses
    assert (metrics["entities"], metrics["facts"], metrics["questions"]) == (88.0, 236.0, 300.0)


def test_known_facts_are_marked_and_nothing_else_changes(world: Path, tmp_path: Path) -> None:
    metrics = make(tmp_path, known=0.3)
    ours, theirs = digest(world), digest(tmp_path)
    assert {name for name in ours if ours[name] != theirs[name]} == {"data/facts.jsonl", "data/world.json"}
    rows = [json.loads(line) for line in (tmp_path / "data" / "facts.jsonl").read_text().splitlines()]
    assert metrics["known"] == sum(len(row.get("known", ())) for row in rows) == 71
    assert all(set(row.get("known", ())) <= set(row["facts"]) for row in rows)
    plain = [{key: value for key, value in row.items() if key != "known"} for row in rows]
    assert plain == [json.loads(line) for line in (world / "data" / "facts.jsonl").read_text().splitlines()]
    assert 0 < metrics["guess_unknown_em"] < 0.4


def test_of_absent_facts_no_passage_says_a_word_and_their_questions_are_unanswerable(tmp_path: Path) -> None:
    metrics = make(tmp_path, known=0.3, absent=0.3)
    world, plain = World.load(tmp_path), tmp_path / "plain"
    make(plain, known=0.3)
    texts, whole = ({d.id: d.text for d in WorldQuestions(folder, "test").documents()} for folder in (tmp_path, plain))
    absent = [hop for hop in world.facts() if hop.absent]
    assert len(absent) == 27
    assert not any(hop.known for hop in absent)
    assert {hop.subject.id for hop in absent} == {id_ for id_ in texts if texts[id_] != whole[id_]}
    questions = {one.id: one for one in WorldQuestions(tmp_path, "test")}
    lacking = {id_ for id_ in questions if any(hop.absent for hop in world.lookups(id_))}
    assert metrics["unanswerable"] == len(lacking) / len(questions)
    for one in WorldQuestions(plain, "test"):
        if one.id not in lacking:
            assert questions[one.id] == one, "all others stay"
            continue
        unanswerable = questions[one.id]
        assert (unanswerable.text, unanswerable.answers) == (one.text, ("I do not know",))
        assert unanswerable.gold is not None
        assert (unanswerable.gold.type, unanswerable.gold.documents) == ("unanswerable", ())


def test_more_facts_are_known_where_the_share_is_larger(tmp_path: Path) -> None:
    def known(share: float) -> set[tuple[str, str]]:
        make(tmp_path / str(share), known=share)
        return {(hop.subject.id, hop.relation) for hop in World.load(tmp_path / str(share)).facts() if hop.known}

    few, many, everything = known(0.1), known(0.5), known(1.0)
    assert few < many < everything
    assert len(everything) == 236


@pytest.mark.parametrize("seed", [0, 1])
def test_guessing_stays_far_below_the_teacher(tmp_path: Path, seed: int) -> None:
    stage = WorldData()
    stage.make(tmp_path, seed=seed, rank=0, world_size=1)
    metrics = stage.merge(tmp_path, seed=seed, world_size=1)
    assert metrics["guess_em"] < 0.30
    assert metrics["guess_single_em"] < 0.12


def test_few_training_questions_leave_facts_unseen(tmp_path: Path) -> None:
    few = make(tmp_path / "few", splits={"train": 1, "test": 9})
    many = make(tmp_path / "many", splits={"train": 9, "test": 1})
    assert few["facts_seen"] < 0.2 < 0.7 < many["facts_seen"]


def test_a_world_that_leaks_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        metrics = make(tmp_path, skew=3.0)
    assert metrics["guess_em"] > 0.5
    assert "this world leaks" in caplog.text


def test_the_order_in_which_splits_are_written_does_not_matter(tmp_path: Path) -> None:
    for name, splits in (("a", {"train": 1, "test": 2}), ("b", {"test": 0.2, "train": 0.1})):
        make(tmp_path / name, splits=splits)
    a, b = digest(tmp_path / "a"), digest(tmp_path / "b")
    assert a["data/questions.jsonl"] == b["data/questions.jsonl"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"works": 0}, "every kind needs at least one"),
        ({"cities": 3}, "4 countries need as many cities"),
        ({"people": 11}, "12 cities need as many people"),
        ({"hops": []}, "must be from 1 to 8"),
        ({"hops": [2, 9]}, "must be from 1 to 8"),
        ({"paraphrases": 4}, "paraphrases 4"),
        ({"namesakes": 1.5}, "namesakes 1.5"),
        ({"skew": -1.0}, "skew -1.0"),
        ({"questions": 0, "comparison": 0}, "questions 0"),
        ({"comparison": 300}, "comparison 300"),
        ({"splits": {"train": 1, "test": 0}}, "must be positive"),
        ({"splits": {"train": 1}}, "must have 'test'"),
        ({"splits": {"test": 1, "dev": 1}}, "a split to train on"),
    ],
)
def test_impossible_settings_are_refused_before_any_work(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        WorldData(**(SMALL | settings))


@pytest.mark.parametrize(
    ("settings", "empty"),
    [
        ({"questions": 1, "comparison": 0}, "dev, refine, rl, search, test"),
        ({"questions": 9, "splits": {"train": 99, "test": 1}}, "test"),
        ({"questions": 9, "splits": {"train": 1, "test": 99}}, "train"),
    ],
)
def test_too_few_questions_for_the_splits_are_refused_before_anything_is_written(
    settings: dict[str, Any], empty: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"are too few for the splits: none left for {empty}$"):
        make(tmp_path, **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_source_reads_one_split(world: Path) -> None:
    rows = [row for _, row in numbered_rows(world / "data" / "questions.jsonl")]
    for split in ("sft", "test"):
        ids = [one.id for one in WorldQuestions(world, split)]
        assert ids == [row["id"] for row in rows if row["split"] == split]
    assert [one.id for one in WorldQuestions(world, "test", 5)] == ids[:5]
    first = next(iter(WorldQuestions(world, "test")))
    assert first.gold is not None
    assert len(first.gold.steps) == first.gold.hops


def test_questions_may_be_kept_by_their_hops(world: Path) -> None:
    def hops(**settings: Any) -> list[int]:
        return [one.gold.hops for one in WorldQuestions(world, "rl", **settings) if one.gold and one.gold.hops]

    assert sorted(set(hops())) == [1, 2, 3]
    assert (len(hops()), len(hops(hops=[2, 3])), len(hops(hops=[3]))) == (88, 62, 26)
    assert hops(hops=[3], limit=5) == [3] * 5
    with pytest.raises(DataError, match=r"no usable question \(.*\d+ not of 5, 7 hops"):
        list(WorldQuestions(world, "rl", hops=[5, 7]))


def test_a_test_set_of_another_distribution_shares_no_question_with_training(world: Path, tmp_path: Path) -> None:
    """The same seed and splits without skew and comparisons: other facts of the same names, in the same tokens."""
    make(tmp_path, skew=0.0, comparison=0)
    ours, theirs = digest(world), digest(tmp_path)
    assert {name for name in ours if ours[name] == theirs[name]} == {name for name in ours if "tokenizer" in name}
    shifted = {one.text for one in WorldQuestions(tmp_path, "test")}
    trained = {one.text for split in ("sft", "search", "refine", "rl") for one in WorldQuestions(world, split)}
    assert len(shifted) == 37
    assert not shifted & trained


def test_a_sample_is_not_the_head_of_the_order_in_which_the_world_chose(world: Path) -> None:
    whole = [question.id for question in WorldQuestions(world, "test")]
    for seed in range(4):
        sample = [question.id for question in WorldQuestions(world, "test", sample=6, seed=seed)]
        assert set(sample) < set(whole)
        assert set(sample) != set(whole[:6])


def test_a_source_gives_the_passages_of_the_whole_world(world: Path) -> None:
    documents = {document.id: document for document in WorldQuestions(world, "test").documents()}
    assert len(documents) == 88
    for one in WorldQuestions(world, "test"):
        assert one.gold is not None
        for step, title in zip(one.gold.steps, one.gold.titles, strict=True):
            document: Document = documents[step.documents[0]]
            assert document.title == title
            assert step.answer in document.text


def test_an_unknown_split_is_named_with_those_that_are_there(world: Path) -> None:
    with pytest.raises(DataError, match=r"no usable question \(skipped: .*38 in split dev"):
        list(WorldQuestions(world, "train"))
