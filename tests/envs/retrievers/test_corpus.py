from __future__ import annotations

import gzip
import json
import os
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import DataError
from envs.retrievers import corpus as corpus_module
from envs.retrievers.corpus import DocumentFile, document_from_row
from envs.types import Document

ROWS = [
    {"id": "a", "title": "Ada Lovelace", "text": "She wrote the first program."},
    {"id": 7, "title": "Zoë", "text": "naïve\ntwo lines"},
    {"id": "w", "contents": '"Heroes" (album)\nBy David Bowie.\nSecond line.'},
    {"id": "q", "contents": '"Aaron"\nAaron is a prophet.'},
]
DOCUMENTS = [
    Document("a", "Ada Lovelace", "She wrote the first program."),
    Document("7", "Zoë", "naïve\ntwo lines"),
    Document("w", '"Heroes" (album)', "By David Bowie.\nSecond line."),
    Document("q", "Aaron", "Aaron is a prophet."),
]


def write(path, rows, gap=""):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" + gap for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("gap", ["", "\n", "  \n\n"])
def test_both_row_styles_read_by_index_and_in_a_stream(tmp_path, gap):
    corpus = DocumentFile(write(tmp_path / "c.jsonl", ROWS, gap))
    assert len(corpus) == 4
    assert list(corpus) == DOCUMENTS
    assert [corpus[i] for i in (3, 1, 0, 2)] == [DOCUMENTS[i] for i in (3, 1, 0, 2)]


def test_last_line_needs_no_line_end(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + json.dumps(ROWS[3]))
    assert list(DocumentFile(path)) == [DOCUMENTS[0], DOCUMENTS[3]] == [DocumentFile(path)[0], DocumentFile(path)[1]]


@pytest.mark.parametrize("index", [-1, 4])
def test_index_outside_the_corpus_is_refused(tmp_path, index):
    with pytest.raises(IndexError):
        DocumentFile(write(tmp_path / "c.jsonl", ROWS))[index]


@given(title=st.text().filter(lambda t: "\n" not in t), text=st.text())
def test_contents_written_with_a_quoted_title_read_back(title, text):
    assert document_from_row({"id": "1", "contents": f'"{title}"\n{text}'}) == Document("1", title, text)


EMMA = Document("1", "Emma", "A novel.\nBy Jane Austen.")


@pytest.mark.parametrize(
    "row",
    [
        {"id": "1", "title": "Emma", "text": EMMA.text},
        {"id": 1, "title": '"Emma"', "text": EMMA.text},
        {"id": "1", "contents": '"Emma"\n' + EMMA.text},
        {"id": "1", "contents": "Emma\n" + EMMA.text},
        {"id": "1", "contents": '"Emma"\r\n' + EMMA.text},
        {"id": "1", "doc_id": "77", "title": "Emma", "contents": '"Emma"\n' + EMMA.text},
        {"id": "1", "doc_id": "77", "title": '"Emma"', "contents": '"Emma"\n' + EMMA.text},
        {"id": "1", "title": "Emma", "contents": EMMA.text},
        {"id": "1", "title": "Emma", "text": None, "contents": "Emma\n" + EMMA.text},
        {"id": "1", "title": None, "text": None, "contents": '"Emma"\n' + EMMA.text},
        {"id": "1", "title": "Emma", "text": EMMA.text, "contents": '"Emma"\n' + EMMA.text},
        {"id": "1", "title": '"Emma"', "text": EMMA.text, "contents": '"Emma"\n' + EMMA.text},
        {"_id": "1", "title": "Emma", "text": EMMA.text, "metadata": {}},
        {"docid": 1, "title": "Emma ", "text": EMMA.text},
        {"id": None, "doc_id": "1", "title": "Emma", "text": EMMA.text},
    ],
)
def test_one_passage_is_the_same_in_every_published_shape(row):
    assert document_from_row(row) == EMMA


@pytest.mark.parametrize("title", ['"Heroes" (album)', 'Say "Yes"', '"Heroes" and "Low"', 'The 6" gun', "Zoe\u0308"])
def test_quotes_of_a_title_are_kept_in_every_shape(title):
    rows = [{"title": title, "text": "x"}, {"contents": f'"{title}"\nx'}, {"title": f'"{title}"', "text": "x"}]
    rows += [{"title": title, "contents": f'"{title}"\nx'}, {"title": title, "text": "x", "contents": "x"}]
    assert {document_from_row({"id": "1"} | row) for row in rows} == {Document("1", title, "x")}


@pytest.mark.parametrize("contents", ["A text of one line.", 'It says "yes"', ""])
def test_contents_of_one_line_are_a_text_without_a_title(contents):
    assert document_from_row({"id": "1", "contents": contents}) == Document("1", "", contents)


