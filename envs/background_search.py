"""Searches in a thread, for episodes whose turns are made elsewhere: no turn waits for another episode's search."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event, Thread

from common.errors import RetrievalError
from common.progress import current
from envs.interfaces import Sampler
from envs.retrieval import RetrievalEnvironment
from envs.types import Episode, Hit, Turn

Found = Sequence[list[Hit] | RetrievalError]


class BackgroundSearch:
    """Applies turns to their episodes, and searches for their queries in a thread.

    One call at a time: queries that come meanwhile share the next one, so a retriever need not be thread-safe.

    Args:
        environment: whose searches these are.

    Attributes:
        arrival: set whenever a search has ended; a sampler sets it too, whenever a turn is done.
    """

    def __init__(self, environment: RetrievalEnvironment) -> None:
        self.environment, self.arrival = environment, Event()
        self._waiting: list[tuple[Episode, Turn]] = []
        self._searching: list[tuple[Episode, Turn]] = []
        self._outcome: Found | Exception | None = None

    def ready(self, sampler: Sampler, taken: Sequence[tuple[Episode, Turn]]) -> list[Episode]:
        """Apply the turns just taken and those that the sampler has done; wait until an episode can continue.

        Raises:
            RetrievalError: the retriever failed too often in a row.
        """
        while True:
            self.arrival.clear()  # before looking: what comes from now on sets it again
            polled = [(request.episode, turn) for request, turn in sampler.poll()]
            current().tokens += sum(len(turn.action_ids) for _, turn in polled)
            pairs, taken = [*taken, *polled], ()
            if ready := self._ended() + self._applied(pairs):
                return ready
            if not sampler.waits and not self._searching:
                raise RuntimeError(f"{type(sampler).__name__} has open requests and collects no turn")
            self.arrival.wait()

    def _applied(self, pairs: Sequence[tuple[Episode, Turn]]) -> list[Episode]:
        """The episodes of these turns that search for nothing; what the others search for is begun."""
        searching = self.environment.append([episode for episode, _ in pairs], [turn for _, turn in pairs])
        self._waiting += searching
        if self._waiting and not self._searching:
            self._searching, self._waiting = self._waiting, []
            Thread(target=self._search, args=([turn.action.text for _, turn in self._searching],), daemon=True).start()
        held = {id(episode) for episode, _ in searching}
        return [episode for episode, _ in pairs if id(episode) not in held]

    def _search(self, queries: Sequence[str]) -> None:
        try:
            self._outcome = self.environment.search(queries)
        except Exception as error:  # raised where it is waited for
            self._outcome = error
        self.arrival.set()

    def _ended(self) -> list[Episode]:
        """The episodes of a search that has ended, with what it found."""
        if (outcome := self._outcome) is None:
            return []
        if isinstance(outcome, Exception):
            raise outcome
        searched, self._searching, self._outcome = self._searching, [], None
        self.environment.observe(searched, outcome)
        return [episode for episode, _ in searched]
