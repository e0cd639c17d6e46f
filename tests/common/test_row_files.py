from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import json_lists
from common.errors import DataError
from common.row_files import read_cells, read_file, read_json_list

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


def items(path: Path, key: str | None = None) -> list[object]:
    return [item for _, item in read_json_list(path, key)]


@given(values=st.lists(JSON, max_size=6), indent=st.sampled_from([None, 1]), chunk=st.integers(1, 9))
def test_a_list_read_in_small_pieces_equals_a_list_read_at_once(
    tmp_path_factory: pytest.TempPathFactory, values: list[object], indent: int | None, chunk: int
) -> None:
    path = tmp_path_factory.mktemp("json") / "list.json"
    path.write_text(json.dumps({"before": values, "Data": values, "after": 1}, indent=indent, ensure_ascii=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_lists, "_CHUNK", chunk)
        assert items(path, key="Data") == values
        path.write_text(json.dumps(values, indent=indent))
        assert items(path) == values


def test_only_the_list_under_the_outer_key_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"Meta": {"Data": [1]}, "Data": [2, 3]}')
    assert items(path, key="Data") == [2, 3]


def test_an_item_is_given_before_the_rest_of_the_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lists, "_CHUNK", 4)
    path = tmp_path / "a.json"
    path.write_text('[{"a": 1}, broken')
    rows = read_json_list(path)
    assert next(rows) == (f"{path}: item 1", {"a": 1})
    with pytest.raises(DataError, match=r"a\.json:1: not valid JSON"):
        next(rows)


def test_the_line_of_an_error_counts_the_lines_already_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lists, "_CHUNK", 4)
    path = tmp_path / "a.json"
    path.write_text("[1,\n2,\n\n3,\noops]")
    with pytest.raises(DataError, match=r"a\.json:5: not valid JSON"):
        items(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"Other": []}', "a list, or an object with a list under 'Data'"),
        (b'{"Data": {}}', "a list, or an object with a list under 'Data'"),
        (b'{"Other": 1, ', r"a\.json:1: not valid JSON"),
        (b"[" * 100_000, "nested too deeply|not valid JSON"),
        (b'["a",\n"\xff"]', r"a\.json:2: not UTF-8: byte 0xff at position 2; save the whole file as UTF-8"),
    ],
)
def test_what_is_no_list_is_one_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        items(path, key="Data")


def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1]", encoding="utf-8-sig")
    (tmp_path / "a.csv").write_text("Question,Answer\n", encoding="utf-8-sig")
    assert items(tmp_path / "a.json") == [1]
    assert list(read_cells(tmp_path / "a.csv")) == [(f"{tmp_path / 'a.csv'}:1", ["Question", "Answer"])]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.xlsx",
            b"PK",
            r"a\.xlsx: a file of rows ends in \.jsonl, \.json, \.csv, \.tsv, \.parquet, each also with \.gz",
        ),
        ("a.gz", b"", r"a\.gz: a file of rows ends in"),
        ("a.jsonl", b'{"a": "x"}\n{"a": "caf\xe9"}\n', r"a\.jsonl:2: not UTF-8: byte 0xe9 at position 11"),
        ("a.csv", b"a,b\n1,caf\xe9\n", r"a\.csv:2: not UTF-8: byte 0xe9 at position 6; save the whole file as UTF-8"),
        ("a.csv", b"a,a\n1,2\n", r"a\.csv:1: two columns are named 'a': rename one"),
        ("a.csv", b"a,b\n1\n", r"a\.csv:2: 1 cells where the header has 2"),
        ("a.jsonl.gz", b"\x1f\x8b\x08", r"a\.jsonl\.gz: not a whole gzip file"),
        ("a.jsonl.gz", b'{"a": 1}', r"a\.jsonl\.gz: not a whole gzip file: Not a gzipped file"),
        ("a.parquet", b"PAR1", r"a\.parquet: not Parquet"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_its_place(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(read_file(path))
    assert "\n" not in str(caught.value)


def test_a_folder_that_datasets_did_not_save_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a folder that save_to_disk of datasets wrote"):
        list(read_file(tmp_path))