def test_a_byte_order_mark_and_line_ends_of_windows_change_nothing(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n\r\n".join(json.dumps(row).encode() for row in ROWS))
    corpus = DocumentFile(path)
    assert list(corpus) == DOCUMENTS == [corpus[i] for i in range(4)]


def test_title_and_text_win_over_contents_beside_them():
    row = {"id": "1", "title": "T", "text": "x", "contents": '"Other"\ny'}
    assert document_from_row(row) == Document("1", "T", "x")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"id": "b", "title": "T" "text": ""}', "not JSON: Expecting ',' delimiter at column 26"),
        (b"\xff\xfe{}", "not UTF-8: byte 0xff at position 1; save the whole file as UTF-8"),
        (b'["b"]', "expected a JSON object"),
        (b'{"id": "b", "title": "T", "text": "\\ud83d"}', "the row is not valid Unicode (a lone surrogate)"),
        (b'{"title": "T", "text": "x"}', 'key "id" must be a string or an integer'),
        (b'{"id": true, "title": "T", "text": "x"}', 'key "id" must be a string or an integer'),
        (b'{"id": "b", "title": "T"}', 'key "text" must be a string (or give "contents" in place of '),
        (b'{"id": "b", "text": "x"}', 'key "title" must be a string (or give "contents" in place of '),
        (b'{"id": "b", "title": null, "text": "x"}', 'key "title" must be a string'),
        (b'{"id": "b", "title": "T", "text": null}', 'key "text" must be a string'),
        (b"[" * 100_000, "JSON nested too deeply"),
        (b'{"id": ' + b"9" * 5000 + b', "title": "T", "text": "x"}', "Exceeds the limit (4300 digits)"),
        (b'{"id": "a", "title": "T", "text": "x"}', "id 'a' is also that of line 1"),
        (b'{"_id": "a ", "title": "T", "text": "x"}', "id 'a ' is also that of line 1"),
    ],
)
def test_a_bad_line_is_named_by_file_and_line(tmp_path, line, reason):
    path = tmp_path / "c.jsonl"
    path.write_bytes(json.dumps(ROWS[0]).encode() + b"\n\n" + line + b"\n")
    with pytest.raises(DataError) as caught:
        DocumentFile(path)
    assert str(caught.value).startswith(f"{path}:3: {reason}")
    assert "\n" not in str(caught.value)


def test_missing_and_empty_files_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"none\.jsonl: No such file"):
        DocumentFile(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match=r"empty\.jsonl: no passages"):
        DocumentFile(write(tmp_path / "empty.jsonl", [], ""))


def test_ids_that_share_a_hash_are_not_called_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_module, "hash", lambda _: 5, raising=False)
    assert len(DocumentFile(write(tmp_path / "c.jsonl", ROWS))) == 4


def test_identity_follows_the_rows_and_not_the_place(tmp_path):
    here, there = write(tmp_path / "a.jsonl", ROWS), write(tmp_path / "b.jsonl", ROWS)
    other = write(tmp_path / "c.jsonl", ROWS[::-1])
    assert DocumentFile(here).identity == DocumentFile(there).identity != DocumentFile(other).identity


def test_the_cache_is_used_until_the_file_changes(tmp_path, monkeypatch):
    path, cache = write(tmp_path / "c.jsonl", ROWS), tmp_path / "cache"
    fresh = DocumentFile(path, cache=cache)
    with monkeypatch.context() as patch:
        patch.setattr(DocumentFile, "_scan", lambda self: pytest.fail("read through again"))
        again = DocumentFile(path, cache=cache)
    assert list(again) == DOCUMENTS
    assert again[2] == DOCUMENTS[2]
    assert again.identity == fresh.identity

    write(path, ROWS[::-1])
    os.utime(path, ns=(1, 1))
    changed = DocumentFile(path, cache=cache)
    assert changed[0] == DOCUMENTS[3]
    assert changed.identity != fresh.identity


