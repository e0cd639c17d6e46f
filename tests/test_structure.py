"""The rules of the house that a machine can check: who imports whom, how long a file is, that docs name real things."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import train

ROOT = Path(train.__file__).parent
ROOMS = ("configs", "envs", "modules", "datamodules", "callbacks", "reports")
FORBIDDEN = {
    "envs": {"configs", "modules", "datamodules", "callbacks", "reports", "train", "lightning", "omegaconf"},
    "modules/functional": {"configs", "datamodules", "callbacks", "reports", "train", "lightning", "omegaconf"},
    "modules": {"configs", "datamodules", "callbacks", "reports", "train", "omegaconf"},
    "datamodules": {"configs", "modules", "callbacks", "reports", "train", "omegaconf"},
    "callbacks": {"configs", "reports", "train", "omegaconf"},
    "configs": {"modules", "datamodules", "callbacks", "reports", "train"},
    "reports": {"configs", "callbacks", "train", "lightning", "omegaconf"},
}
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FILES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def imported(path: Path) -> Iterator[str]:
    """Top-level names that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


@pytest.mark.parametrize("room", FORBIDDEN)
def test_imports_go_one_way(room: str) -> None:
    for path in sorted((ROOT / room).rglob("*.py")):
        wrong = FORBIDDEN[room] & set(imported(path))
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_only_the_loader_imports_omegaconf() -> None:
    users = [path.relative_to(ROOT).as_posix() for path in FILES if "omegaconf" in set(imported(path))]
    assert users == ["configs/loader.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_holds_one_idea_and_says_which(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 300
    if text.strip():
        assert ast.get_docstring(ast.parse(text))


def test_the_entry_point_stays_a_table_of_contents() -> None:
    assert (ROOT / "train.py").read_text().count("\n") <= 80
    assert "torch" not in set(imported(ROOT / "train.py"))


def test_every_component_that_the_docs_name_exists() -> None:
    for page in PAGES:
        for module, name in re.findall(
            r"\b((?:envs|modules|datamodules|callbacks|configs)(?:\.\w+)+):(\w+)", page.read_text()
        ):
            source = ROOT / f"{module.replace('.', '/')}.py"
            assert source.exists(), f"{page.name} names {module}"
            assert re.search(rf"^(class|def) {name}\b", source.read_text(), re.M), f"{page.name} names {module}:{name}"


def test_every_page_that_a_page_links_to_exists() -> None:
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "recipes.md"} <= {page.name for page in PAGES}
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
