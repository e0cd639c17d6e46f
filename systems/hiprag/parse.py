"""HiPRAG's parse: one cursor over what the policy wrote gives steps, verdicts on their format and character ranges.

What the environment wrote is in it as single marks, without its text: no document can open or close anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from envs.types import Action, Turn

NAMES = ("think", "step", "reasoning", "search", "context", "conclusion", "answer")
TAGS = tuple(f"<{slash}{name}>" for name in NAMES for slash in ("", "/"))
STOPS = ("</search>", "</answer>")
TEXT, PASSAGES, NOTICE = "text", "passages", "notice"
WRONG, AFTER = "wrong", "after"  # a misspelt tag, or one of a pair of no such format; what follows the end of a turn
_ANY_TAG = re.compile(r"<\s*(/?)\s*([A-Za-z][\w-]*)[^<>]*>")
_BEFORE_SEARCH = ("<step>", "<reasoning>", "</reasoning>", "<search>", TEXT, "</search>", PASSAGES)
_CLAIM = ("<conclusion>", TEXT, "</conclusion>", "</step>")
_ANSWER = ("</think>", "<answer>", TEXT, "</answer>")
_SHAPES = {"search": (*_BEFORE_SEARCH, *_CLAIM), "statement": (*_BEFORE_SEARCH[:3], *_CLAIM), "answer": _ANSWER}

Kind = Literal["search", "statement", "answer", "invalid"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A tag or a run of text, `[start, end)` of what the policy wrote in a turn; `turn` -1 for the environment's.

    `acts` is set on the tag that ended the turn with a search or the answer.
    """

    kind: str
    text: str = ""
    turn: int = -1
    start: int = 0
    end: int = 0
    acts: bool = False


@dataclass(slots=True)
class Part:
    """The marks of one step, or of the answer."""

    marks: list[Mark] = field(default_factory=list)

    @property
    def acting_turn(self) -> int | None:
        """The turn that this part ended with a search or the answer."""
        return next((mark.turn for mark in self.marks if mark.acts), None)

    @property
    def kind(self) -> Kind:
        """Its kind, read leniently: `valid` says whether it follows the format."""
        acting = next((mark.kind for mark in self.marks if mark.acts), "")
        if acting:
            return "search" if acting == "</search>" else "answer"
        return "statement" if self.conclusion else "invalid"

    @property
    def valid(self) -> bool:
        """Whether its blocks are those of its kind, each once and in order, with nothing besides."""
        return self._shape() == _SHAPES.get(self.kind)

    @property
    def closed(self) -> bool:
        """Whether it is a step that has ended."""
        return any(mark.kind == "</step>" for mark in self.marks)

    @property
    def conclusion(self) -> str:
        """The text of its conclusion, of a search step after the passages; empty until the conclusion is closed."""
        kinds = [mark.kind for mark in self.marks]
        marks = self.marks[kinds.index(PASSAGES) :] if PASSAGES in kinds else self.marks
        return inner_text(marks, "conclusion") or ""

    @property
    def only_text_follows(self) -> bool:
        """Whether the format is broken by text alone, after the end."""
        cut = [mark for mark in self.marks if mark.kind != AFTER or _ANY_TAG.search(mark.text)]
        return Part(cut).valid

    def written(self) -> dict[int, tuple[int, int]]:
        """The characters that the policy wrote of it: by turn, `[start, end)`."""
        ranges: dict[int, tuple[int, int]] = {}
        for mark in self.marks:
            if mark.turn >= 0:
                ranges[mark.turn] = (ranges.get(mark.turn, (mark.start, 0))[0], mark.end)
        return ranges

    def _shape(self) -> tuple[str, ...]:
        """Kinds of its marks in order, runs of text as one; without blanks, and the reasoning's text, which may be."""
        kinds: list[str] = []
        for mark in self.marks:
            if mark.kind != TEXT or (mark.text.strip() and kinds[-1:] != [TEXT]):
                kinds.append(mark.kind)
        if kinds[1:4] == ["<reasoning>", TEXT, "</reasoning>"]:
            del kinds[2]
        return tuple(kinds)


def read_action(text: str) -> Action:
    """Action of a turn: the first of `</search>` and `</answer>` ends it, its last opening tag begins the text."""
    marks = list(_marks(text, 0))
    for number, mark in enumerate(marks):
        if mark.kind in STOPS:
            name = mark.kind.strip("</>")
            payload = inner_text(marks[: number + 1], name)
            return Action("query" if name == "search" else "answer", payload) if payload else Action("invalid", "")
    return Action("invalid", "")


