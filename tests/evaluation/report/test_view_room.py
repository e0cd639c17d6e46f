"""What a page shows where not every episode has room, and how large it gets."""

from __future__ import annotations

from pathlib import Path

from evaluation.report.view_list import listed
from evaluation.report.view_room import fill
from evaluation.report.view_run import Answers
from evaluation.report.view_steps import Shelf
from tests.evaluation.report.test_view_share import trained
from tests.evaluation.report.view_fakes import arm, experiment, judged, page


def test_a_small_page_keeps_what_counts_lead_to_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    rows = [judged(number, float(number % 5 > 0), True, True) for number in range(200)]
    folder = experiment(tmp_path, {"eval": arm(tmp_path, "eval", rows)})
    whole, small = page(folder), page(folder, limit=330_000)
    assert "200 of 200 episodes" in whole.html
    left = [number for number in range(200) if f"e{number}" not in small.ids]
    assert left
    assert not [number for number in left if number % 5 == 0], "a wrong one was left out"
    assert f"{200 - len(left)} of 200 episodes" in small.html
    assert f"{len(left)} are left out: {len(left)} without any mistake." in small.html
    assert set(small.links) <= set(small.ids)
    assert small.counts()["eval"] == whole.counts()["eval"]


def test_no_list_takes_the_place_of_an_episode_that_a_count_leads_to(tmp_path: Path) -> None:
    rows = [judged(number, 0.0 if number < 120 else 1.0, True, True) for number in range(300)]
    stages = {"eval": arm(tmp_path, "eval", rows), "rl": tmp_path / "store" / "rl-1"}
    trained(stages["rl"] / "data", "rl")
    folder = experiment(tmp_path, stages)
    alone = page(experiment(tmp_path, {"eval": stages["eval"]}, name="alone"))
    whole, small = page(folder), page(folder, limit=500_000)
    assert "11 more iterations" not in whole.html
    assert "more iterations are left out" in small.html
    assert not [number for number in range(120) if f"e{number}" not in small.ids]
    assert [number for number in range(120, 300) if f"e{number}" not in small.ids], "right ones make room"
    assert small.counts() == whole.counts() == alone.counts()


def test_where_even_mistakes_have_no_room_their_count_says_how_many_are_there(tmp_path: Path) -> None:
    rows = [judged(number, 0.0, True, False) for number in range(300)]
    folder = experiment(tmp_path, {"eval": arm(tmp_path, "eval", rows)})
    small = page(folder, limit=300_000)
    held = sum(f"e{number}" in small.ids for number in range(300))
    assert 0 < held < 300
    assert f"wrong: 300, of which this page holds {held}<" in small.html
    assert set(small.links) <= set(small.ids)


def test_no_mistake_is_cut_that_would_fit(tmp_path: Path) -> None:
    rows = [judged(number, 0.0, True, False) for number in range(300)]
    rows[0]["steps"][0] |= {"said": "word " * 300}
    folder = experiment(tmp_path, {"eval": arm(tmp_path, "eval", rows)})
    limit = 500_000
    small = page(folder, limit=limit)
    assert sum(f"e{number}" in small.ids for number in range(300)) < 300
    assert limit - 14_000 < len(small.html.encode()) < limit, "the reserve, and less than three episodes"


def test_a_page_of_many_short_episodes_and_long_names_stays_under_its_limit(tmp_path: Path) -> None:
    rows = [judged(number, 0.0, True, False) for number in range(400)]
    for row in rows:
        row["steps"] = row["steps"][1:]
    names = [f"eval_with_a_long_name_for_an_arm_of_a_comparison_{number}" for number in range(4)]
    folder = experiment(tmp_path, {name: arm(tmp_path, name, rows) for name in names})
    for limit in (700_000, 1_100_000):
        assert limit - 14_000 < len(page(folder, limit=limit).html.encode()) < limit


def test_an_episode_without_room_leaves_its_place_and_its_passages_to_smaller_ones() -> None:
    rows = [judged(number, 0.0, True, False) for number in range(3)]
    passages = {name: {"title": name, "text": f"Text of {name}."} for name in ("d0", "d1", "d2")}
    answers = [Answers("a", "toy/dev", rows, passages)]
    episodes, shelf = listed(answers), Shelf(10_000)
    fill(episodes, shelf, 4_000, lambda episode, _: "x" * (9_000 if episode.number == 1 else 100))
    assert [bool(episode.markup) for episode in episodes.episodes] == [True, False, True]
    assert [passage["id"] for passage in shelf.passages] == ["d0", "d2"]


def test_a_page_has_less_than_five_megabytes(tmp_path: Path) -> None:
    long = {"said": "word " * 400}
    rows = [judged(number, 0.0, True, False) for number in range(2000)]
    for row in rows:
        row["steps"][0] |= long
    shown = page(experiment(tmp_path, {"eval": arm(tmp_path, "eval", rows)}))
    assert 4_970_000 < len(shown.html.encode()) < 5_000_000


def test_a_small_page_has_both_sides_of_a_difference_and_one_episode_of_each_mistake(tmp_path: Path) -> None:
    """A first arm is wrong on the first 200 questions, a second on the last alone, where one step is out of format."""
    before = [judged(number, float(number > 199), True, number > 199) for number in range(300)]
    after = [judged(number, float(number < 299), True, True) for number in range(300)]
    after[250] |= {"valid_steps": 0.5}
    folder = experiment(tmp_path, {"a": arm(tmp_path, "a", before), "b": arm(tmp_path, "b", after)})
    small = page(folder, limit=420_000)
    held = {int(id_[1:]) for id_ in small.ids if id_[0] == "e" and id_[1:].isdigit()}
    assert 100 < len(held) < 300
    assert {*range(39), *range(300, 339), 299, 599} <= held, "39 differences in favour of one arm, one of the other"
    assert 550 in held, "the only one out of format"
    assert set(small.links) <= set(small.ids)


def test_right_answers_beside_wrong_ones_come_before_other_right_ones(tmp_path: Path) -> None:
    rows = {name: [judged(number, 1.0, True, True) for number in range(100)] for name in ("a", "b")}
    rows["a"][99] = judged(99, 0.0, True, False)
    answers = [Answers(name, "toy/dev", each, {}) for name, each in rows.items()]
    episodes, kept = listed(answers), list[int]()
    fill(episodes, Shelf(0), 10_000, lambda episode, shown: kept.append(episode.number) or "x" * 1_000)
    assert kept[:3] == [99, 199, 0]


def test_a_cut_list_of_differences_says_how_many_the_page_has_elsewhere(tmp_path: Path) -> None:
    before = [judged(number, 0.0, True, False) for number in range(100)]
    after = [judged(number, 1.0, True, True) for number in range(100)]
    folder = experiment(tmp_path, {"a": arm(tmp_path, "a", before), "b": arm(tmp_path, "b", after)})
    assert "60 more differ and are left out here; the list of episodes has 60 of them" in page(folder).html
    small = page(folder, limit=280_000)
    held = {int(id_[1:]) for id_ in small.ids if id_[0] == "e" and id_[1:].isdigit()}
    both = sum(number in held and number + 100 in held for number in range(40, 100))
    assert 0 < both < 60
    assert f"the list of episodes has {both} of them with both sides" in small.html
