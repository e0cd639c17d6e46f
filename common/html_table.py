"""Small HTML tables for notebooks: every text escaped, long ones cut, long tables too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from common.plain_text import visible

_LONGEST, _MOST = 400, 50  # characters of a cell, rows


def html_table(title: str, header: Sequence[str], rows: Sequence[Iterable[object]]) -> str:
    """A table with its title above it. No text becomes markup, or acts unseen."""
    lines = [f"<table><caption>{_shown(title)}</caption>", _row("th", header)]
    lines += [_row("td", row) for row in rows[:_MOST]]
    if len(rows) > _MOST:
        lines.append(_row("td", [f"… ({len(rows) - _MOST} more)"]))
    return "\n".join([*lines, "</table>"])


def _row(kind: str, cells: Iterable[object]) -> str:
    return (
        "<tr>" + "".join(f'<{kind} style="text-align: left">{_shown(str(cell))}</{kind}>' for cell in cells) + "</tr>"
    )


def _shown(text: str) -> str:
    return escape(visible(text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"))
