"""The bodies of requests, with a limit on each and on all in work: read, parsed, given up with their client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import HTTPException
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from envs.retrievers.micro_batches import Busy

_T = TypeVar("_T")


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


def parsed(model: type[BaseModel], body: bytearray) -> Any:
    """A body as its model.

    Raises:
        HTTPException: it does not fit; names the first place.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        places = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        place = "".join(places).lstrip(".") or "body"
        raise HTTPException(400, f"{place}: {first['msg']}") from error


async def while_connected(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`, which is cancelled where the client leaves: one that gave up will ask again."""
    working, leaving = asyncio.create_task(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HTTPException(499, "the client left")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
