"""The rules of the house that a machine can check: who imports whom, how long a file is, that docs name real things."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import train

ROOT = Path(train.__file__).parent
PACKAGES = ("common", "envs", "modules", "datamodules", "evaluation", "callbacks", "systems", "pipeline")
# What each package may import of the others; `common` needs none, and only train.py may import all. Nothing imports
# `systems`, and no system another.
MAY_IMPORT = {
    "common": set(),
    "envs": {"common"},
    "modules/functional": {"common"},
    "modules": {"common", "envs"},
    "datamodules": {"common", "envs"},
    "evaluation": {"common", "envs", "modules", "datamodules"},
    "callbacks": {"common", "envs", "modules", "datamodules", "evaluation"},
    "systems": {"common", "envs", "modules", "datamodules", "evaluation", "callbacks"},
    "pipeline": {"common"},
}
# Rooms within a package, and those of its other rooms that each may import; of its root all may.
ROOMS_BELOW: dict[str, set[str]] = {
    "evaluation/steps": set(),
    "evaluation/pages": {"steps"},
    "evaluation/report": {"steps", "pages"},
    "modules/decoder": set(),
    "modules/reward_model": {"decoder"},
    "modules/samplers": {"decoder"},
}
WITHOUT_LIGHTNING = ("common", "envs", "modules/functional", "evaluation")
SYSTEM_PAGES = sorted((ROOT / "systems").glob("*/README.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *SYSTEM_PAGES]
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


SYSTEMS = sorted(path.parent.name for path in (ROOT / "systems").glob("*/__init__.py"))
# Of two rooms that share a file name one says what it is of: a rollout and its callback are one thing.
ONE_THING = ("rollout.py",)


def imported(path: Path) -> Iterator[str]:
    """Top-level names that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def functions_in(text: str) -> list[tuple[str, str]]:
    """What a page writes as `file.py:function`."""
    return re.findall(r"`([\w/]+\.py):([\w.]+)`", text)


def _modules(path: Path) -> Iterator[str]:
    """Modules that a file imports, also those for the type checker alone; not those inside functions."""
    body = ast.parse(path.read_text()).body
    for node in [*body, *(inner for block in body if isinstance(block, ast.If) for inner in block.body)]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_go_one_way(package: str) -> None:
    own = package.partition("/")[0]
    forbidden = {*PACKAGES, "configs", "train"} - MAY_IMPORT[package] - {own}
    for path in sorted((ROOT / package).rglob("*.py")):
        wrong = forbidden & set(imported(path))
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


@pytest.mark.parametrize("system", SYSTEMS)
def test_no_system_imports_another(system: str) -> None:
    others = {f"systems.{other}" for other in SYSTEMS if other != system}
    for path in sorted((ROOT / "systems" / system).rglob("*.py")):
        names = {".".join(name.split(".")[:2]) for name in _modules(path)}
        assert not names & others, path.relative_to(ROOT)


@pytest.mark.parametrize(("room", "others"), ROOMS_BELOW.items())
def test_the_rooms_of_a_package_have_floors(room: str, others: set[str]) -> None:
    """A room within a package imports, of the other rooms of that package, those below it alone."""
    package, _, _ = room.rpartition("/")
    rooms = {other.rpartition("/")[2] for other in ROOMS_BELOW if other.rpartition("/")[0] == package}
    forbidden = {f"{package.replace('/', '.')}.{other}" for other in rooms - others - {room.rpartition("/")[2]}}
    for path in sorted((ROOT / room).rglob("*.py")):
        wrong = [name for name in _modules(path) if any(name == one or name.startswith(f"{one}.") for one in forbidden)]
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


@pytest.mark.parametrize("package", WITHOUT_LIGHTNING)
def test_the_core_does_not_need_lightning(package: str) -> None:
    for path in sorted((ROOT / package).rglob("*.py")):
        assert "lightning" not in set(imported(path)), path.relative_to(ROOT)


