from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from common.errors import DataError
from evaluation.pages.freeze import main as freeze_main
from evaluation.pages.page import main as page_main
from evaluation.pages.page import render
from evaluation.report.report import write
from tests.evaluation.fake import run, step_ranking
from tests.evaluation.pages.systems import kept

ROOT = Path(__file__).parents[3]
TITLE = ["--title", "T", "--command", "c"]


def page(folder: Path, name: str = "a") -> str:
    """One page, its runs of spaces shortened."""
    return " ".join(render(folder)[folder / "pages" / f"{name}.md"].split())


def test_the_committed_pages_are_what_the_committed_results_say() -> None:
    folder = ROOT / "docs" / "results"
    pages = render(folder)
    for path, text in pages.items():
        committed = path.read_text(encoding="utf-8")
        same = alike(committed, text) if path.suffix == ".svg" else committed == text
        assert same, f"{path.name}: run python -m evaluation.pages.page docs/results"
    assert {folder.with_suffix(".md"), *folder.glob("pages/*"), *folder.glob("figures/*")} == pages.keys()


def alike(one: str, other: str) -> bool:
    """Whether two SVGs say and show the same: coordinates may differ in what no eye sees, from processor to processor.

    Names of elements are hashes of such coordinates.
    """
    numbers = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
    texts = [re.sub(r'"(url\()?#?[mpC][0-9a-f_]{8,}\)?"', "name", text) for text in (one, other)]
    first, second = ([float(number) for number in re.findall(numbers, text)] for text in texts)
    rest = [re.sub(numbers, "0", text) for text in texts]
    # Encoded images hold what reads as a number beyond all floats: infinity is itself, and has no difference to itself.
    return rest[0] == rest[1] and all(a == b or abs(a - b) < 0.01 for a, b in zip(first, second, strict=True))


def test_figures_that_differ_in_a_point_or_a_word_are_not_alike() -> None:
    figure = '<path id="m0123456789" d="M 1.000001 2"/><text>β</text>'
    assert alike(figure, figure.replace("1.000001", "1.000002").replace("m0123456789", "m9876543210"))
    assert not alike(figure, figure.replace("1.000001", "1.1"))
    assert not alike(figure, figure.replace("β", "λ"))
    image = '<image href="data:image/png;base64,iVBOR9394e9621"/>'
    assert alike(image, image)
    assert not alike(image, image.replace("9394e9621", "9394e1"))


def test_every_committed_result_has_an_answer() -> None:
    folder = ROOT / "docs" / "results"
    for path in (*folder.glob("*.json"), *{path.parent for path in folder.glob("*/*.json")}):
        answer = path.with_suffix(".md").read_text(encoding="utf-8").partition("\n\n")[0]
        sentences = re.split(r"(?<=[.])\s+(?=[A-Z])", answer)
        assert 2 <= len(sentences) <= 3, path.name
        assert all(len(sentence.split()) <= 25 for sentence in sentences), path.name


def test_each_result_has_a_page_and_a_place_in_the_index(tmp_path: Path) -> None:
    exp, folder = str(tmp_path / "runs" / "exp"), tmp_path / "kept"
    run(tmp_path / "runs", "exp", [1, 0], seed=0)
    freeze_main([exp, "--out", str(folder / "b.json"), "--title", "One", "--command", "train it"])
    run(tmp_path / "runs", "exp", [1, 1], seed=1)
    asked = ["--title", "Two", "--command", "train both", "--question", "Are two better?"]
    freeze_main([exp, "--out", str(folder / "a.json"), *asked])
    (folder / "a.md").write_text("Yes, by 25 points.\n\nOr so.\n")
    (folder / "index.md").write_text("Two are [better](pages/a.md).\n")
    page_main([str(folder)])
    lines = [" ".join(line.split()) for line in (tmp_path / "kept.md").read_text().splitlines() if line]
    assert lines[:4] == [
        "# Results",
        "Two are [better](kept/pages/a.md).",
        "## By question",
        "| page | question | answer |",
    ]
    two = "| [Two](kept/pages/a.md) | Are two better? | Yes, by 25 points. |"
    assert lines[5:7] == [two, "| [One](kept/pages/b.md) | | |"]
    assert page(folder).startswith("# Two *Are two better?* Yes, by 25 points. ## Results ")
    assert "| eval | 0, 1 | 2 | 75.0 [" in page(folder)
    assert "``` train both ``` Commit abc123; seeds 0, 1; " in page(folder)
    assert "torch 2.13.0" in page(folder)
    assert "[a.json](../a.json)" in page(folder)
    assert "top_k 3" not in page(folder), "settings stay in the JSON"
    assert "| eval | 0 | 2 | 50.0 [" in page(folder, "b")
    assert {path: path.read_text() for path in [tmp_path / "kept.md", *folder.glob("pages/*")]} == render(folder)


def test_figures_are_drawn_beside_the_page_below_the_answer_and_comments_are_last(tmp_path: Path) -> None:
    for seed, em in ((0, [1, 0]), (1, [1, 1])):
        for number in (0, 1):
            run(tmp_path / "runs", f"beta_{number}", em, seed=seed)
    arms, folder = [str(tmp_path / "runs" / f"beta_{number}") for number in (0, 1)], tmp_path / "kept"
    asked = ["--figure", "sweep", "--figure", "arms=beta_1"]
    freeze_main([*arms, "--out", str(folder / "a.json"), *TITLE, *asked])
    (folder / "a.md").write_text("A little is best.\n\nOr not.\n")
    page_main([str(folder)])
    text = page(folder)
    first, second = text.index("(../figures/a-sweep.svg)"), text.index("(../figures/a-arms-beta_1.svg)")
    assert text.index("A little is best.") < first < second < text.index("## Results")
    assert text.index("## How it was run") < text.index("## Comments Or not. Generated by")
    drawn = {path.name: path.read_text() for path in (folder / "figures").iterdir()}
    assert drawn.keys() == {"a-sweep.svg", "a-arms-beta_1.svg"}
    assert ">β</text>" in drawn["a-sweep.svg"]
    assert ">beta_1:eval</text>" in drawn["a-arms-beta_1.svg"]
    assert ">beta_0:eval</text>" not in drawn["a-arms-beta_1.svg"]