KINDS = {
    "c.json": lambda rows: json.dumps(rows).encode(),
    "c.csv": lambda rows: (
        "id,title,text\n" + "".join(f'{r["id"]},{r["title"]},"{r["text"]}"\n' for r in rows)
    ).encode(),
    "c.jsonl.gz": lambda rows: gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("cached", [False, True])
def test_a_corpus_of_another_kind_is_read_by_a_copy(tmp_path, name, cached):
    cache = tmp_path / "cache" if cached else None
    path = tmp_path / name
    path.write_bytes(KINDS[name](ROWS[:2]))
    corpus = DocumentFile(path, cache=cache)
    assert [corpus[1], corpus[0]] == DOCUMENTS[1::-1]
    assert (len(corpus), list(corpus)) == (2, DOCUMENTS[:2])
    again = DocumentFile(path, cache=cache)
    assert again.identity == corpus.identity
    path.write_bytes(KINDS[name](ROWS[1::-1]))
    assert list(corpus) == DOCUMENTS[:2]  # as it was opened
    assert list(DocumentFile(path, cache=cache)) == DOCUMENTS[1::-1]
    assert not cached or len([*cache.glob("copy-*"), *cache.glob("corpus-*")]) == 4


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("id,title,text\na,T,x\na,U,y\n", r"c\.csv: row 2: id 'a' is also that of row 1"),
        ("id,title,body\na,T,x\n", r"c\.csv:2: key \"text\" must be a string"),
        ("id,title,text\n", r"c\.csv: no passages"),
    ],
)
def test_a_bad_row_of_a_copy_is_named_by_its_place_in_the_corpus(tmp_path, content, reason):
    (tmp_path / "c.csv").write_text(content)
    with pytest.raises(DataError, match=reason):
        DocumentFile(tmp_path / "c.csv", cache=tmp_path / "cache")


def overwrite(path, rows):
    """In place, as `cp` does: the file keeps its inode."""
    with open(path, "r+b") as file:
        file.truncate()
        file.write("".join(json.dumps(row) + "\n" for row in rows).encode())


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("same_time", [False, True])
def test_a_corpus_that_is_overwritten_in_place_gives_no_other_passage(tmp_path, cached, same_time):
    rows = [{"id": name, "title": name, "text": name} for name in "abc"]
    path = write(tmp_path / "c.jsonl", rows)
    corpus = DocumentFile(path, cache=tmp_path / "cache" if cached else None)
    before = path.stat()
    overwrite(path, rows[::-1])
    if same_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    for read in (lambda: corpus[0], lambda: list(corpus), corpus.check):
        with pytest.raises(DataError, match=r"corpus .*c\.jsonl was changed while it was in use: put it back") as error:
            read()
        assert "\n" not in str(error.value)
    if cached:  # the cache is that of the other bytes
        assert DocumentFile(path, cache=tmp_path / "cache")[0].id == "c"
    overwrite(path, rows)
    assert [document.id for document in corpus] == ["a", "b", "c"]


def test_a_corpus_that_is_touched_or_replaced_gives_the_passages_that_it_had(tmp_path):
    path = write(tmp_path / "c.jsonl", ROWS)
    corpus = DocumentFile(path)
    os.utime(path, ns=(1, 1))
    assert corpus[1] == DOCUMENTS[1]
    write(tmp_path / "new.jsonl", ROWS[::-1])
    os.replace(tmp_path / "new.jsonl", path)
    assert [corpus[1], list(corpus)] == [DOCUMENTS[1], DOCUMENTS]
    path.unlink()
    assert corpus[0] == DOCUMENTS[0]


@pytest.mark.parametrize("name", ["offsets.npy", "facts.json", "checksums.json"])
def test_a_damaged_cache_of_a_corpus_is_built_again(tmp_path, name, caplog):
    path, cache = write(tmp_path / "c.jsonl", ROWS), tmp_path / "cache"
    identity = DocumentFile(path, cache=cache).identity
    [damaged] = cache.glob(f"corpus-*/{name}")
    content = damaged.read_bytes()
    for bytes_ in (content[:-3], content[:-3] + bytes([content[-3] ^ 1]) + content[-2:], b""):
        damaged.write_bytes(bytes_)
        caplog.clear()
        again = DocumentFile(path, cache=cache)
        assert (again.identity, list(again)) == (identity, DOCUMENTS)
        assert ["is damaged" in message and "it is built again" in message for message in caplog.messages] == [True]


def test_a_cache_that_changes_while_it_is_used_is_an_error(tmp_path):
    corpus = DocumentFile(write(tmp_path / "c.jsonl", ROWS), cache=tmp_path / "cache")
    [offsets] = (tmp_path / "cache").glob("corpus-*/offsets.npy")
    with open(offsets, "r+b") as file:
        file.seek(-16, 2)
        file.write(bytes(8))
    with pytest.raises(DataError, match=r"offsets\.npy was changed while it was in use"):
        corpus[2]


def test_an_open_corpus_holds_offsets_and_no_passages(tmp_path):
    path = write(tmp_path / "c.jsonl", [{**ROWS[0], "id": i, "text": "word " * 100} for i in range(20_000)])
    tracemalloc.start()
    corpus = DocumentFile(path)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(corpus) == 20_000
    assert held < 20 * len(corpus)
    assert peak < path.stat().st_size / 5
