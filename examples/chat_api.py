"""OpenAI's chat API for an agent, and a page to ask it: a question in, steps and an answer with its sources out."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import HTTPException
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette import exceptions as starlette
from starlette.middleware.trustedhost import TrustedHostMiddleware

from common.errors import RetrievalError, UserError
from common.plain_text import one_line, visible
from envs.retrievers.micro_batches import Busy
from envs.retrievers.request_bodies import RequestBodies, parsed, while_connected
from envs.types import Document, Episode, Step
from examples.agents import Agent, sources
from examples.question_queue import Asked, Broken, QuestionQueue

_PAGE = Path(__file__).with_name("serve.html")
_HOME = ("127.0.0.1", "localhost")
_BODY, _BODIES, _QUESTION = 2**20, 2**24, 2**13  # bytes, bytes of all, characters


def _text(content: Any) -> Any:
    """A message's text, which clients may send in parts."""
    if isinstance(content, list):
        if any(not isinstance(part, dict) or part.get("type") != "text" for part in content):
            raise ValueError("only parts of type text can be read")
        return "".join(str(part.get("text", "")) for part in content)
    return "" if content is None else content


class Message(BaseModel):
    """A message; of a conversation only the last is answered."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_text)] = ""


class ChatRequest(BaseModel):
    """What is read of a request; settings of sampling are the agent's own, and ignored here."""

    model_config = ConfigDict(strict=True)
    messages: list[Message] = Field(min_length=1)
    model: str | None = None
    stream: bool | None = None
    n: int | None = Field(None, ge=1, le=1)
    tools: list[Any] | None = Field(None, max_length=0)


def create_app(agent: Agent, *, batch: int = 16, queue: int = 64, host: str = "127.0.0.1") -> FastAPI:
    """`POST /v1/chat/completions`, `GET /v1/models` and the page at `/`; every error is one line, as OpenAI's are.

    Questions are answered `batch` at a time while `queue` may wait; the next gets 503. On a `host` that only this
    machine reaches, a request must name this machine: no site on the web can ask through a visitor's browser.
    """
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    questions, bodies = QuestionQueue(agent, batch=batch, most=queue), RequestBodies(_BODY, _BODIES)
    if host in _HOME:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(_HOME))

    @app.get("/v1/models")
    async def models() -> JSONResponse:
        model = {"id": agent.name, "object": "model", "created": 0, "owned_by": "prorag-suite"}
        return JSONResponse({"object": "list", "data": [model]})

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        async with bodies.read(request) as body:
            wanted: ChatRequest = parsed(ChatRequest, body)
        asked = questions.add(_question(wanted, agent.name))
        if wanted.stream:
            return StreamingResponse(_chunks(questions, asked, agent.name), media_type="text/event-stream")
        return JSONResponse(await while_connected(request, _whole(questions, asked, agent.name)))

    @app.get("/")
    async def page() -> HTMLResponse:
        return HTMLResponse(_PAGE.read_text(encoding="utf-8"), headers={"Content-Security-Policy": _policy()})

    _add_errors(app)
    return app


def _question(wanted: ChatRequest, name: str) -> str:
    if wanted.model not in (None, "", name):
        raise HTTPException(404, f"model: there is no {one_line(wanted.model or '')[:99]!r} here, only {name!r}")
    last, place = wanted.messages[-1], f"messages[{len(wanted.messages) - 1}]"
    if last.role != "user":
        raise HTTPException(400, f"{place}.role: the last message must be the user's question, not of {last.role}")
    if not last.content.strip():
        raise HTTPException(400, f"{place}.content: the question is empty")
    if len(last.content) > _QUESTION:
        raise HTTPException(400, f"{place}.content: {len(last.content)} characters; at most {_QUESTION}")
    return last.content.strip()


