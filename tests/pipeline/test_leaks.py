"""Who may share questions with whom: told before any work where files exist, else between stages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from common.errors import ConfigError
from datamodules.sources import Source
from datamodules.sources.world_facts import WorldFacts
from datamodules.sources.world_questions import WorldQuestions
from datamodules.world_data import WorldData
from pipeline.leaks import Leaks
from pipeline.loader import load
from pipeline.plan import Plan
from tests import micro


class Asker:
    """A record stage that takes questions for a role that its config names."""

    def __init__(self, questions: Source, role: str = "sft", after: Path | None = None) -> None:
        self.questions, self.role = questions, role

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        (folder / "asked").touch()

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        return {"asked": float(len(list(self.questions)))}


class Trainer(Asker):
    """The same, with the role in the class."""

    role: ClassVar[str] = "rl"  # type: ignore[misc]

    def __init__(self, questions: Source) -> None:
        super().__init__(questions, "rl")


class Unsaid:
    """Takes questions and does not say what for."""

    def __init__(self, questions: Source, count: int = 1) -> None:
        self.questions = questions

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None: ...

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        return {}


class Lookup(Unsaid):
    """Only looks questions up."""

    role = None


def file(folder: Path, name: str, rows: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """A source of a new file of (id, text) rows."""
    path = folder / name
    path.write_text("".join(json.dumps({"id": i, "question": text, "answer": "x"}) + "\n" for i, text in rows))
    return {"target": "datamodules.sources.rows:Rows", "path": str(path)}


def asker(questions: dict[str, Any], role: str = "sft", kind: str = "Asker") -> dict[str, Any]:
    roles = {"role": role} if kind == "Asker" else {}
    return {"data": {"target": f"tests.pipeline.test_leaks:{kind}", "questions": questions, **roles}}


def evaluation(questions: dict[str, Any], split: str = "test") -> dict[str, Any]:
    benchmark = {"target": "evaluation.evaluate:Benchmark", "questions": questions, "split": split}
    data = {"target": "evaluation.evaluate:Evaluation", "datasets": {"toy": benchmark}, "environment": None}
    return {"data": {**data, "sampler": None}}


def leaks(folder: Path, stages: dict[str, Any]) -> Leaks:
    path = folder / "x.yaml"
    path.write_text(json.dumps({"experiment": "x", "output": str(folder / "runs"), "stages": stages}, indent=1))
    return Leaks(Plan.of(load(path)))


ROWS = [("a", "Who wrote Emma?"), ("b", "Where is Bath?"), ("c", "When was Alien made?")]


@pytest.mark.parametrize("role", ["sft", "search", "refine", "rl"])
def test_evaluation_questions_are_in_no_other_role(tmp_path: Path, role: str) -> None:
    held_out = file(tmp_path, "test.jsonl", ROWS)
    stages = {"train": asker(file(tmp_path, "train.jsonl", [("d", "Why?"), ROWS[1], ROWS[2]]), role)}
    leaks(tmp_path, stages).check()
    with pytest.raises(
        ConfigError, match=rf"leak: 2 of the questions, b the first, for {role} at stages\.train"
    ) as told:
        leaks(tmp_path, stages | {"eval": evaluation(held_out)}).check()
    places = r"x\.yaml:\d+\) and for eval at stages\.eval\.data\.datasets\.toy\.questions \(.*x\.yaml:\d+\)"
    assert told.match(places)
    assert "\n" not in str(told.value)


def test_what_is_asked_along_a_fit_is_for_choosing_and_in_no_evaluation_but_one_of_dev(tmp_path: Path) -> None:
    asked = file(tmp_path, "asked.jsonl", ROWS)
    curve = {"target": "callbacks.validation:Validation", "protocol": None}
    curve |= {"datasets": evaluation(asked)["data"]["datasets"]}
    fit = {"module": {"target": "tests.toy_training:Slope"}, "data": {"target": "tests.toy_training:Line"}}
    stages = {"fit": {**fit, "callbacks": {"curve": curve}}}
    leaks(tmp_path, stages | {"eval": evaluation(asked, "dev")}).check()
    refused = r"leak: 1 .* for dev at stages\.fit\.callbacks\.curve.* for eval at stages\.eval"
    with pytest.raises(ConfigError, match=refused):
        leaks(tmp_path, stages | {"eval": evaluation(file(tmp_path, "test.jsonl", ROWS[2:]))}).check()
    with pytest.raises(ConfigError, match=r"leak: 3 .* for dev at .* for sft at stages\.train"):
        leaks(tmp_path, stages | {"train": asker(asked)}).check()


@pytest.mark.parametrize(
    ("one", "other", "refused"),
    [
        *[("rl", "search", True), ("rl", "refine", True), ("rl", "sft", False)],
        *[("search", "refine", False), ("search", "sft", False), ("refine", "sft", False), ("rl", "rl", False)],
    ],
)
def test_reinforcement_learning_has_questions_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], one: str, other: str, refused: bool
) -> None:
    stages = {
        "first": asker(file(tmp_path, "1.jsonl", ROWS), one),
        "second": asker(file(tmp_path, "2.jsonl", ROWS[1:]), other),
    }
    checked = leaks(tmp_path, stages)
    if refused:
        with pytest.raises(ConfigError, match=f"for {one} at .* and for {other}"):
            checked.check()
    else:
        checked.check()
        checked.check()  # tells once
        told = f"note: 2 of the questions, b the first, for {one} at stages.first"
        assert capsys.readouterr().out.count(told) == (one != other)


def test_the_same_text_is_the_same_question_and_a_row_number_is_not(tmp_path: Path) -> None:
    stages = {"eval": evaluation(file(tmp_path, "test.jsonl", [("1", "Who wrote Emma?"), ("nq-2", "Where is Bath?")]))}
    numbers = file(tmp_path, "numbers.jsonl", [("1", "Who is Ada?"), ("nq-2", "Who is Bob?")])
    leaks(tmp_path, stages | {"train": asker(numbers)}).check()
    reworded = file(tmp_path, "texts.jsonl", [("z", "who wrote  EMMA")])
    with pytest.raises(ConfigError, match="leak: 1 of the questions, 1 the first"):
        leaks(tmp_path, stages | {"train": asker(reworded)}).check()


def test_a_mixture_does_not_hide_a_question_by_renaming_it(tmp_path: Path) -> None:
    held_out = file(tmp_path, "test.jsonl", [("5a7f", "Who wrote Emma?")])
    mixed = {"target": "datamodules.sources.mixture:Mixture", "sources": {}}
    mixed["sources"]["toy"] = file(tmp_path, "train.jsonl", [("5a7f", "Who was it that wrote Emma?")])
    with pytest.raises(ConfigError, match="leak: 1 of the questions"):
        leaks(tmp_path, {"train": asker(mixed), "eval": evaluation(held_out)}).check()


def test_a_component_that_does_not_say_what_its_questions_are_for_is_refused(tmp_path: Path) -> None:
    unsaid = asker(file(tmp_path, "all.jsonl", ROWS), kind="Unsaid")
    message = (
        r"^tests\.pipeline\.test_leaks:Unsaid at stages\.gold\.data \(.*x\.yaml:\d+\) takes questions and has no role: "
    )
    with pytest.raises(ConfigError, match=message) as told:
        leaks(tmp_path, {"gold": unsaid}).check()
    assert "\n" not in str(told.value)


def test_the_role_may_stand_in_the_class_and_none_is_compared_with_nothing(tmp_path: Path) -> None:
    questions = file(tmp_path, "all.jsonl", ROWS)
    stages = {"eval": evaluation(questions)}
    leaks(tmp_path, stages | {"gold": asker(questions, kind="Lookup")}).check()
    with pytest.raises(ConfigError, match="for rl at"):
        leaks(tmp_path, stages | {"train": asker(questions, kind="Trainer")}).check()
    with pytest.raises(ConfigError, match=r"unknown role 'sf' at stages\.train\.data .*did you mean 'sft'"):
        leaks(tmp_path, stages | {"train": asker(questions, "sf")}).check()


def test_a_source_without_a_role_is_compared_with_nothing_and_hides_no_other(tmp_path: Path) -> None:
    """Known facts are taught and measured; a leak beside them is told all the same."""
    WorldData(people=20, cities=6, works=8, organisations=6, countries=3, questions=60, hops=(1,), known=0.9).make(
        tmp_path / "world", seed=0, rank=0, world_size=1
    )
    facts = {"target": "datamodules.sources.world_facts:WorldFacts", "path": str(tmp_path / "world")}
    test = {**unmade(split="test"), "path": str(tmp_path / "world")}
    asked = {question.text for question in WorldQuestions(tmp_path / "world", "test")}
    assert asked & {question.text for question in WorldFacts(tmp_path / "world")}, "else there is nothing to compare"
    stages = {"drills": asker(facts), "recall": evaluation(facts), "eval": evaluation(test)}
    leaks(tmp_path, stages).check()
    with pytest.raises(ConfigError, match=r"for eval at stages\.eval\..* and for sft at stages\.train"):
        leaks(tmp_path, stages | {"train": asker(test)}).check()


def unmade(**settings: Any) -> dict[str, Any]:
    return {"target": "datamodules.sources.world_questions:WorldQuestions", "path": "${stage:world}", **settings}


WORLD = {"data": {"target": "tests.toys:Numbers", "count": 1}}


@pytest.mark.parametrize(
    ("mine", "other", "certain"),
    [
        ({"split": "test"}, {"split": "test"}, True),
        ({"split": "test"}, {"split": "rl"}, False),
        ({"split": "test", "sample": 5}, {"split": "test", "sample": 9}, True),
        ({"split": "test", "sample": 5, "seed": 1}, {"split": "test", "sample": 9}, False),
        ({"split": "test", "limit": 5}, {"split": "test"}, True),
        ({"split": "test", "part": [0, 0.5]}, {"split": "test", "part": [0.4, 1]}, True),
        ({"split": "test", "part": [0, 0.5]}, {"split": "test", "part": [0.5, 1]}, False),
        ({"split": "test", "part": [0, 0.5]}, {"split": "test"}, True),
        ({"split": "test", "part": [0, 0.5], "limit": 5}, {"split": "test"}, False),
    ],
)
def test_sources_of_a_stage_that_is_not_made_are_compared_by_their_settings(
    tmp_path: Path, mine: dict[str, Any], other: dict[str, Any], certain: bool
) -> None:
    checked = leaks(tmp_path, {"world": WORLD, "train": asker(unmade(**mine)), "eval": evaluation(unmade(**other))})
    if certain:
        with pytest.raises(ConfigError, match=r"leak: the same questions for sft at .* and for eval at"):
            checked.check()
    else:
        checked.check()


EVALUATED, TRAINED = ("dev", "test"), ("teach", "search", "sample", "rl", "rl_outcome")


@pytest.mark.parametrize(
    ("stage", "split"),
    [
        *((stage, split) for stage in TRAINED for split in EVALUATED),
        *((stage, split) for stage in ("rl", "rl_outcome") for split in ("search", "refine")),
        *((stage, "rl") for stage in ("search", "sample")),
    ],
)
def test_no_stage_of_the_quickstart_may_move_to_a_split_of_another_role(tmp_path: Path, stage: str, split: str) -> None:
    moved = load(micro.QUICKSTART, [f"output={tmp_path}", f"stages.{stage}.data.questions.split={split}"])
    with pytest.raises(
        ConfigError, match=rf"leak: the same questions for .* stages\.{stage}(_outcome)?\.data\.questions "
    ):
        Leaks(Plan.of(moved)).check()


LATE = """\
experiment: late
output: {output}
stages:
  world:
    data:
      target: datamodules.world_data:WorldData
      people: 40
      works: 20
      organisations: 15
      cities: 12
      countries: 4
      questions: 120
      splits: {{sft: 60, test: 60}}
  train:
    data:
      target: tests.pipeline.test_leaks:Asker
      role: rl
      questions:
        target: datamodules.sources.rows:Rows
        path: "${{stage:world}}/data/questions.jsonl"
        split: {split}
  ask:
    data:
      target: tests.pipeline.test_leaks:Asker
      role: eval
      after: "${{stage:train}}"
      questions: {{target: "datamodules.sources.world_questions:WorldQuestions", path: "${{stage:world}}", split: test}}
"""


def test_what_only_a_made_stage_can_tell_is_told_before_the_next_one_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "late.yaml"
    config.write_text(LATE.format(output=tmp_path / "runs", split="test"))
    assert micro.run(config=config) == 1
    assert "for rl at stages.train.data.questions" in capsys.readouterr().err
    assert [path.name[:6] for path in (tmp_path / "runs" / "store").iterdir() if path.is_dir()] == ["world-"]
    assert micro.run(config=config) == 2  # now it is known before any work
    config.write_text(LATE.format(output=tmp_path / "runs", split="sft"))
    assert micro.run(config=config) == 0


def test_nothing_is_read_where_nothing_would_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "late.yaml"
    config.write_text(LATE.format(output=tmp_path / "runs", split="sft"))
    assert micro.run(config=config) == 0
    questions = next((tmp_path / "runs" / "store").glob("world-*")) / "data" / "questions.jsonl"
    questions.write_bytes(b"x" * questions.stat().st_size)
    assert micro.run(config=config) == 0
