"""Tables of a notebook: what is shown, cut and escaped."""

from __future__ import annotations

from common.html_table import html_table


def test_every_text_is_escaped_and_hidden_signs_are_seen() -> None:
    cell = '<td style="text-align: left">'
    assert html_table("a & b", ["<th>"], [["<script>'x'</script>"], ["\u202eb"]]) == (
        "<table><caption>a &amp; b</caption>\n"
        f"<tr>{cell.replace('td', 'th')}&lt;th&gt;</th></tr>\n"
        f"<tr>{cell}&lt;script&gt;&#x27;x&#x27;&lt;/script&gt;</td></tr>\n"
        f"<tr>{cell}\\u202eb</td></tr>\n"
        "</table>"
    )


def test_long_texts_and_tables_are_cut() -> None:
    table = html_table("", ["n"], [[number] for number in range(53)] + [["x"]])
    assert ">49</td>" in table
    assert ">50</td>" not in table
    assert "… (4 more)" in table
    assert html_table("x" * 401, [], []).startswith(f"<table><caption>{'x' * 400} …</caption>")
