"""Parser of SIRAG's turns and of the evidence gathered so far, from sampled text alone, never from passages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from envs.text import tag_pattern
from envs.types import Action, Hit, Turn

TAGS = ("<decision>", "</decision>", "<query>", "</query>", "<keep>", "</keep>")
DECISION, END_DECISION, QUERY, END_QUERY, KEEP, END_KEEP = TAGS
# Why a turn was of no use: a decision is then one to stop, a selection one of all passages.
NO_DECISION, TWO_DECISIONS, NO_QUERY = "no decision", "two decisions", "no query"
NO_SELECTION, NO_NUMBER, OUT_OF_RANGE, REPEATED = "no selection", "no number", "out of range", "repeated"
_ANY_TAG = tag_pattern(TAGS)


def read_decision(text: str) -> Action:
    """`query`, `stop` or, with the reason as its text, `invalid`.

    One decision, `retrieve` with a query after it or `stop`; text outside of the tags is a thought.
    """
    tags, texts = _tagged(text)
    word = texts[0].strip() if tags[:2] == [DECISION, END_DECISION] else ""
    asked_too = word == "stop" and QUERY in tags
    if tags.count(DECISION) > 1 or asked_too or {"stop", "retrieve"} <= {*word.split()}:
        return Action("invalid", TWO_DECISIONS)
    if word == "stop" and len(tags) == 2:
        return Action("stop", "")
    if word != "retrieve":
        return Action("invalid", NO_DECISION)
    query = texts[2].strip() if tags[2:] == [QUERY, END_QUERY] else ""
    return Action("query", query) if query else Action("invalid", NO_QUERY)


def read_selection(text: str, shown: int) -> Action:
    """`keep` with numbers from 1 to `shown`, `1,3`, or none; else `keep_all`, with the reason as its text."""
    tags, texts = _tagged(text)
    if tags.count(KEEP) > 1:
        return Action("keep_all", REPEATED)
    if tags != [KEEP, END_KEEP]:
        return Action("keep_all", NO_SELECTION)
    words = [word.strip() for word in texts[0].split(",")]
    if words == [""]:
        return Action("keep", "")
    if not all(re.fullmatch("[0-9]+", word) for word in words):
        return Action("keep_all", NO_NUMBER)
    numbers = [word.lstrip("0") for word in words]
    if not set(numbers) <= {str(number) for number in range(1, shown + 1)}:
        return Action("keep_all", OUT_OF_RANGE)
    return Action("keep_all", REPEATED) if len(set(numbers)) < len(numbers) else Action("keep", ",".join(numbers))


def _tagged(text: str) -> tuple[list[str], list[str]]:
    """The tags of a text in order and what follows each; one in other case or spacing is no tag, but an empty name."""
    cuts = [*(match.start() for match in _ANY_TAG.finditer(text)), len(text)]
    parts = [text[start:end] for start, end in pairwise(cuts)]
    tags = [next((tag for tag in TAGS if part.startswith(tag)), "") for part in parts]
    return tags, [part[len(tag) :] for tag, part in zip(tags, parts, strict=True)]


@dataclass(frozen=True, slots=True)
class State:
    """State that the agents share: evidence pool, passages that wait for a selection, retrievals so far."""

    evidence: tuple[Hit, ...] = ()
    shown: tuple[Hit, ...] = ()
    retrievals: int = 0


def states(turns: Sequence[Turn]) -> list[State]:
    """The state before every turn, and at last the one after all of them.

    Passages that are in the pool already are not shown again, and none is shown twice.
    """
    state = State()
    found = [state]
    for turn in turns:
        if turn.action.kind == "query":
            different = {hit.document.id: hit for hit in state.evidence}
            for hit in turn.hits:
                different.setdefault(hit.document.id, hit)
            fresh = tuple(different.values())[len(state.evidence) :]
            state = State(state.evidence, fresh, state.retrievals + 1)
        elif turn.action.kind in ("keep", "keep_all"):
            state = State(state.evidence + kept(turn.action, state.shown), (), state.retrievals)
        found.append(state)
    return found


def kept(action: Action, shown: tuple[Hit, ...]) -> tuple[Hit, ...]:
    """The passages that a selection keeps of those shown, in the order in which they were shown."""
    if action.kind == "keep_all":
        return shown
    numbers = action.text.split(",")
    return tuple(hit for number, hit in enumerate(shown, 1) if str(number) in numbers)
