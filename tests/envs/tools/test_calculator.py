"""What the calculator computes exactly, and what it refuses without evaluating it."""

from __future__ import annotations

import pytest

from common.errors import ToolError
from envs.tools.calculator import Calculator


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("3*17", "51"),
        (" 0.1 + 0.2", "0.3"),
        ("7/2", "3.5"),
        ("1/3", "0.333333333333"),
        ("1/3*3", "1"),
        ("2**0.5", "1.41421356237"),
        ("2**-3", "0.125"),
        ("-(2+3)*4", "-20"),
        ("9" * 25 + "*" + "1" + "0" * 24, "9" * 25 + "0" * 24),
    ],
)
def test_values(query: str, value: str) -> None:
    assert Calculator().call(query) == value


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("9**9**9", "more than 50 digits"),
        ("1/0", "no such number"),
        ("(-8)**0.5", "no such number"),
        ("1" * 201, "more than 200 characters"),
        *(
            (query, "write numbers")
            for query in ("", "__import__('os')", "1;2", "True+1", "1j", "1e999", "\0", "\ud800")
        ),
    ],
)
def test_what_is_no_arithmetic_or_too_large(query: str, reason: str) -> None:
    with pytest.raises(ToolError, match=reason):
        Calculator().call(query)
