from __future__ import annotations

from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.document_names import id_key, title_key, unquoted


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ('"Emma"', "Emma"),
        ("Emma", "Emma"),
        ('"Heroes" (album)', '"Heroes" (album)'),
        ('""Heroes" (album)"', '"Heroes" (album)'),
        ('Say "Yes"', 'Say "Yes"'),
        ('"Say "Yes""', 'Say "Yes"'),
        ('"Say "Yes" now"', 'Say "Yes" now'),
        ('"Heroes" and "Low"', '"Heroes" and "Low"'),
        ('""Heroes" and "Low""', '"Heroes" and "Low"'),
        ('"Heroes"/"Helden"', '"Heroes"/"Helden"'),
        ('""Heroes""', '"Heroes"'),
        ('The 6" gun', 'The 6" gun'),
        ('6"', '6"'),
        ('"', '"'),
        ('""', ""),
        ("", ""),
        ("'Emma'", "'Emma'"),
    ],
)
def test_a_pair_of_outer_quotes_goes_and_quotes_of_a_title_stay(title: str, expected: str) -> None:
    assert unquoted(title) == expected


@pytest.mark.parametrize(
    "others",
    [
        ("Emma", '"Emma"', ' " EMMA " ', "emma\n"),
        ("Zoë", "Zoe\u0308", "ZOË", '"ZOE\u0308"'),
        ('"Heroes"', "heroes", '""Heroes""'),
        ('"Heroes" (album)', '""heroes" (Album)"'),
        ("New York", "new\u00a0 york"),
        ("J\u030c", "\u01f0"),  # no capital letter takes the accent in
        ("Straße", "STRASSE"),
    ],
)
def test_titles_of_one_name_have_one_key(others: tuple[str, ...]) -> None:
    assert len(set(map(title_key, others))) == 1


def test_other_titles_have_other_keys() -> None:
    titles = ["Emma", "Emma (film)", '"Heroes" (album)', "Heroes", "Zoe", "Zoë", "6", "10²", "102", ""]
    assert len(set(map(title_key, titles))) == len(titles)


@given(st.text())
def test_keys_are_the_same_in_every_canonical_form(text: str) -> None:
    for key in (title_key, id_key):
        assert key(text) == key(normalize("NFD", text)) == key(normalize("NFC", text)) == key(key(text))


def test_ids_keep_their_case_and_quotes() -> None:
    assert [id_key(" a "), id_key("A"), id_key('"a"'), id_key("e\u0301")] == ["a", "A", '"a"', "é"]