def test_no_imports_form_a_circle() -> None:
    names = {path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."): path for path in FILES}
    graph = {name: [other for other in _modules(path) if other in names] for name, path in names.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_no_two_rooms_share_a_file_name() -> None:
    places: dict[str, set[str]] = {}
    for path in FILES:
        if path.name != "__init__.py":
            places.setdefault(path.name, set()).add(path.relative_to(ROOT).parts[0])
    shared = {name: sorted(packages) for name, packages in places.items() if len(packages) > 1}
    assert not {name: packages for name, packages in shared.items() if name not in ONE_THING}, shared


def test_configs_hold_yaml_alone() -> None:
    assert {path.suffix for path in (ROOT / "configs").rglob("*") if path.is_file()} == {".yaml"}


def test_only_the_loader_imports_omegaconf() -> None:
    users = [path.relative_to(ROOT).as_posix() for path in FILES if "omegaconf" in set(imported(path))]
    assert users == ["pipeline/loader.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_holds_one_idea_and_says_which(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 300
    if text.strip():
        assert ast.get_docstring(ast.parse(text))


def test_the_entry_point_stays_a_table_of_contents() -> None:
    assert (ROOT / "train.py").read_text().count("\n") <= 85
    assert "torch" not in set(imported(ROOT / "train.py"))


def test_every_component_that_the_docs_name_exists() -> None:
    for page in PAGES:
        for module, name in re.findall(
            r"\b((?:common|envs|modules|datamodules|evaluation|callbacks|systems|pipeline)(?:\.\w+)+):(\w+)",
            page.read_text(),
        ):
            source = ROOT / f"{module.replace('.', '/')}.py"
            if f"`systems/{source.parent.name}/README.md`\n" in page.read_text():
                continue  # the page brings this system itself
            assert source.exists(), f"{page.name} names {module}"
            assert re.search(rf"^(class|def) {name}\b", source.read_text(), re.M), f"{page.name} names {module}:{name}"


def test_every_function_that_a_page_names_in_a_file_exists() -> None:
    named = {page.relative_to(ROOT).as_posix(): functions_in(page.read_text()) for page in PAGES}
    assert len(named["README.md"]) >= 10, "one question's way"
    for page, functions in named.items():
        for file, name in functions:
            assert (ROOT / file).exists(), f"{page} names {file}"
            source, last = (ROOT / file).read_text(), name.rpartition(".")[2]
            assert re.search(rf"\b(def |class |self\.){last}\b|^{last} = ", source, re.M), (page, file, name)


def test_every_equation_of_prorag_has_its_function() -> None:
    page = (ROOT / "systems" / "prorag" / "README.md").read_text()
    _, _, section = page.partition("## Equations")
    rows = dict(re.findall(r"^\| Eq (\d) \|[^|]*\|([^|]*)\|", section.partition("\n## ")[0], re.M))
    assert sorted(rows) == [str(number) for number in range(1, 10)]
    assert all(functions_in(row) for row in rows.values())


@pytest.mark.parametrize("page", SYSTEM_PAGES, ids=lambda page: page.parent.name)
def test_a_systems_page_has_the_shape_of_the_others_and_names_files_that_exist(page: Path) -> None:
    text, system = page.read_text(), page.parent.name
    assert re.findall(r"^\| \*\*(files|run|arms|results)\*\* \|", text, re.M) == ["files", "run", "arms", "results"]
    assert re.search(r"^## What (it is|they are)$", text, re.M)
    assert re.search(r"^## Where (it differs|they differ) from paper and code$", text, re.M)
    folders = (page.parent, ROOT, ROOT / "configs" / system)
    names = re.findall(r"`(?:python train\.py --config )?([\w./*]+(?:\.py|\.yaml|/))`", text)
    for name in names:
        assert any(any(folder.glob(name)) for folder in folders), f"{system}/README.md names {name}"
    described = {Path(name).name for name in names} | {Path(file).name for file, _ in functions_in(text)}
    own = {path.name for path in page.parent.glob("*.py")} - {"__init__.py"}
    assert own <= described, f"{system}/README.md leaves out {own - described}"


def test_every_page_that_a_page_links_to_exists() -> None:
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "recipes.md"} <= {page.name for page in PAGES}
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_test_that_a_page_names_exists() -> None:
    named = [pair for page in PAGES for pair in re.findall(r"`(tests/[\w/]+\.py)::(\w+)", page.read_text())]
    assert len(named) >= 20, "docs/reliability.md names the test of each promise"
    for file, name in named:
        assert (ROOT / file).exists(), f"a page names {file}"
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.M), f"a page names {file}::{name}"
