"""JSON lists of any size, read item by item: 2WikiMultiHopQA's train set is a list of a gigabyte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

_CHUNK = 1 << 20


class JSONReader:
    """Parses a JSON text value by value, with one value in memory. `lines` counts the lines already dropped."""

    def __init__(self, file: TextIO) -> None:
        self.lines = 0
        self._file = file
        self._text = ""
        self._at = 0
        self._decoder = json.JSONDecoder()

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in " \t\r\n":
                    return self._text[self._at]
                self._at += 1
            if not self._more():
                return ""

    def enter(self, key: str) -> None:
        """Move from the start of an object to the value of `key`, or to the object's end if it has no such key."""
        self._take("{")
        while self.peek() != "}":
            name = self._value()
            self._take(":")
            if name == key:
                self.peek()
                return
            self._value()
            if self.peek() != "}":
                self._take(",")

    def items(self) -> Iterator[Any]:
        """The items of the list that starts here."""
        self._take("[")
        while self.peek() != "]":
            yield self._value()
            if self.peek() != "]":
                self._take(",")
        self._take("]")

    def _take(self, wanted: str) -> None:
        if self.peek() != wanted:
            raise json.JSONDecodeError(f"expected {wanted!r}", self._text, self._at)
        self._at += 1

    def _value(self) -> Any:
        self.peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError:
                if not self._more():  # incomplete so far, or malformed
                    raise
            else:
                follower = self._text[end : end + 1]
                if (follower and follower in " \t\r\n,:]}") or not self._more():  # else a number may continue
                    self._at = end
                    return value

    def _more(self) -> bool:
        """Read as much again as is held, so that a long value is decoded only a few times."""
        chunk = self._file.read(max(_CHUNK, len(self._text) - self._at))
        if not chunk:
            return False
        self.lines += self._text.count("\n", 0, self._at)
        self._text = self._text[self._at :] + chunk
        self._at = 0
        return True
