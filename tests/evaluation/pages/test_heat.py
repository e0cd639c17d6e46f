"""A heat map's cells and names, as they are drawn."""

from __future__ import annotations

import re

from evaluation.pages.heat import Heat


def drawn(*columns: str) -> list[str]:
    """All texts of a figure of one row."""
    cells = {("arm", column): (1.0, f"+{place}") for place, column in enumerate(columns)}
    svg = Heat(cells, title="t", legend="points", limit=1).svg()
    return re.findall(r">([^<>\n]+)</t", svg)


def test_a_long_name_of_a_column_is_broken_into_lines_that_do_not_reach_the_next() -> None:
    texts = drawn("T34: three and four hops, taught two", "Refined")
    assert {"T34: three and", "four hops,", "taught two", "Refined", "arm", "+0", "+1"} <= set(texts)
    assert not [text for text in texts if len(text) > 16]
