"""Documents of five formats, each as a title and its sections: what stands under one heading, or on one page."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from common.errors import ConfigError, DataError
from common.row_files import not_utf8

logging.getLogger("pypdf").setLevel(logging.ERROR)  # it warns of every flaw that it can read past

_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_HEADING = re.compile(r"#{1,6}\s+(.+?)\s*#*\s*")
_FENCE = re.compile(r"\s*(```|~~~)")
_HYPHEN = re.compile(r"(?<=\w)-\n(?=[a-zà-öø-ÿ])")
_LINE_END = re.compile(r"(?<!\n)\n(?!\n)")
_UNWRITABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")  # as extracted from PDFs


@dataclass(frozen=True)
class Section:
    """A text with its heading or its page."""

    heading: str
    text: str
    page: int | None = None


Read = tuple[str, list[Section]]


def read_document(path: Path) -> Read:
    """Title, empty where the document gives none, and sections of a document.

    Raises:
        DataError: it cannot be read, or holds no text.
        ConfigError: the library for its format is missing.
    """
    try:
        title, sections = READERS[path.suffix.lower()](path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    sections = [Section(_tidy(one.heading), _clean(one.text), one.page) for one in sections]
    if not any(section.text for section in sections):
        scan = ", perhaps a scan: recognise it, such as with ocrmypdf, or" if path.suffix.lower() == ".pdf" else ":"
        raise DataError(f"{path}: no text{scan} leave it out")
    return _tidy(title), [section for section in sections if section.text]


def _tidy(text: str) -> str:
    return " ".join(_UNWRITABLE.sub(" ", text).split())


def _clean(text: str) -> str:
    """Lines without outer blanks, at most one empty line between two."""
    lines = "\n".join(" ".join(line.split()) for line in _UNWRITABLE.sub(" ", text).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", lines).strip()


def _text(path: Path) -> str:
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}:{content.count(10, 0, error.start) + 1}: {not_utf8(error)}") from error


def _plain(path: Path) -> Read:
    return "", [Section("", _text(path))]


def _markdown(path: Path) -> Read:
    title, heading, lines, fenced = "", "", list[str](), False
    sections: list[Section] = []
    for line in _FRONT_MATTER.sub("", _text(path)).split("\n"):
        fenced ^= bool(_FENCE.match(line))
        if not fenced and (found := _HEADING.fullmatch(line)):
            sections.append(Section(heading, "\n".join(lines)))
            heading, lines = found[1], []
            title = title or heading
        else:
            lines.append(line)
    return title, [*sections, Section(heading, "\n".join(lines))]


class _HTML(HTMLParser):
    """Visible text of a page, cut at its headings."""

    HIDDEN = ("script", "style", "template", "noscript", "nav", "svg", "head")
    INLINE = (
        "a",
        "abbr",
        "b",
        "code",
        "em",
        "font",
        "i",
        "kbd",
        "mark",
        "q",
        "s",
        "small",
        "span",
        "strong",
        "sub",
        "sup",
    )
    HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")

    def __init__(self) -> None:
        super().__init__()
        self.title, self.sections = "", list[Section]()
        self._heading, self._text, self._open = list[str](), list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "body":
            self._open.clear()  # a head may have no end
        if tag in self.HEADINGS:
            self.end_section()
        if tag in (*self.HIDDEN, *self.HEADINGS, "title"):
            self._open.append(tag)
        elif tag not in self.INLINE:
            self._text.append(" | " if tag in ("td", "th") else "\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass
        elif tag not in (*self.INLINE, "td", "th"):
            self._text.append("\n")

    def handle_data(self, data: str) -> None:
        within = self._open[-1] if self._open else ""
        if within == "title":
            self.title += data if "svg" not in self._open else ""
        elif within in self.HEADINGS:
            self._heading.append(data)
        elif not within:
            self._text.append(data.replace("\n", " "))

    def end_section(self) -> None:
        """Close the section before a heading, or the last one."""
        self.sections.append(Section("".join(self._heading), "".join(self._text)))
        self._heading, self._text = [], []


def _html(path: Path) -> Read:
    page = _HTML()
    page.feed(_text(path))
    page.close()
    page.end_section()
    return page.title or next((one.heading for one in page.sections if one.heading), ""), page.sections


def _pdf(path: Path) -> Read:
    pypdf, errors = _library("pypdf", path), _library("pypdf.errors", path)
    try:
        reader = pypdf.PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise DataError(f"{path}: encrypted: save it without a password")
        texts = [page.extract_text() for page in reader.pages]
        title = reader.metadata.title if reader.metadata else ""
    except (errors.PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise DataError(f"{path}: not a PDF that can be read: {_reason(error)}") from error
    lines = (_LINE_END.sub(" ", _HYPHEN.sub("", text)) for text in texts)
    return str(title or ""), [Section("", text, page) for page, text in enumerate(lines, 1)]


def _docx(path: Path) -> Read:
    docx = _library("docx", path)
    try:
        document = docx.Document(str(path))
        blocks = list(_blocks(document))
        title = document.core_properties.title
    except (OSError, ValueError, KeyError, AttributeError, SyntaxError, docx.opc.exceptions.OpcError) as error:
        raise DataError(f"{path}: not a Word document that can be read: {_reason(error)}") from error
    heading, lines, sections = "", list[str](), list[Section]()
    for is_heading, text in blocks:
        if is_heading:
            sections.append(Section(heading, "\n".join(lines)))
            heading, lines = text, []
        else:
            lines.append(text)
    sections.append(Section(heading, "\n".join(lines)))
    return title or next((text for is_heading, text in blocks if is_heading), ""), sections


def _blocks(document: Any) -> Iterator[tuple[bool, str]]:
    """Paragraphs and rows of tables, in order, and whether each is a heading."""
    for block in document.iter_inner_content():
        if hasattr(block, "rows"):
            for row in block.rows:
                yield False, " | ".join(cell.text for cell in row.cells)
        else:
            name = block.style.name if block.style is not None else ""
            yield name == "Title" or name.startswith("Heading"), block.text


def _library(name: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"{path} cannot be read without {name}: pip install '.[documents]'") from error


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


READERS: dict[str, Callable[[Path], Read]] = {
    ".md": _markdown,
    ".txt": _plain,
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
    ".docx": _docx,
}