def read_parts(turns: Sequence[Turn]) -> list[Part]:
    """The steps and the answer of an episode, whole or begun, in order."""
    parts: list[Part] = []
    for mark in _marks_of(turns):
        if not parts or _begins(mark, parts[-1]):
            parts.append(Part())
        parts[-1].marks.append(mark)
    return [part for part in parts if any(mark.turn >= 0 for mark in part.marks)]


def well_formed(parts: Sequence[Part]) -> bool:
    """F(T) of HiPRAG: at least one step, each in one of the two forms, `</think>` and the answer; text may follow."""
    if len(parts) < 2 or parts[-1].kind != "answer" or not parts[-1].only_text_follows:
        return False
    return all(part.valid and part.kind != "answer" for part in parts[:-1])


def inner_text(marks: Sequence[Mark], name: str) -> str | None:
    """The text between the first `</name>` and the last `<name>` before it; None where there is no such pair."""
    kinds = [mark.kind for mark in marks]
    if f"</{name}>" not in kinds:
        return None
    end = kinds.index(f"</{name}>")
    begins = [place for place in range(end) if kinds[place] == f"<{name}>"]
    return "".join(mark.text for mark in marks[begins[-1] + 1 : end]).strip() if begins else None


def _begins(mark: Mark, part: Part) -> bool:
    """Whether a mark opens the next part, whether or not this one has ended as it should."""
    kinds = [own.kind for own in part.marks]
    if all(own.turn < 0 for own in part.marks):  # a step that the environment has opened is the policy's to write
        return False
    if mark.kind in (PASSAGES, NOTICE, AFTER) or (mark.turn < 0 and mark.kind == "<conclusion>"):
        return False
    if mark.kind == "<answer>":
        return kinds[0] != "</think>" or "<answer>" in kinds
    if mark.kind == "<search>" and PASSAGES in kinds:  # a second search in one step
        return True
    blank = mark.kind == TEXT and not mark.text.strip()
    return mark.kind in ("<step>", "</think>") or (part.closed and not blank)


def _marks_of(turns: Sequence[Turn]) -> Iterator[Mark]:
    """The marks of all turns, with those of the environment between them."""
    yield from (Mark("<step>"), Mark("<reasoning>"))
    opened: set[str] = set()
    for number, turn in enumerate(turns):
        kind = turn.action.kind
        yield from _paired(_ended(_marks(turn.text, number), kind), opened)
        if kind == "query":
            if turn.hits:
                yield Mark(PASSAGES)
            yield Mark("<conclusion>")
        elif kind != "answer":
            yield Mark(NOTICE)


def _marks(text: str, turn: int) -> Iterator[Mark]:
    """Tags and the text between them; at least one mark. A tag of no such format is text here, under its name."""
    place = 0
    for tag in _ANY_TAG.finditer(text):
        if place < tag.start():
            yield Mark(TEXT, text[place : tag.start()], turn, place, tag.start())
        spelt, place = tag.group(), tag.end()
        known = spelt in TAGS and spelt != "<think>"  # the environment has opened that one
        kind = spelt if known else WRONG if tag[2].lower() in NAMES else f"{tag[1]}{tag[2]}"
        yield Mark(kind, spelt, turn, tag.start(), tag.end())
    if place < len(text) or not text:
        yield Mark(TEXT, text[place:], turn, place, len(text))


def _ended(marks: Iterable[Mark], kind: str) -> Iterator[Mark]:
    """The marks of a turn with this action: the tag that ends it acts, and all that follows it is one mark."""
    stop = {"query": "</search>", "answer": "</answer>"}.get(kind)
    waiting = list(marks)
    place = next((number for number, mark in enumerate(waiting) if mark.kind == stop), len(waiting))
    yield from waiting[:place]
    if place < len(waiting):
        yield replace(waiting[place], acts=True)
    if rest := waiting[place + 1 :]:
        text = "".join(mark.text for mark in rest)
        yield Mark(AFTER if text.strip() else TEXT, text, rest[0].turn, rest[0].start, rest[-1].end)


def _paired(marks: Iterable[Mark], opened: set[str]) -> Iterator[Mark]:
    """Tags of no such format: one that closes what was opened is wrong, a single one is text."""
    for mark in marks:
        if mark.kind in TAGS or mark.kind in (TEXT, WRONG, AFTER):
            yield mark
            continue
        closes = mark.kind.startswith("/")
        if not closes:
            opened.add(mark.kind)
        yield replace(mark, kind=WRONG if closes and mark.kind[1:] in opened else TEXT)
