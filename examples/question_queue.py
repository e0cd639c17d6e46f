"""Questions of many clients for one agent: those that arrive while it answers are answered together next.

One thread owns the model. A client waits for its own events alone, and holds nothing that another needs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from common.errors import UserError
from envs.retrievers.micro_batches import Busy
from envs.types import Episode, Step
from examples.agents import Agent

log = logging.getLogger(__name__)
Event = tuple[int, Step] | Episode | UserError


class Broken(UserError):
    """A bug that a question met; its traceback is in the log."""


@dataclass(eq=False)
class Asked:
    """A question and what has happened to it: its steps by number, then its episode or an error."""

    text: str
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)


class QuestionQueue:
    """Answers the questions of an event loop, at most `batch` at a time.

    Args:
        agent: answers.
        batch: questions in one batch.
        most: questions that may wait.
    """

    def __init__(self, agent: Agent, *, batch: int = 16, most: int = 64) -> None:
        self._agent, self._batch, self._most = agent, batch, most
        self._thread = ThreadPoolExecutor(1, "agent")
        self._waiting: deque[Asked] = deque()
        self._running: asyncio.Task[None] | None = None

    def add(self, text: str) -> Asked:
        """Put a question in the queue.

        Raises:
            Busy: as many wait as may.
        """
        if self._running is not None and len(self._waiting) >= self._most:
            raise Busy(f"busy: {len(self._waiting)} questions are waiting")
        self._waiting.append(asked := Asked(text))
        self._start()
        return asked

    async def follow(self, asked: Asked) -> AsyncIterator[tuple[int, Step] | Episode]:
        """The steps as they are made, then the finished episode. Who leaves before its batch begins is not answered.

        Raises:
            UserError: the retriever or the engine failed, or the question met a bug (`Broken`).
        """
        try:
            while True:
                event = await asked.events.get()
                if isinstance(event, UserError):
                    raise event
                yield event
                if isinstance(event, Episode):
                    return
        finally:
            with suppress(ValueError):
                self._waiting.remove(asked)

    def _start(self) -> None:
        if self._waiting and self._running is None:
            batch = [self._waiting.popleft() for _ in range(min(self._batch, len(self._waiting)))]
            self._running = asyncio.create_task(self._answer(batch))
            self._running.add_done_callback(self._ended)

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._running = None
        self._start()

    async def _answer(self, batch: Sequence[Asked]) -> None:
        """Answer a batch; a bug that some question uncovers fails that one and no other."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._play, batch, loop)
        except UserError as error:
            for asked in batch:
                asked.events.put_nowait(error)
        except Exception as error:
            if len(batch) > 1:
                for asked in batch:
                    await self._answer([asked])
                return
            log.exception("a question failed")
            batch[0].events.put_nowait(Broken(f"{type(error).__name__} in the server; its log says where"))

    def _play(self, batch: Sequence[Asked], loop: asyncio.AbstractEventLoop) -> None:
        def passed_on(place: int, episode: Episode, steps: list[tuple[int, Step]]) -> None:
            for event in (*steps, *([episode] if episode.status else [])):
                loop.call_soon_threadsafe(batch[place].events.put_nowait, event)

        self._agent.answer([asked.text for asked in batch], watch=passed_on, pool=self._batch)
