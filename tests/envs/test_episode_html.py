"""What a notebook shows of an episode."""

from __future__ import annotations

import re
from html import unescape

from envs.types import Action, Document, Episode, Hit, Question, Step, Turn

HITS = (Hit(Document("a", "Ada <b>", "She wrote it.")), Hit(Document("b", "Bab", "A machine.")))


def cells(episode: Episode) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", episode._repr_html_(), re.S)
    return [[unescape(cell) for cell in re.findall(r">([^<>]*)</t[dh]>", row)] for row in rows[1:]]


def test_a_finished_episode_shows_its_steps_and_the_gold_answer() -> None:
    steps = (
        Step("query", True, ((0, 0, 1),), query="author", said="Search. <subquery>author</subquery>", hits=HITS),
        Step("answer", False, ((1, 0, 1),), claim="Bab"),
    )
    episode = Episode(Question("q", "Who?", ("Ada", "Lady A")), (), status="answered", answer="Bab", steps=steps)
    assert cells(episode) == [
        ["1", "query", "", "Search. <subquery>author</subquery>", "Ada <b>; Bab"],
        ["2", "answer", "not valid", "Bab", ""],
        ["", "answer", "answered", "Bab", "gold: Ada / Lady A"],
    ]
    assert "<b>" not in episode._repr_html_()


def test_an_episode_that_is_not_over_shows_its_turns_and_a_failed_one_its_reason() -> None:
    turn = Turn(
        "policy", (), (1,), (-0.5,), "stop", "u", text="find author", action=Action("query", "author"), hits=HITS
    )
    episode = Episode(Question("q", "Who?", ("",)), (), [turn])
    assert cells(episode) == [["1", "query", "", "find author", "Ada <b>; Bab"], ["", "answer", "not over", "", ""]]
    episode.status, episode.error = "error", "nobody answers"
    assert cells(episode)[1] == ["", "answer", "error", "nobody answers", ""]
