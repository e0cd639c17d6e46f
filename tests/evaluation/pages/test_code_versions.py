from __future__ import annotations

from pathlib import Path

from evaluation.pages.page import render
from tests.evaluation.pages.systems import kept


def lines(folder: Path) -> list[str]:
    kept_at = folder.parent / "pages" / f"{folder.name}.md"
    return [line for line in render(folder.parent)[kept_at].splitlines() if line]


def test_a_page_of_one_version_opens_with_its_question_and_names_the_version(tmp_path: Path) -> None:
    text = lines(kept(tmp_path / "one"))
    assert text[1].startswith("*"), "the question"
    assert "One version of the code (aaa) made all rows." in text


def test_a_page_of_two_versions_says_so_in_its_first_line_and_which_made_what_at_its_end(tmp_path: Path) -> None:
    text = lines(kept(tmp_path / "two", other_rl={"source": "bbb"}))
    assert text[1].startswith("**2 versions of the code made these rows**")
    assert "By hash of the source, aaa made most rows; bbb made other_rl (seed 1)." in text
