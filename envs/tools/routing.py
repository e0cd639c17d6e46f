"""Routing of queries to tools by a name at their beginning: `calc: 3 * 17` goes to the tool `calc`.

This is the whole rule: what precedes a query's first colon, without spaces around it and in small letters, is the name
of a tool; any other query is a search. No format need know about tools, but its instruction must name them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from common.costs import counted, tool_calls, tool_failures
from common.errors import ConfigError, RejectedError, RetrievalError, ToolError
from common.seeds import stable_hash
from envs.interfaces import Retriever, Tool
from envs.types import Document, Hit

SEARCH = "search"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Tools:
    """A retriever and further tools. It is the first of them, counted as `search`, and gets its queries in one call.

    A tool's answer is the one hit of its query, whose title is the tool's name; no compressor shortens it. A call that
    fails shows `error: <reason>` instead: its passage is empty, so no reward that reads passages can pay for a reason
    that repeats the query. `counts` has calls and failures by tool, as costs.

    Args:
        retriever: answers every query that names no tool.
        tools: by name, of small letters, digits and underscores.

    Raises:
        ConfigError: a name is none, or that of the retriever.
    """

    def __init__(self, retriever: Retriever, tools: dict[str, Tool]) -> None:
        for name in tools:
            if name == SEARCH or not _NAME.fullmatch(name):
                raise ConfigError(f"tools.{name}: name a tool by a-z, 0-9 and _, from a letter, and not {SEARCH}")
        self._retriever, self._tools = retriever, tools
        self._calls: Counter[str] = Counter()

    @property
    def counts(self) -> Counter[str]:
        """Calls and failures by tool, and what retriever and tools count."""
        return counted(self._retriever, *self._tools.values()) + self._calls

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits of a search, one of a tool.

        Raises:
            RetrievalError: the retriever failed, before any tool was called; or a tool is down.
        """
        routed = [self.route(query) for query in queries]
        found = iter(self._found([text for name, text in routed if name == SEARCH], k))
        return [next(found) if name == SEARCH else [self._called(name, text)] for name, text in routed]

    def route(self, query: str) -> tuple[str, str]:
        """The name of the tool that a query is for, and what it is asked."""
        name, _, text = query.partition(":")
        name = name.strip().lower()
        return (name, text.strip()) if name in self._tools else (SEARCH, query)

    def _found(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        if not queries:
            return []
        try:
            found = self._retriever.search(queries, k)
        except RetrievalError as error:
            if not isinstance(error, RejectedError) or len(queries) == 1:  # several are asked one by one next
                self._calls += Counter({tool_calls(SEARCH): len(queries), tool_failures(SEARCH): len(queries)})
            raise
        self._calls[tool_calls(SEARCH)] += len(queries)
        return found

    def _called(self, name: str, text: str) -> Hit:
        id_ = f"{name}:{stable_hash(name, text):x}"  # no text of the policy: it could be a gold passage's id
        self._calls[tool_calls(name)] += 1
        try:
            answer = self._tools[name].call(text)
        except (ToolError, RetrievalError) as error:
            self._calls[tool_failures(name)] += 1
            if isinstance(error, RetrievalError):
                raise
            return Hit(Document(id_, f"{name} (failed)", ""), shown=f"error: {error}")
        return Hit(Document(id_, name, answer), shown=answer)
