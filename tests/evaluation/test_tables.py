from __future__ import annotations

from evaluation.tables import LEGEND, estimate, figure, metrics_table, p_value, table


def test_a_table_is_padded_and_aligned() -> None:
    assert table(["arm", "n"], [["a", "1"], ["longer", "12345"]]) == (
        "| arm    |     n |\n| ------ | ----: |\n| a      |     1 |\n| longer | 12345 |"
    )


def test_a_cell_cannot_add_cells_or_lines() -> None:
    assert table(["x"], [["a|b\nc"]]).splitlines()[2:] == ["| a\\|b c |"]


def test_figures_are_percent_but_for_counts_and_seconds() -> None:
    shown = [figure("em", 0.4567), figure("searches", 2.345), figure("seconds", 61.7), figure("anything", 3)]
    assert shown == ["45.7", "2.35", "62", "3.00"]
    assert [figure("tokens", 31.7), figure("read_tokens", 0.4)] == ["32", "0"]
    assert [figure("em", None), figure("f1", float("nan"))] == ["–", "–"]
    assert figure("em", 0.021, signed=True) == "+2.1"


def test_an_interval_is_shown_where_there_is_one() -> None:
    assert estimate("em", 0.5, 0.4, 0.6) == "50.0 [40.0, 60.0]"
    assert estimate("em", 0.5, None, 0.6) == "50.0"
    assert estimate("em", -0.02, -0.04, 0.01, signed=True) == "-2.0 [-4.0, +1.0]"


def test_p_values() -> None:
    assert [p_value(p) for p in (0.0004, 0.0499, 1.0, float("nan"))] == ["<0.001", "0.050", "1.000", "–"]


def test_metrics_that_no_row_has_are_left_out() -> None:
    rows = [{"stage": "a", "n": 2, "em": 0.5, "f1": None}, {"stage": "b", "n": 2, "em": None, "recall": 1.0}]
    header, _, *lines = metrics_table({"stage": "stage"}, rows).replace(" ", "").splitlines()
    assert header == "|stage|n|EM|recall|"
    assert lines == ["|a|2|50.0|–|", "|b|2|–|100.0|"]


def test_the_legend_tells_what_figures_count() -> None:
    assert "also where only the retriever missed the passage" in LEGEND
    assert "0 for a question without a search where there is a retriever" in LEGEND
    assert "Seconds: summed over processes" in LEGEND
