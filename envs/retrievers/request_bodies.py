"""The bodies of requests, with a limit on each and on all that are in work."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request
from fastapi.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from envs.retrievers.micro_batches import Busy


class RequestBodies:
    """Reads bodies of at most `most` bytes, while all that are in work have at most `most_together`."""

    def __init__(self, most: int, most_together: int) -> None:
        self._most, self._most_together, self._held = most, most_together, 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytearray]:
        """The body of a request, which is in work until the block ends.

        Raises:
            HTTPException: the body is too long (the rest of it is not read), or its client has left.
            Busy: there is no room for it; the rest of it is read and dropped, for most clients read no answer before.
        """
        body, length, others = bytearray(), 0, None
        try:
            async for chunk in request.stream():
                length += len(chunk)
                if length > self._most:
                    raise HTTPException(413, f"body: longer than {self._most} bytes", {"Connection": "close"})
                if others is None and self._held + len(chunk) > self._most_together:
                    self._held -= len(body)
                    others = self._held
                    body.clear()
                if others is None:
                    self._held += len(chunk)
                    body += chunk
            if others is not None:
                raise Busy(f"busy: {others} bytes of requests are in work")
            yield body
        except ClientDisconnect as error:
            raise HTTPException(499, "the client left") from error
        finally:
            self._held -= len(body)
