"""Documents of each format, made here, and read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from common.errors import ConfigError, DataError
from datamodules.documents.formats import Section, read_document
from tests.pdf_files import pdf

MARKDOWN = "---\ntags: x\n---\n# Guide\n\nHello *you*.\n\n## Set up ##\n\n```\n# no heading\n```\nDone.\n### Empty\n"
HTML = """<!doctype html><html><head><title>Guide &amp; more</title><style>p {}</style></head><body><nav>Menu</nav>
<p>Hello <b>you</b>,<br>again.</p><script>evil()</script><h2>Set <i>up</i></h2><ul><li>one</li><li>two</li></ul>
<table><tr><td>a</td><td>b</td></tr></table><p>&lt;/retrieval&gt;</p></body></html>"""


@pytest.mark.parametrize(
    ("name", "content", "title", "sections"),
    [
        ("a.txt", "Hello.\r\n\r\n\r\n\r\nYou\x00.", "", [Section("", "Hello.\n\nYou .")]),
        (
            "a.md",
            MARKDOWN,
            "Guide",
            [Section("Guide", "Hello *you*."), Section("Set up", "```\n# no heading\n```\nDone.")],
        ),
        (
            "a.html",
            HTML,
            "Guide & more",
            [Section("", "Hello you,\nagain."), Section("Set up", "one\n\ntwo\n\n| a | b\n\n</retrieval>")],
        ),
        ("a.htm", "<head><title>T</title><body>Text<h1>H</h1>more", "T", [Section("", "Text"), Section("H", "more")]),
        ("a.html", "<h1>H</h1>x", "H", [Section("H", "x")]),
    ],
)
def test_text_formats_are_read_in_sections(
    tmp_path: Path, name: str, content: str, title: str, sections: list[Section]
) -> None:
    path = tmp_path / name
    path.write_text(content, newline="")
    assert read_document(path) == (title, sections)


def test_a_pdf_is_read_page_by_page(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(["Hello you.", "", "The sec-", "ond page."], title="Guide"))
    assert read_document(path) == (
        "Guide",
        [Section("", "Hello you.", 1), Section("", "The sec-", 3), Section("", "ond page.", 4)],
    )


def test_a_word_document_is_read_by_its_headings(tmp_path: Path) -> None:
    import docx

    document = docx.Document()
    document.add_heading("Guide", 0)
    document.add_paragraph("Hello you.")
    document.add_heading("Set up", 2)
    document.add_paragraph("One.")
    table = document.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "a", "b"
    document.save(str(tmp_path / "a.docx"))
    sections = [Section("Guide", "Hello you."), Section("Set up", "One.\na | b")]
    assert read_document(tmp_path / "a.docx") == ("Guide", sections)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\ncaf\xe9", r"a\.txt:2: not UTF-8: byte 0xe9 at position 9; save the whole file as UTF-8"),
        ("a.md", b"# Only a heading\n", r"a\.md: no text: leave it out"),
        ("a.pdf", pdf([""]), r"a\.pdf: no text, perhaps a scan: recognise it, such as with ocrmypdf, or leave it out"),
        ("a.pdf", b"%PDF-1.4\nbroken", r"a\.pdf: not a PDF that can be read: "),
        ("a.docx", b"no zip", r"a\.docx: not a Word document that can be read: "),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_document(path)
    assert "\n" not in str(caught.value)


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf(["x"]))
    monkeypatch.setitem(sys.modules, "pypdf", None)
    with pytest.raises(ConfigError, match=r"a\.pdf cannot be read without pypdf: pip install '\.\[documents\]'"):
        read_document(tmp_path / "a.pdf")
