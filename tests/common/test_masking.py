"""Secrets are found in every form in which a server or a library may give them back; other text stays as it is."""

from __future__ import annotations

import base64
from urllib.parse import quote

import pytest

from common.masking import Secrets

KEY = "sk-proj-AbC/dEf+1234567890xyzXYZ"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"bad key {KEY}!", "bad key ***!"),
        (f"Authorization: Bearer {KEY[:12]}…", "Authorization: Bearer ***…"),
        (f"…{KEY[-9:]} is unknown", "…*** is unknown"),
        (f"{KEY} and {KEY}", "*** and ***"),
        (KEY.upper(), "***"),
        (f"?api_key={quote(KEY, safe='')}&x=1", "?api_key=***&x=1"),
        (base64.b64encode(KEY.encode()).decode().rstrip("="), "***"),
        (KEY.encode().hex(), "***"),
        (f"b'{KEY}\\n'", "b'***\\n'"),
        ("nothing of the kind", "nothing of the kind"),
        ("sk-pr", "sk-pr"),
    ],
    ids=["whole", "start", "end", "twice", "upper case", "quoted", "base64", "hex", "bytes", "none", "too short"],
)
def test_a_key_is_masked_in_every_form(text: str, shown: str) -> None:
    assert Secrets(KEY).without(text) == shown


@pytest.mark.parametrize("before", ["", "x", "Bearer ", "me:", "four"])
def test_a_key_within_base64_is_masked_but_for_the_characters_that_it_shares(before: str) -> None:
    packed = base64.b64encode(f"{before}{KEY} and more".encode()).decode()
    hidden = Secrets(KEY).without(packed)
    assert hidden.count("***") == 1
    shared = hidden.split("***")
    assert KEY[1:-1].encode() not in base64.b64decode(packed)[: len(shared[0])]
    assert len("".join(shared)) <= len(packed) - len(KEY) * 8 // 6 + 2


def test_few_characters_are_no_secret_and_none_masks_nothing() -> None:
    assert Secrets("none", "").without("none of it is known") == "none of it is known"
    assert Secrets("secret").without("the Secret") == "the ***"


def test_a_part_may_be_longer_where_words_must_stay() -> None:
    assert Secrets("local-server-key").without("a local-server is up: local-server-key", part=16) == (
        "a local-server is up: ***"
    )


def test_a_short_password_is_masked_as_a_whole_where_a_line_is_shown() -> None:
    secrets = Secrets("", "pa55", "me:pa55")
    assert secrets.without("none of pa55 is masked") == "none of pa55 is masked"
    assert secrets.shown("the login me:pa55, password PA55, is wrong") == "the login ***, password ***, is wrong"


def test_a_line_is_one_line_without_control_characters_and_other_keys() -> None:
    shown = Secrets(KEY).shown
    assert shown("a\n\tb \x1b[31mred\x07 \u202eback \ud83d") == "a b \\x1b[31mred\\x07 \\u202eback \\ud83d"
    assert shown("sk-another1234 http://me:pass@host/x mask-it") == "*** http://***@host/x mask-it"
    assert shown("x" * 400) == "x" * 300 + "…"
    assert shown("x" * 295 + KEY) == "x" * 295 + "***", "masked before it is cut"
