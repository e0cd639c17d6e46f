"""Plain English: openings of docstrings, phrases that a reader has to translate, lengths of sentences and lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("common", "pipeline", "envs", "modules", "datamodules", "evaluation", "callbacks", "systems", "benchmarks")
FILES = [ROOT / "train.py", *(file for room in (*ROOMS, "examples") for file in sorted((ROOT / room).rglob("*.py")))]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(
        page
        for page in sorted(ROOT.glob("docs/**/*.md"))
        if not page.relative_to(ROOT).as_posix().startswith("docs/results")
    ),
    *sorted(ROOT.glob("systems/*/README.md")),
]
RIDDLE = re.compile(r"(What|Whose|Who|How|Why|Where|When|Which|Whether|Is|Are|Does)\b")
MOST_WORDS, MOST_CHARACTERS = 35, 160


def lexicon() -> dict[str, str]:
    """Phrases to avoid, each with what to write: the table of CONTRIBUTING.md."""
    written = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| \*(.+?)\* \| (.+?) \|$", written, flags=re.MULTILINE)
    return {phrase.replace(r"\|", "|"): instead for phrase, instead in rows}


def phrases(text: str) -> list[str]:
    """The phrases of the lexicon that a text uses."""
    return [phrase for phrase in lexicon() if re.search(rf"\b{phrase}\b", text, flags=re.IGNORECASE)]


def prose(page: str) -> Iterator[str]:
    """The paragraphs and list items of a page, without code, tables, headings, quotes and the targets of links."""
    page = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"`[^`]*`", "x", re.sub(r"\]\([^)]*\)", "]", page))
    for block in re.split(r"\n\s*\n|\n\s*(?=[-*] |\d+\. )", page):
        if not block.lstrip().startswith(("|", "#", "<", "![", "[![", ">")):
            yield " ".join(block.split())


def long_sentences(page: str) -> list[str]:
    """Those of more than 35 words."""
    found = (one for block in prose(page) for one in re.split(r"(?<=[.!?:;])\s+(?=[A-Z*\[x(])", block))
    return [one for one in found if len(one.split()) > MOST_WORDS]


def docstrings(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def messages(file: Path) -> Iterator[str]:
    """The text of the errors that a file raises."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Raise):
            texts = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
            yield " ".join(text for text in texts if isinstance(text, str))


def test_a_file_s_docstring_opens_with_the_name_of_a_thing() -> None:
    openings = {file.relative_to(ROOT): next(docstrings(file)) for file in FILES}
    assert not [str(file) for file, opening in openings.items() if RIDDLE.match(opening)]


@pytest.mark.parametrize("room", [*ROOMS, "examples", "train.py"])
def test_no_docstring_or_message_uses_a_phrase_of_the_lexicon(room: str) -> None:
    files = [file for file in FILES if file.relative_to(ROOT).parts[0] == room]
    texts = [(file.relative_to(ROOT), text) for file in files for text in (*docstrings(file), *messages(file))]
    assert not [f"{file}: {found} in {text[:80]}" for file, text in texts if (found := phrases(text))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_is_plain(page: Path) -> None:
    text = page.read_text()
    if page.name != "CONTRIBUTING.md":  # where the lexicon stands
        assert not [f"{found}: {block[:80]}" for block in prose(text) if (found := phrases(block))]
    assert not long_sentences(text)
    lines = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL).splitlines()
    assert not [line for line in lines if len(line) > MOST_CHARACTERS and not line.lstrip().startswith("|")]


@pytest.mark.parametrize(
    "sentence",
    [
        "The frozen policy that a trained one is held against: where its weights are, and what it says of tokens.",
        "A package is fetched, put to a question whose answer is known, and only then renamed.",
        "Sample from this policy's weights of now on; the server gets them before the next turn.",
        "A reward of level `outcome` that hangs on the whole iteration, on whichever rank its episodes are.",
        "Kinds of step, compared with what costs nothing.",
        "Why the quickstart left pairs: its reward model of then.",
        "What is best is told by a validation step.",
        "Share of the facts that are taught by heart.",
        "Each row goes on in the next chunk.",
        "Every step is judged by itself.",
    ],
)
def test_sentences_that_had_to_be_read_twice_are_found(sentence: str) -> None:
    assert phrases(sentence)


def test_riddles_and_long_sentences_are_found() -> None:
    for opening in ("What a step does between the products", "Whose tokens are whose", "How fast models decode"):
        assert RIDDLE.match(opening)
    assert not RIDDLE.match("Isolated environments")
    long = " ".join(["word"] * 36) + "."
    assert long_sentences(f"Short.\n\n{long} A second.\n\n| {long} |\n\n```\n{long}\n```\n") == [long]