def test_runs_that_rank_steps_alone_have_a_page_too(tmp_path: Path) -> None:
    for seed, wrong in ((0, 0), (1, 2)):
        write(tmp_path, "exp", seed, {"rank": step_ranking(tmp_path / f"rank{seed}", right=2, wrong=wrong)})
    asked = ["--figure", "auc", "--figure", "reliability"]
    freeze_main([str(tmp_path / "exp"), "--out", str(tmp_path / "kept" / "a.json"), *TITLE, *asked])
    text = page(tmp_path / "kept")
    assert "| exp | – | 0, 1 | 0.750 [" in text
    assert "## Results" not in text
    assert "Commit c; seeds 0, 1; " in text
    assert text.index("(../figures/a-auc.svg)") < text.index("## Ranking of true and untrue steps")


def test_a_folder_without_results_leaves_the_pages_as_they_were(tmp_path: Path) -> None:
    index = tmp_path / "kept.md"
    index.write_text("# Results")
    (tmp_path / "kept").mkdir()
    with pytest.raises(SystemExit, match=r"^error: no results \(\*\.json\) in .*kept: make some with [^\n]*$"):
        page_main([str(tmp_path / "kept")])
    assert index.read_text() == "# Results"


def test_files_of_a_folder_have_one_page_with_the_arms_in_its_figure(tmp_path: Path) -> None:
    folder = kept(tmp_path, prm={"metrics": {"verifier/equality/over_search/kappa": 0.5, "loss": 9}})
    folder.with_suffix(".md").write_text("The other.\n\nWhy: luck.\n")
    pages = render(folder.parent)
    assert {path.name for path in pages} == {"kept.md", "systems.md", "systems-arms.svg"}
    text = pages[folder.parent / "pages" / "systems.md"]
    assert text.startswith("# Systems\n\n*Which?*\n\nThe other.\n\n![Exact match by arm](../figures/systems-arms.svg)")
    assert text.index("\n\n## Results\n") < text.index("| sft ") < text.index("\n\nWhy: luck.\n")
    assert re.search(r"^\| prm/equality/over_search \| 0.500 \|$", text, re.MULTILINE)
    drawn = pages[folder.parent / "figures" / "systems-arms.svg"]
    assert all(f">{name}</text>" in drawn for name in ("sft", "prorag_rl", "other_rl", "hiprag_rl"))


def test_a_page_shows_the_names_that_experiments_give_and_its_legend_leads_back(tmp_path: Path) -> None:
    for number, names in enumerate(
        ({"eval": "Answers, β = 0"}, {"eval": "Answers, β = 0.5"}, {"eval": "Same"}, {"eval": "Same"})
    ):
        run(tmp_path / "runs", f"beta_0.{number}", [1, number % 2])
        told = {"names": names, "stages": {}}
        (tmp_path / "runs" / f"beta_0.{number}" / "seed0" / "experiment.json").write_text(json.dumps(told))
    arms, folder = [str(tmp_path / "runs" / f"beta_0.{number}") for number in range(4)], tmp_path / "kept"
    asked = ["--figure", "sweep=beta_0.0,beta_0.1", "--figure", "arms", "--baseline", "beta_0.0"]
    freeze_main([*arms, "--out", str(folder / "a.json"), *TITLE, *asked])
    assert json.loads((folder / "a.json").read_text())["names"]["beta_0.1:eval"] == "Answers, β = 0.5"
    page_main([str(folder)])
    text = page(folder)
    results, legend = text.partition("## Against the baseline")[0], text.partition("## Legend")[2]
    assert "| Answers, β = 0.5 | 0 | 2 | 100.0 [" in results
    assert "| beta_0.2:eval | 0 | 2 |" in results, "two arms of one name are called by their ids"
    assert "Difference to Answers, β = 0 on" in text
    assert "| Answers, β = 0.5 | `beta_0.1:eval` | `beta_0.1:eval` |" in legend
    assert "| EM | exact match" in legend
    assert "| flawed |" not in legend, "no arm has it"
    drawn = [(folder / "figures" / f"a-{name}.svg").read_text() for name in ("sweep-beta_0.0-beta_0.1", "arms")]
    assert ">Answers</text>" in drawn[0]
    assert ">β</text>" in drawn[0]
    assert ">Answers, β = 0.5</text>" in drawn[1]


def test_a_file_and_a_folder_of_one_name_are_not_one_page(tmp_path: Path) -> None:
    folder = kept(tmp_path)
    folder.with_suffix(".json").write_text("{}")
    with pytest.raises(DataError, match="would have one page"):
        render(folder.parent)


def test_the_papers_figures_name_their_sources() -> None:
    text = (ROOT / "docs" / "published.md").read_text()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    rows = [row for row in rows if row[0].strip() != "theirs" and not set("".join(row)) <= set("- :")]
    assert len(rows) > 30
    for row in rows:
        assert re.match(r" arXiv \d{4}\.\d{5}", row[1]), row
