"""Search in Milvus: a local file with Milvus Lite, or a server; by words, by vectors, or both."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from common.errors import ConfigError, DataError, RetrievalError
from common.hashes import short_digest
from common.masking import Secrets
from common.plain_text import encodable
from common.progress import progress_bar
from envs.retrievers.corpus import DocumentFile
from envs.retrievers.dense import passage_text
from envs.retrievers.encoder import Encoder
from envs.retrievers.filled_index import DEPTH, check_filled, check_name, full_name
from envs.retrievers.hybrid import reciprocal_ranks
from envs.types import Document, Hit

_BLOCK = 512  # passages inserted at once
_BATCH = 64  # queries of a call
_LONGEST = 65_535  # bytes of a text, Milvus's limit
_MAX_QUERY_CHARS = 4096
_WITHOUT_PINGS = {"grpc.keepalive_time_ms": 2**31 - 1}  # Lite breaks a connection that pings while it is idle
logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs each error with its trace; they are raised too


class Milvus:
    """The passages of a collection that `fill` has made; it needs no file of its own.

    `bm25` compares words, `dense` the vectors of an encoder, and `both` fuses the two rankings by reciprocal ranks.
    Milvus Lite has one process at a time: for several ranks start a server, of Milvus or of this retriever.

    Args:
        uri: a local file that ends in `.db`, or the address of a server, such as `http://user:password@host:19530`.
        name: of the collection.
        search: `bm25`, `dense` or `both`.
        encoder: of queries, for `dense` and `both`: the one that the collection was filled with.
        corpus: passages that the collection must hold; without it they are not compared.
        timeout: seconds of a call.

    Raises:
        ConfigError: pymilvus is missing, or a setting is wrong.
        DataError: the collection is missing, or is of another corpus or encoder.
        RetrievalError: Milvus cannot be reached.
    """

    def __init__(
        self,
        uri: str = "runs/milvus.db",
        name: str = "corpus",
        *,
        search: Literal["bm25", "dense", "both"] = "bm25",
        encoder: Encoder | None = None,
        corpus: Path | None = None,
        timeout: float = 30.0,
    ) -> None:
        check_name(name)
        if (encoder is None) != (search == "bm25"):
            raise ConfigError(f"Milvus: search {search} {'needs an' if encoder is None else 'takes no'} encoder")
        self._client, self._engine = connected(uri)
        self._encoder, self._search, self._timeout = encoder, search, timeout
        vectors = "" if encoder is None else encoder.passage_identity
        with self._engine:
            found = self._client.describe_collection(name)["collection_name"] if _exists(self._client, name) else None
        command = f"milvus --corpus FILE --uri {self._engine.uri} --name {name}" + (
            " --encoder MODEL" if encoder else ""
        )
        self._collection = check_filled(found, name, str(self._engine), command, corpus, vectors)
        with self._engine:
            self._client.load_collection(self._collection)
        queries = "" if encoder is None else encoder.identity
        self.identity = f"milvus-{short_digest([self._collection, search, queries])}"

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits a query, best first; of words alone, only passages that share one with the query.

        Raises:
            RetrievalError: Milvus cannot be reached, or rejects the search.
        """
        kinds = ("bm25", "dense") if self._search == "both" else (self._search,)
        depth = max(k, DEPTH) if self._search == "both" else k
        found = [self._ranked(kind, queries, depth) for kind in kinds]
        if len(found) == 1:
            return found[0]
        return [reciprocal_ranks(rankings)[:k] for rankings in zip(*found, strict=True)]

    def _ranked(self, kind: str, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Hits by one kind of search; none for a query without a sign."""
        texts = [encodable(query[:_MAX_QUERY_CHARS]) for query in queries]
        asked = [number for number, text in enumerate(texts) if text.strip()]
        results: list[list[Hit]] = [[] for _ in texts]
        for start in range(0, len(asked), _BATCH):
            part = asked[start : start + _BATCH]
            given = [texts[number] for number in part]
            vectors = self._encoder.encode_queries(given).tolist() if kind == "dense" and self._encoder else given
            with self._engine:
                answers = self._client.search(
                    self._collection,
                    data=vectors,
                    anns_field=kind,
                    limit=k,
                    output_fields=["id", "title", "contents"],
                    timeout=self._timeout,
                )
            for number, rows in zip(part, answers, strict=True):
                results[number] = [_hit(row, kind) for row in rows]
        return results


def fill(corpus: Path, uri: str, name: str, encoder: Encoder | None = None) -> str:
    """Fill a collection from a corpus, with vectors where there is an encoder; returns its full name.

    `name` leads to it once it is whole; what it led to before is dropped then. A whole one is not filled again.

    Raises:
        DataError: the corpus cannot be read, or has a passage that is too long.
        ConfigError, RetrievalError: as `Milvus`.
    """
    check_name(name)
    documents = DocumentFile(corpus)
    for document in documents:
        if len(passage_text(document).encode()) > _LONGEST:
            raise DataError(f"{corpus}: passage {document.id!r} has more than {_LONGEST:,} bytes: cut it into passages")
    client, engine = connected(uri)
    collection = full_name(name, documents.identity, "" if encoder is None else encoder.passage_identity)
    with engine:
        before = client.describe_collection(name)["collection_name"] if _exists(client, name) else None
        if before == collection:
            return collection
        if before == name:
            raise DataError(f"{engine}: collection {name!r} is not this suite's: choose another --name")
        if _exists(client, collection):  # half-filled
            client.drop_collection(collection)
        client.create_collection(
            collection,
            schema=_schema(client, encoder),
            index_params=_indexes(client, encoder),
            consistency_level="Strong",
        )
        stream, number = iter(documents), 0
        with progress_bar(len(documents), f"filling {name}", "passage") as bar:
            while block := list(islice(stream, _BLOCK)):
                client.insert(collection, _rows(block, number, encoder))
                number += len(block)
                bar.update(len(block))
        client.flush(collection)
        if before is None:
            client.create_alias(collection, name)
        else:
            client.alter_alias(collection, name)
            client.drop_collection(before)
    return collection


def _schema(client: Any, encoder: Encoder | None) -> Any:
    from pymilvus import DataType, Function, FunctionType

    schema = client.create_schema(auto_id=False)
    schema.add_field("number", DataType.INT64, is_primary=True)
    schema.add_field("id", DataType.VARCHAR, max_length=_LONGEST)
    schema.add_field("title", DataType.VARCHAR, max_length=_LONGEST)
    schema.add_field("contents", DataType.VARCHAR, max_length=_LONGEST, enable_analyzer=True)
    schema.add_field("bm25", DataType.SPARSE_FLOAT_VECTOR)
    schema.add_function(
        Function("words", FunctionType.BM25, input_field_names=["contents"], output_field_names=["bm25"])
    )
    if encoder is not None:
        schema.add_field("dense", DataType.FLOAT_VECTOR, dim=encoder.dimension)
    return schema


def _indexes(client: Any, encoder: Encoder | None) -> Any:
    indexes = client.prepare_index_params()
    indexes.add_index("bm25", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25")
    if encoder is not None:
        indexes.add_index("dense", index_type="AUTOINDEX", metric_type="IP")
    return indexes


def _rows(block: Sequence[Document], first: int, encoder: Encoder | None) -> list[dict[str, Any]]:
    texts = [passage_text(document) for document in block]
    rows: list[dict[str, Any]] = [
        {"number": number, "id": document.id, "title": document.title, "contents": text}
        for number, (document, text) in enumerate(zip(block, texts, strict=True), first)
    ]
    if encoder is not None:
        for row, vector in zip(rows, encoder.encode_passages(texts).tolist(), strict=True):
            row["dense"] = vector
    return rows


def _hit(row: dict[str, Any], kind: str) -> Hit:
    entity = row["entity"]
    text = entity["contents"].removeprefix(f"{entity['title']}\n")
    score = abs(row["distance"]) if kind == "bm25" else row["distance"]  # Lite's BM25 is negative
    return Hit(Document(entity["id"], entity["title"], text), float(score))


def _exists(client: Any, name: str) -> bool:
    return bool(client.has_collection(name))


class Engine:
    """Milvus at an address: a context in which its errors become one line."""

    def __init__(self, uri: str, failure: type[Exception]) -> None:
        self._secrets, self._failure = Secrets(uri.rpartition("@")[0].rpartition("/")[2]), failure
        self.uri = self._secrets.shown(uri)

    def __str__(self) -> str:
        return f"Milvus at {self.uri}"

    def reason(self, error: Exception) -> str:
        """What the library says, in one line without the password."""
        return self._secrets.shown(getattr(error, "message", error))

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, self._failure):
            raise RetrievalError(f"{self}: {self.reason(error)}") from error


def connected(uri: str) -> tuple[Any, Engine]:
    """A client, and the context for its calls.

    Raises:
        ConfigError: pymilvus is missing, or the file cannot be opened.
        RetrievalError: the server cannot be reached.
    """
    try:
        from pymilvus import MilvusClient
        from pymilvus.exceptions import ConnectionConfigException, MilvusException
    except ImportError as error:
        raise ConfigError("Milvus needs pymilvus: pip install '.[milvus]'") from error
    local = uri.endswith(".db")
    engine = Engine(uri, MilvusException)
    if local:
        Path(uri).parent.mkdir(parents=True, exist_ok=True)
    with engine:
        try:
            return MilvusClient(uri, grpc_options=_WITHOUT_PINGS if local else {}), engine
        except ConnectionConfigException as error:
            advice = "is another process using it? Milvus Lite has one at a time" if local else "give http://host:port"
            raise ConfigError(f"{engine} cannot be opened: {engine.reason(error)}; {advice}") from error
