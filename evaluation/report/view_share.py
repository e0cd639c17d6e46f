"""Lists that grow with the stages of a run: each kind has a share of a page's bytes, and says what it leaves out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from evaluation.report.view_steps import Shelf
from evaluation.report.view_text import Row


@dataclass(slots=True)
class Listing:
    """A list of a page: the trees of a search, say, or the iterations that a stage kept.

    Attributes:
        kind: the macro that an item is written with.
        told: what is said of the list itself.
        items: in the order in which they are shown.
        show: what the macro needs of an item.
        order: the places of the items, those that a reader needs first in front.
        markup: of the items that the page has room for, by place.
    """

    kind: str
    told: Row
    items: Sequence[Any]
    show: Callable[[Any, Shelf], Any] = lambda item, _: item
    order: Sequence[int] = ()
    markup: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.order = self.order or range(len(self.items))

    @property
    def shown(self) -> list[str]:
        """The markup of the items that the page has, in their order."""
        return [self.markup[place] for place in sorted(self.markup)]

    @property
    def left_out(self) -> int:
        """How many items it has no room for."""
        return len(self.items) - len(self.markup)


def share(lists: Sequence[Listing], shelf: Shelf, budget: int, render: Callable[[str, Any], str]) -> int:
    """Give items their markup, in turn over the lists, until `budget` bytes are full, passages included.

    Returns how many bytes they take.

    A list ends with the first item that has no room, so that a long one does not take the place of others.
    `render(kind, shown)` makes the markup.
    """
    ended, left = set[int](), budget
    for turn in zip_longest(*(each.order for each in lists)):
        for number, place in enumerate(turn):
            if place is None or number in ended:
                continue
            each, before = lists[number], shelf.mark()
            markup = render(each.kind, each.show(each.items[place], shelf))
            size = len(markup.encode()) + before[0] - shelf.budget
            if size > left:
                ended.add(number)
                shelf.back(before)
            else:
                each.markup[place] = markup
                left -= size
    return budget - left


def spread(count: int) -> list[int]:
    """The places of a list in an order whose every beginning is spread over it: first, last, middle, quarters, …"""
    order, gaps = list(range(count))[:1], [(0, count - 1)]
    order += [count - 1] if count > 1 else []
    for low, high in gaps:  # grows while it is read
        if high - low > 1:
            middle = (low + high) // 2
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return order
