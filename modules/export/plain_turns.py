"""A format as plain text: what stands before, between and after the turns, for programs that know no `AgentFormat`.

It is read off the format by playing an episode of searches, and exists where the context only grows and one model acts.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from envs.interfaces import AgentFormat
from envs.protocols.rendering import render_hits
from envs.requests import Request
from envs.types import Document, Episode, Hit, Limits, Move, MoveKind, Question, Turn

_QUESTION, _PAYLOAD = "What is asked?", "what is written"
_HITS = [Hit(Document("1", "A title", "A text.")), Hit(Document("2", "Another", "More text."))]
_DIFFERENT = "its turns are not plain text around what the model writes"


class NotPlain(Exception):
    """A format that cannot be described so; says why."""


def plain_turns(protocol: AgentFormat, limits: Limits) -> dict[str, Any]:
    """The description of a format, all of it text.

    - `prompt`: before and after the question.
    - `turns`: of each turn that the format and the limits allow, its `opening` and the strings where it may `stop`.
    - `query`, `answer`: patterns whose group is what is searched for, and the answer.
    - `passages`: before the passages, what follows the last of them, and after them.
    - `otherwise`: what follows a turn with neither query nor answer; `eos_ends`: whether an end of message ends all.
    - `escape`: pattern of each `<` in questions and passages that becomes `&lt;`.

    Raises:
        NotPlain: the format writes its context anew in every turn, asks several models, or acts itself.
    """
    heard = _Heard(protocol)
    protocol = heard.protocol
    episode = Episode(Question("1", _QUESTION, ("",)), protocol.prompt(Question("1", _QUESTION, ("",))))
    before, asked, after = heard.prompt(episode.prompt_ids)
    if asked != _QUESTION:
        raise NotPlain(_DIFFERENT)
    query = _pattern(heard, episode, "search")
    turns: list[dict[str, Any]] = []
    passages: list[str] = []
    first: list[Turn] = []
    while len(turns) < limits.turns and (opened := _opened(heard, episode)) is not None:
        request, opening = opened
        turns.append({"opening": opening, "stop": list(request.stop)})
        first = first or [_turn(heard, request, "", "eos"), _turn(heard, request, "", "length")]
        turn = _turn(heard, request, heard.say(episode, "search"), "stop")
        if not passages and turn.action.kind == "query":
            turn.hits = tuple(_HITS)
            passages = _passages(protocol, episode, turn)
        episode.turns.append(turn)
    if not passages:
        raise NotPlain(_DIFFERENT)
    start = Episode(episode.question, episode.prompt_ids)
    answer = _pattern(heard, start, "conclude")
    ended, cut = (Episode(episode.question, episode.prompt_ids, [turn]) for turn in first)
    otherwise = protocol.observe(cut, first[1].action, ())
    return {
        "prompt": [before, after],
        "turns": turns,
        "query": query,
        "answer": answer,
        "passages": passages,
        "otherwise": otherwise.before + otherwise.data + otherwise.after,
        "eos_ends": not isinstance(protocol.next(ended), Request),
        "escape": protocol.codec.escaped,
    }


class _Heard:
    """A format whose codec notes which texts become which ids: ids alone do not give the text back."""

    def __init__(self, protocol: AgentFormat) -> None:
        self.protocol, codec = copy.copy(protocol), copy.copy(protocol.codec)
        self._texts: list[tuple[bool, str, tuple[int, ...]]] = []
        self._control, self._data = codec.control, codec.data
        vars(codec).update(control=self.control, data=self.data)
        self.protocol.codec = codec

    def control(self, text: str) -> tuple[int, ...]:
        self._texts.append((True, text, ids := self._control(text)))
        return ids

    def data(self, text: str) -> tuple[int, ...]:
        self._texts.append((False, text, ids := self._data(text)))
        return ids

    def prompt(self, ids: tuple[int, ...]) -> tuple[str, str, str]:
        """Trusted text, question and trusted text, which gave these ids."""
        kinds, texts = [trusted for trusted, _, _ in self._texts], [text for _, text, _ in self._texts]
        if kinds not in ([True, False], [True, False, True]) or sum((own for *_, own in self._texts), ()) != ids:
            raise NotPlain("its context is written anew in every turn" if not ids else _DIFFERENT)
        return texts[0], texts[1], texts[2] if len(texts) == 3 else ""

    def opening(self, ids: tuple[int, ...]) -> str:
        """The text that last gave these ids."""
        texts = (text for trusted, text, own in reversed(self._texts) if trusted and own == ids)
        if (text := "" if not ids else next(texts, None)) is None:
            raise NotPlain(_DIFFERENT)
        return text

    def say(self, episode: Episode, kind: MoveKind) -> str:
        """The turn with which a teacher would make a move."""
        if kind not in self.protocol.moves:
            raise NotPlain("it does not search" if kind == "search" else _DIFFERENT)
        return self.protocol.say(episode, [Move(kind, _PAYLOAD)])


def _opened(heard: _Heard, episode: Episode) -> tuple[Request, str] | None:
    """The request of the next turn and its opening; None at the end of the episode."""
    upcoming = heard.protocol.next(episode)
    if not isinstance(upcoming, Request):
        if not episode.turns:
            raise NotPlain("it acts before the model does")
        return None
    if upcoming.context is not None:
        raise NotPlain("its context is written anew in every turn")
    if upcoming.agent != "policy" or upcoming.max_tokens or upcoming.forced_ids or upcoming.first_ids:
        raise NotPlain(_DIFFERENT)
    return upcoming, heard.opening(upcoming.opening_ids)


def _turn(heard: _Heard, request: Request, text: str, finish: Any) -> Turn:
    ids = heard.protocol.codec.control(text)
    turn = request.turn(ids, [0.0] * len(ids), finish, text)
    turn.action = heard.protocol.parse(request.episode, turn)
    return turn


def _pattern(heard: _Heard, episode: Episode, kind: MoveKind) -> str:
    """What stands between the tags around a move's text; the last opening tag counts, as in a lenient parse."""
    text = heard.say(episode, kind)
    before, _, after = text.partition(_PAYLOAD)
    opening, closing = re.findall(r"<[^<>/]+>", before)[-1:], re.match(r"\s*(</[^<>]+>)", after)
    if not opening or closing is None:
        raise NotPlain(_DIFFERENT)
    pattern = f"(?s).*{re.escape(opening[0])}(.*?){re.escape(closing[1])}"
    opened = _opened(heard, episode)
    assert opened is not None
    action = _turn(heard, opened[0], text, "stop").action
    found = re.search(pattern, text)
    if found is None or (action.kind, action.text) != ("query" if kind == "search" else "answer", found[1].strip()):
        raise NotPlain(_DIFFERENT)
    return pattern


def _passages(protocol: AgentFormat, episode: Episode, turn: Turn) -> list[str]:
    shown = protocol.observe(Episode(episode.question, episode.prompt_ids, [turn]), turn.action, turn.hits)
    body = render_hits(_HITS).rstrip()
    if not shown.data.startswith(body):
        raise NotPlain("it does not show passages as they are")
    return [shown.before, shown.data.removeprefix(body), shown.after]