async def _whole(questions: QuestionQueue, asked: Asked, name: str) -> dict[str, Any]:
    steps: dict[int, Step] = {}
    async for event in questions.follow(asked):
        if isinstance(event, tuple):
            steps[event[0]] = event[1]
        else:
            own = {"reasoning_content": "\n".join(map(_line, steps.values()))}
            message = {"role": "assistant", **own, **_answer(event)}
            choice = {"index": 0, "message": message, "finish_reason": _finish(event), "logprobs": None}
            return _head("chat.completion", name) | {"choices": [choice], "usage": _usage(event)}
    raise AssertionError("an episode has an end")


async def _chunks(questions: QuestionQueue, asked: Asked, name: str) -> AsyncIterator[str]:
    """Server-sent events: a chunk a step, in `reasoning_content` and `step`, then the answer."""
    head = _head("chat.completion.chunk", name)

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return f"data: {json.dumps({**head, 'choices': [choice], **more})}\n\n"

    yield chunk({"role": "assistant", "content": ""})
    try:
        async for event in questions.follow(asked):
            if isinstance(event, tuple):
                number, step = event
                yield chunk({"reasoning_content": f"{_line(step)}\n", "step": {"number": number, **_step(step)}})
            else:
                yield chunk(_answer(event))
                yield chunk({}, _finish(event), usage=_usage(event))
    except UserError as error:  # the head is sent: it cannot be another status
        yield f"data: {json.dumps(_error(500, str(error)))}\n\n"
    yield "data: [DONE]\n\n"


def _head(kind: str, name: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": name}


def _answer(episode: Episode) -> dict[str, Any]:
    """The answer with what OpenAI's messages have not: how the episode ended, and its sources.

    Raises:
        RetrievalError: the episode failed.
    """
    if episode.status == "error":
        raise RetrievalError(episode.error)
    found = [_passage(document) for document in sources(episode)]
    return {"content": visible(episode.answer), "status": episode.status, "sources": found}


def _finish(episode: Episode) -> str:
    return "length" if episode.status in ("step_budget", "token_budget") else "stop"


def _usage(episode: Episode) -> dict[str, int]:
    sampled = sum(len(turn.action_ids) for turn in episode.turns)
    read = max(0, len(episode.context()) - sampled)
    return {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}


def _step(step: Step) -> dict[str, Any]:
    hits = [_passage(hit.document) for hit in step.hits]
    return {
        "kind": step.kind,
        "valid": step.valid,
        "text": visible(step.text),
        "said": visible(step.said),
        "hits": hits,
    }


def _passage(document: Document) -> dict[str, str]:
    return {"id": visible(document.id), "title": visible(document.title), "text": visible(document.text)}


def _line(step: Step) -> str:
    found = f" ({len(step.hits)} passages)" if step.hits else ""
    return f"{step.kind}: {one_line(step.text or step.said)}{found}"


def _policy() -> str:
    """Only the page's own script and style run, and it talks to this server alone."""
    text = _PAGE.read_text(encoding="utf-8")
    hashes = {
        tag: base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        for tag, body in re.findall(r"<(script|style)>(.*?)</\1>", text, re.S)
    }
    own = "; ".join(f"{tag}-src 'sha256-{digest}'" for tag, digest in hashes.items())
    nothing = "; ".join(f"{what} 'none'" for what in ("default-src", "base-uri", "form-action", "frame-ancestors"))
    return f"{nothing}; connect-src 'self'; img-src data:; {own}"


def _error(status: int, message: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": one_line(message), "type": kind, "param": None, "code": None}}


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(starlette.HTTPException)
    async def rejected(_: Request, error: starlette.HTTPException) -> JSONResponse:
        return JSONResponse(_error(error.status_code, str(error.detail)), error.status_code, error.headers)

    @app.exception_handler(Busy)
    async def full(_: Request, error: Busy) -> JSONResponse:
        return JSONResponse(_error(503, str(error)), 503, {"Retry-After": "1"})

    @app.exception_handler(UserError)
    async def unavailable(_: Request, error: UserError) -> JSONResponse:
        status = 500 if isinstance(error, Broken) else 503
        return JSONResponse(_error(status, str(error)), status)
