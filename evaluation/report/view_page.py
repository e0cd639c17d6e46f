"""The page of one run or of several: everything that a reader needs in one HTML file under 5 MB, without a network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from common.errors import DataError
from common.files import atomic_write
from evaluation.report.view_list import EpisodeList, Listed, attributes, listed, worths
from evaluation.report.view_mistakes import outcome
from evaluation.report.view_pair import compared_arms
from evaluation.report.view_parts import page_parts
from evaluation.report.view_room import fill
from evaluation.report.view_run import Run, read_answers
from evaluation.report.view_share import share
from evaluation.report.view_steps import Shelf, shown_episode, shown_question
from evaluation.report.view_text import Row, printable

LIMIT = 5_000_000  # bytes of a page
_PASSAGES = 800_000  # of them, for passages
_RESERVE, _LAST = 100_000, 10_000  # of them, for what is only estimated: at first, and for the few added at the end
_LISTS = 0.28  # of a page, for lists that grow with the stages, where mistakes leave it
_SHARES = {"verdicts": 0.15, "tree": 0.33, "iteration": 0.5, "changes": 1.0}  # by kind, of what those before leave
_TEMPLATES = Path(__file__).parent / "templates"


def write_page(path: Path, runs: Sequence[Run], *, ranked: Sequence[Row] | None = None) -> None:
    """Write the page of some runs; the same runs give the same bytes.

    `ranked` are their step rankings (`evaluation.steps.rankings`), measured here where they are not given.

    Raises:
        DataError: there is no run.
    """
    if not runs:
        raise DataError("no run to show")
    with atomic_write(path) as file:
        file.write(render_page(runs, ranked=ranked))


def render_page(runs: Sequence[Run], *, limit: int = LIMIT, ranked: Sequence[Row] | None = None) -> str:
    """The page as HTML, of at most `limit` bytes as long as that is enough for everything but episodes."""
    environment = template_environment()
    template = environment.get_template("report.html")
    several = len(runs) > 1
    answers = [each for run in runs for each in read_answers(run, prefix=f"{run.name}:" if several else "")]
    page, shelf = listed(answers), Shelf(_PASSAGES)
    pair = compared_arms(runs, page)
    compared = [side for _, *sides in pair["shown"] for side in sides] if pair else []
    parts = page_parts(runs, ranked)
    fixed = page_assets() | parts | {"pair": pair}
    lists = [*parts["trees"], *parts["iterations"], *chain.from_iterable(parts["minds"])]
    macros: Any = environment.get_template("macros.html").module

    def rendered() -> str:
        return template.render(fixed | _episodes(page, shelf) | {"pair_listed": _listed_pairs(pair)})

    def left() -> int:
        return limit - len(rendered().encode())

    def add_episodes(spared: float = 0, *, reserve: int = _RESERVE, mistakes_alone: bool = False) -> None:
        def article(one: Listed, shown: Row) -> str:
            return str(_article(macros, page, one, shown))

        fill(page, shelf, int(left() - reserve - spared), article, first=compared, mistakes_alone=mistakes_alone)

    # What counts lead to comes first: no list takes its place. After the lists, the other episodes have what is left.
    add_episodes(mistakes_alone=True)
    add_episodes(_LISTS * limit if any(each.items for each in lists) else 0)
    remaining = left() - _RESERVE
    for kind, part in _SHARES.items():
        of_kind = [each for each in lists if each.kind == kind]
        room = max(0, int(part * remaining))
        remaining -= share(of_kind, shelf, room, lambda kind, shown: str(getattr(macros, kind)(shown)))
    for reserve in (_RESERVE, _LAST, _LAST):  # sizes are estimated from above: what was kept too much is used then
        add_episodes(reserve=reserve)
    return rendered()


def write_episode(path: Path, title: str, row: Row, found: Mapping[str, Row]) -> None:
    """Write the page of one episode: `row` as in predictions, `found` the passages by id."""
    shelf = Shelf(_PASSAGES)
    shown = {"question": shown_question(row), "episode": shown_episode(row, found, shelf), "shelf": shelf}
    template = template_environment().get_template("episode.html")
    with atomic_write(path) as file:
        file.write(template.render(page_assets() | shown | {"title": title}))


def template_environment() -> Environment:
    """The templates, with autoescape on: text of others is never markup."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"printable": printable, "outcome": outcome}
    return environment


def page_assets() -> Row:
    """Style and script of a page, and the hash that alone lets the script run."""
    style, script = ((_TEMPLATES / f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"style": style, "script": script, "script_hash": f"sha256-{digest}"}


def _episodes(page: EpisodeList, shelf: Shelf) -> Row:
    kinds, untrue = page.untrue()
    gone = [episode for episode in page.episodes if not episode.markup]
    arms = page.arms
    return {
        "counts": page.counts(),
        "untrue_kinds": kinds,
        "untrue_rows": untrue,
        "arms": arms,
        "arm_of": lambda episode: page.answers[episode.of].arm,
        "worths": lambda question: worths(page, question),
        "shelf": shelf,
        "list": {
            "all": len(page.episodes),
            "shown": len(page.episodes) - len(gone),
            "flawless": sum(not episode.mistakes for episode in gone),
            "mistaken": sum(bool(episode.mistakes) for episode in gone),
            "questions": page.on_page(),
            "hops": sorted({q.shown["hops"] for q in page.questions if q.shown["hops"]}),
            "statuses": sorted({printable(episode.row["status"], 40) for episode in page.episodes}),
            "passages_left_out": shelf.left_out,
        },
    }


def _listed_pairs(pair: Row | None) -> int:
    """Of the differences that the table of two arms leaves out, those that the page has both episodes of."""
    return sum(bool(one.markup and other.markup) for _, one, other in pair["left_out"]) if pair else 0


def _article(macro: Any, page: EpisodeList, episode: Listed, shown: Row) -> Any:
    of = page.answers[episode.of]
    data = attributes(episode) | {"arm": page.arms.index(of.arm)}
    return macro.episode(shown, of.arm, f"e{episode.number}", data)
