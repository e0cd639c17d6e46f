"""Serve a retriever by the common `/retrieve` API: `python -m envs.retrievers.server bm25 --corpus FILE`."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import json
import math
import socket
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import HTTPException
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette import exceptions as starlette

from common.errors import ConfigError, UserError
from common.terminal import prepare_terminal, print_error, say
from envs.retrievers.connections import exit_at_once, server_config
from envs.retrievers.encoder_options import add_encoder_options, take_encoder
from envs.retrievers.micro_batches import Busy, MicroBatches
from envs.retrievers.request_bodies import RequestBodies, parsed, while_connected
from envs.retrievers.wire import write_result

if TYPE_CHECKING:
    from envs.interfaces import Retriever  # imports torch, which a lexical server does not need


def create_app(
    retriever: Retriever,
    *,
    topk: int = 3,
    max_queries: int = 8192,
    max_topk: int = 100,
    max_hits: int = 2**16,
    max_query_chars: int = 2**14,
    max_body_bytes: int = 2**24,
    max_bytes_in_work: int = 2**26,
    max_batch: int = 128,
    concurrency: int = 1,
    queue: int = 256,
    cached_answers: int = 10_000,
    cached_bytes: int = 2**28,
) -> FastAPI:
    """The server of one retriever: `POST /retrieve` and `GET /health`; every error is `{"error": "one line"}`.

    `topk` is used where a request has none, and a request may ask for `max_hits`, queries times topk. Requests that
    arrive during a search wait and are then searched together, at most `max_batch` queries (`MicroBatches`).
    `concurrency` searches run at once, each in a thread: above 1 the retriever must be thread-safe. `queue` requests
    may wait, and bodies of `max_bytes_in_work` may be read or in work; the next gets 503 and `Retry-After`. The last
    `cached_answers` of at most `cached_bytes` are kept in memory, but not those of a retriever without an `identity`,
    which may change.

    Raises:
        ConfigError: `topk` lies outside 1 to `max_topk`, or a limit leaves no room for any request.
    """
    if not 1 <= topk <= max_topk:
        raise ConfigError(f"retrieval server: topk {topk} must lie between 1 and max_topk, {max_topk}")
    limits = (max_queries, max_hits, max_query_chars, max_body_bytes, max_bytes_in_work, max_batch, concurrency)
    if min(limits) < 1 or min(queue, cached_answers, cached_bytes) < 0:
        raise ConfigError("retrieval server: all limits must be at least 1, queue and cached_answers at least 0")
    if max_bytes_in_work < max_body_bytes or max_hits < topk:
        raise ConfigError("retrieval server: max_bytes_in_work must be at least max_body_bytes, max_hits at least topk")
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    model = _request_model(max_queries, max_topk, max_query_chars)
    health = {"status": "ok", "topk": topk, **_facts(retriever)}
    cached = cached_answers if "backend" in health else 0
    batches = MicroBatches(
        retriever,
        max_batch=max_batch,
        concurrency=concurrency,
        queue=queue,
        cached=cached,
        cached_bytes=cached_bytes,
    )
    bodies = RequestBodies(max_body_bytes, max_bytes_in_work)
    check = getattr(getattr(retriever, "documents", None), "check", None)

    @app.post("/retrieve")
    async def retrieve(request: Request) -> JSONResponse:
        async with bodies.read(request) as body:
            wanted = parsed(model, body)
            k = wanted.topk or topk
            if len(wanted.queries) * k > max_hits:
                raise HTTPException(400, f"{len(wanted.queries)} queries of topk {k}: at most {max_hits} hits in all")
            if check is not None:  # an answer that is kept may be of other passages than the corpus now holds
                await asyncio.to_thread(check)
            answers = await while_connected(request, batches.search(wanted.queries, k))
            return JSONResponse(write_result(answers, scores=wanted.return_scores))

    @app.get("/health")
    async def report() -> JSONResponse:
        if check is not None:
            await asyncio.to_thread(check)
        return JSONResponse(health)

    @app.exception_handler(starlette.HTTPException)
    async def rejected(_: Request, error: starlette.HTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @app.exception_handler(Busy)
    async def full(_: Request, error: Busy) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 503, {"Retry-After": "1"})

    @app.exception_handler(UserError)
    async def unavailable(_: Request, error: UserError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 503)

    @app.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": f"{type(error).__name__} in the server; its log says where"}, 500)

    return app


def _request_model(max_queries: int, max_topk: int, max_query_chars: int) -> type[BaseModel]:
    query = Annotated[str, Field(max_length=max_query_chars)]
    fields: dict[str, Any] = {
        "queries": (list[query], Field(max_length=max_queries)),
        "topk": (int | None, Field(None, ge=1, le=max_topk)),
        "return_scores": (bool, False),
    }
    return create_model("RetrieveRequest", __config__=ConfigDict(strict=True), **fields)


def _facts(retriever: Retriever) -> dict[str, object]:
    """Identity and size of a retriever. Clients cache answers by `backend`: without an identity there is none."""
    identity, documents = getattr(retriever, "identity", None), getattr(retriever, "documents", None)
    facts: dict[str, object] = {} if identity is None else {"backend": identity}
    return facts | ({"documents": len(documents)} if isinstance(documents, Sized) else {})


def main(argv: Sequence[str] | None = None) -> int:
    """Load the retriever of the command line and serve it; returns 2 where a setting or a file is wrong."""
    prepare_terminal()
    options = vars(_parser().parse_args(argv))
    host, port, build = options.pop("host"), options.pop("port"), options.pop("build")
    seconds = options.pop("request_seconds")
    limits = {name: options.pop(name) for name in inspect.signature(create_app).parameters if name in options}
    try:
        with listen(host, port) as listener:
            app = create_app(build(**options), **limits)
            say(f"retrieval server at http://{host}:{listener.getsockname()[1]}/retrieve")
            uvicorn.Server(server_config(app, request_seconds=seconds)).run(sockets=[listener])
    except UserError as error:
        print_error(error)
        return 2
    return 0


def listen(host: str, port: int) -> socket.socket:
    """Bind the address before loading; clients that connect meanwhile wait.

    Raises:
        ConfigError: the address cannot be had.
    """
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot serve at {host}:{port}: {error}; choose another --host or --port") from error
    listener = _Listener(fileno=listener.detach())
    # Connections inherit it. asyncio sets it only on sockets that it made; without it the body of every answer, which
    # follows its head in a packet of its own, is held back for 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class _Listener(socket.socket):
    """Lets many clients wait to be accepted, while asyncio accepts few at once (`server_config`)."""

    def listen(self, backlog: int = 0) -> None:
        super().listen(2048)


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--host", default="127.0.0.1")
    common.add_argument("--port", type=int, default=8000, help="8000; 0 takes any free port")
    common.add_argument("--request-seconds", type=_positive, default=30, metavar="S", help="to arrive in; 30")
    for name, limit in inspect.signature(create_app).parameters.items():
        if limit.default is not limit.empty:
            option = f"--{name.replace('_', '-')}"
            common.add_argument(option, type=int, default=limit.default, metavar="N", help=str(limit.default))
    corpus = argparse.ArgumentParser(add_help=False)
    corpus.add_argument("--corpus", type=Path, required=True, help="JSONL of id, title, text or of id, contents")
    corpus.add_argument("--cache", default="runs/cache", help="folder for the index")

    parser = argparse.ArgumentParser(prog="python -m envs.retrievers.server", description=__doc__)
    kinds = parser.add_subparsers(required=True, metavar="bm25|dense|component")
    bm25 = kinds.add_parser("bm25", parents=[corpus, common], help="lexical search")
    bm25.add_argument("--title-weight", type=float, default=1.0)
    bm25.set_defaults(build=_bm25)
    dense = kinds.add_parser("dense", parents=[corpus, common], help="search by an encoder and FAISS")
    add_encoder_options(dense, required=True)
    dense.add_argument("--index", help="FAISS index-factory string, such as Flat (the default), SQfp16 or HNSW32")
    dense.add_argument("--index-file", type=Path, help="a published FAISS index of the corpus, read as it is")
    dense.add_argument(
        "--index-device", choices=("auto", "cpu", "cuda"), default="cpu", help="auto, cuda: all GPUs, sharded"
    )
    dense.add_argument("--half", action="store_true", help="vectors in half precision on GPUs")
    dense.add_argument("--nprobe", type=int, help="lists of an IVF index that a query visits")
    dense.add_argument("--ef-search", type=int, help="search width in an HNSW index")
    dense.set_defaults(build=_dense)
    component = kinds.add_parser("component", parents=[common], help="any other class with search(queries, k)")
    component.add_argument("--json", dest="spec", required=True, help='{"target": "package.module:name", ...}')
    component.set_defaults(build=_component)
    return parser


def _positive(text: str) -> float:
    """Seconds, above 0."""
    if not 0 < (seconds := float(text)) < math.inf:
        raise ValueError(text)
    return seconds


def _bm25(**settings: Any) -> Retriever:
    from envs.retrievers.bm25 import BM25

    return BM25(**settings)


def _dense(corpus: Path, **settings: Any) -> Retriever:
    from envs.retrievers.dense import Dense

    encoder = take_encoder(settings)
    assert encoder is not None  # its option is required
    return Dense(corpus, encoder, device=settings.pop("index_device"), **settings)


def _component(spec: str) -> Retriever:
    try:
        settings = json.loads(spec)
        name = settings["target"].partition(":")[2]
        retriever = _built(settings)
    except (ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ConfigError(f'--json {spec}: {reason}; expected {{"target": "package.module:name", ...}}') from error
    if not callable(getattr(retriever, "search", None)):
        raise ConfigError(f"--json {spec}: {name} has no method search(queries, k)")
    return retriever


def _built(value: Any) -> Any:
    """A setting with its components built, from the inside out."""
    if not isinstance(value, dict):
        return value
    settings = {name: _built(item) for name, item in value.items()}
    if "target" not in settings:
        return settings
    module, _, name = settings.pop("target").partition(":")
    return getattr(importlib.import_module(module), name)(**settings)


if __name__ == "__main__":
    exit_at_once(main)
