"""Which episodes a page of limited size has: those that a reader looks for first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, zip_longest

from markupsafe import escape

from evaluation.report.view_list import Asked, EpisodeList, Listed, first_mistake
from evaluation.report.view_steps import Shelf, shown_episode
from evaluation.report.view_text import LONGEST, Row, printable

_LINK, _LINKED = 60, 90  # bytes around a link to an episode, characters of the question in it
_SIGN = 110  # bytes of the sign of an episode beside its question, which names its arm twice


def fill(
    page: EpisodeList,
    shelf: Shelf,
    budget: int,
    render: Callable[[Listed, Row], str],
    *,
    first: Sequence[Listed] = (),
    mistakes_alone: bool = False,
) -> None:
    """Give episodes without text theirs as long as they fit in `budget` bytes, passages included.

    One that does not fit is left out, and smaller ones after it have their chance.

    The order: `first`; of each arm one episode of every mistake; those with a mistake, arm by arm in turn; the others,
    beginning with questions that another arm got wrong. With `mistakes_alone` these others are left as they are.
    `render(episode, shown)` makes the text.
    """
    compared = {episode.number for episode in first}
    asked = {question.number for question in page.on_page()}
    for episode in _by_need(page, first):
        if episode.markup or (mistakes_alone and not episode.mistakes and episode.number not in compared):
            continue
        each, question = page.answers[episode.of], page.questions[episode.question]
        around = _links_size(episode) + _SIGN + 2 * len(each.arm)
        around += 0 if episode.question in asked else _question_size(question)
        if around + _least_size(episode) > budget:
            continue
        before = shelf.mark()
        markup = render(episode, shown_episode(episode.row, each.passages, shelf))
        size = around + len(markup.encode()) + before[0] - shelf.budget
        if size > budget:
            shelf.back(before)
            continue
        budget -= size
        asked.add(episode.question)
        episode.markup = markup


def _by_need(page: EpisodeList, first: Sequence[Listed]) -> Iterator[Listed]:
    yield from first
    seen = set[tuple[int, str | None]]()
    in_turn: list[list[Listed]] = [[] for _ in page.answers]
    for episode in page.episodes:
        if episode.mistakes:
            in_turn[episode.of].append(episode)
            cells = {(episode.of, name) for name in (*episode.mistakes, first_mistake(episode))}
            if cells - seen:
                yield episode
            seen |= cells
    yield from (one for one in chain.from_iterable(zip_longest(*in_turn)) if one is not None)
    for question in sorted(page.questions, key=lambda one: not any(episode.mistakes for episode in one.episodes)):
        yield from (episode for episode in question.episodes if not episode.mistakes)


def _question_size(question: Asked) -> int:
    text = question.shown["text"] + question.shown["answers"] + "".join(map("".join, question.shown["gold"]))
    return _size(text) + _LINK * (len(question.episodes) + len(question.shown["gold"])) + 500


def _least_size(episode: Listed) -> int:
    """Bytes that the text of an episode has at least: most that do not fit are told without writing them."""
    return sum(min(LONGEST, len(step.get("said") or step["text"])) for step in episode.row["steps"])


def _links_size(episode: Listed) -> int:
    """Bytes of the lists of counts that lead to an episode: each of its mistakes, and its first untrue step."""
    if not episode.mistakes:
        return 0
    return (len(episode.mistakes) + 1) * (_LINK + _size(printable(episode.row["question"], _LINKED)))


def _size(text: str) -> int:
    """Bytes of a text in HTML."""
    return len(str(escape(text)).encode())
