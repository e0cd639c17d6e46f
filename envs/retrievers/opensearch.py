"""Search by words in OpenSearch or Elasticsearch, through the HTTP API that both have."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common.errors import DataError, RejectedError
from common.hashes import short_digest
from common.progress import progress_bar
from envs.retrievers.corpus import DocumentFile
from envs.retrievers.filled_index import check_filled, check_name, full_name
from envs.retrievers.http_search import HTTPSearch
from envs.types import Document, Hit

_BLOCK_BYTES = 2**22  # of a bulk request
_FILL_SECONDS = 300.0


class OpenSearch(HTTPSearch):
    """The passages of an index that `fill` has made: BM25, text plus `title_weight` times title, at its server.

    Retries, batches and `cache` are those of `HTTPSearch`.

    Args:
        url: root of the server; `https://user:password@host:9200` has its login, which is never shown.
        name: of the index.
        title_weight: how much a word in the title counts, against 1 in the text.
        corpus: passages that the index must hold; without it they are not compared.
        max_query_chars: longer queries are cut: servers reject those of more than 1,024 words.

    Raises:
        ConfigError: a setting is wrong.
        DataError: on the first search, the index is missing, or is of another corpus.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:9200",
        name: str = "corpus",
        *,
        title_weight: float = 1.0,
        corpus: Path | None = None,
        timeout: float = 30.0,
        retries: int = 4,
        backoff: float = 0.5,
        batch_size: int = 64,
        max_query_chars: int = 1024,
        cache: str | None = None,
    ) -> None:
        check_name(name)
        super().__init__(
            url,
            what="OpenSearch",
            timeout=timeout,
            retries=retries,
            backoff=backoff,
            batch_size=batch_size,
            max_query_chars=max_query_chars,
            cache=cache,
        )
        self._name, self._title_weight, self._corpus = name, title_weight, corpus
        self._index = ""

    @property
    def identity(self) -> str:
        """A hash of address, index and settings.

        Raises:
            DataError: the index is missing, or is of another corpus.
            RetrievalError: the server is down.
        """
        return f"opensearch-{short_digest([self.url, self._found(), self._title_weight])}"

    def _found(self) -> str:
        """The index behind the name, asked for once."""
        if not self._index:
            command = f"opensearch --corpus FILE --url {self.url} --name {self._name}"
            self._index = check_filled(self.behind(), self._name, f"OpenSearch {self.url}", command, self._corpus)
        return self._index

    def behind(self) -> str | None:
        """The index that the name leads to; None where there is none."""
        found = self.call("GET", f"/{self._name}/_alias", absent={})
        return next(iter(found), None)

    def _ask(self, queries: Sequence[str], k: int) -> dict[str, list[Hit]]:
        self._found()
        lines = [line for query in queries for line in ({}, self._body(query, k))]
        answer = self.call("POST", f"/{self._name}/_msearch", "".join(json.dumps(line) + "\n" for line in lines))
        parts = answer.get("responses")
        if not isinstance(parts, list) or len(parts) != len(queries):
            raise self._error("/_msearch", f"malformed answer: expected {len(queries)} responses")
        return {query: self._hits(part, k) for query, part in zip(queries, parts, strict=True)}

    def _body(self, query: str, k: int) -> dict[str, Any]:
        fields = [f"title^{self._title_weight:g}", "text"]
        return {
            "size": k,
            "query": {"multi_match": {"query": query, "fields": fields, "type": "most_fields"}},
            "sort": ["_score", {"number": "asc"}],  # equal scores in the order of the corpus
            "_source": ["id", "title", "text"],
        }

    def _hits(self, part: Any, k: int) -> list[Hit]:
        if isinstance(part, dict) and "error" in part:
            raise RejectedError(str(self._error("/_msearch", f"a query was rejected: {_reason(part)}")))
        try:
            rows = [(row["_source"], row["_score"]) for row in part["hits"]["hits"][:k]]
            return [Hit(Document(str(one["id"]), str(one["title"]), str(one["text"])), float(s)) for one, s in rows]
        except (LookupError, TypeError, ValueError) as error:
            reason = f"malformed answer: {type(error).__name__} {error} in a hit; was the index filled by the suite?"
            raise self._error("/_msearch", reason) from error

    def call(self, method: str, path: str, body: object = None, *, absent: Any = None) -> Any:
        """The server's answer to a call; `absent` where it says 404 and this is given.

        Raises:
            RejectedError: another status than 200.
            RetrievalError: the server is down, or its answer is no JSON object.
        """
        response = self._request(method, path, body)
        if response.status_code == 404 and absent is not None:
            return absent
        try:
            answer = response.json()
        except (ValueError, RecursionError) as error:
            raise self._error(path, f"malformed answer: {self._http.summary(response)}") from error
        if not response.is_success:
            reason = f"answered {response.status_code}: {_reason(answer)}"
            raise RejectedError(str(self._error(path, reason)))
        if not isinstance(answer, dict):
            raise self._error(path, "malformed answer: expected a JSON object")
        return answer


def fill(corpus: Path, url: str, name: str, *, analyzer: str = "english", shards: int = 1) -> str:
    """Fill an index from a corpus; returns its full name.

    `name` leads to it once it is whole; what it led to before is deleted then. A whole one is not filled again.
    `analyzer` cuts texts and queries into words: `english` leaves out stop words and endings, `standard` keeps all.

    Raises:
        DataError: the corpus cannot be read, or the server has not taken all of it.
        ConfigError, RetrievalError: as `OpenSearch`.
    """
    server = OpenSearch(url, name, timeout=_FILL_SECONDS)
    documents = DocumentFile(corpus)
    index, before = full_name(name, documents.identity), server.behind()
    if before == index:
        return index
    if before == name:
        raise DataError(f"OpenSearch {server.url}: index {name!r} is not this suite's: choose another --name")
    server.call("DELETE", f"/{index}", absent={})  # half-filled
    text = {"type": "text", "analyzer": analyzer}
    fields = {"id": {"type": "keyword", "index": False, "doc_values": False}, "number": {"type": "long"}}
    server.call(
        "PUT",
        f"/{index}",
        {
            "settings": {"number_of_shards": shards},
            "mappings": {"properties": fields | {"title": text, "text": text}},
        },
    )
    with progress_bar(len(documents), f"filling {name}", "passage") as bar:
        for count, block in _blocks(documents):
            answer = server.call("POST", f"/{index}/_bulk", block)
            if answer.get("errors") is not False:
                wrong = next((row for row in answer.get("items", []) if "error" in row.get("index", {})), {})
                raise DataError(f"OpenSearch {server.url}: a passage was rejected: {_reason(wrong.get('index'))}")
            bar.update(count)
    server.call("POST", f"/{index}/_refresh")
    held = server.call("GET", f"/{index}/_count").get("count")
    if held != len(documents):
        raise DataError(
            f"OpenSearch {server.url}: index {index} has {held} of {len(documents)} passages: fill it again"
        )
    actions: list[dict[str, Any]] = [{"add": {"index": index, "alias": name}}]
    if before is not None:
        actions.append({"remove_index": {"index": before}})
    server.call("POST", "/_aliases", {"actions": actions})
    return index


def _blocks(documents: DocumentFile) -> Iterator[tuple[int, str]]:
    """Bodies of bulk requests, each with its number of passages."""
    lines, size = list[str](), 0
    for number, document in enumerate(documents):
        row = {"number": number, "id": document.id, "title": document.title, "text": document.text}
        lines.append(f'{{"index": {{"_id": "{number}"}}}}\n{json.dumps(row)}\n')
        size += len(lines[-1])
        if size >= _BLOCK_BYTES:
            yield len(lines), "".join(lines)
            lines, size = [], 0
    if lines:
        yield len(lines), "".join(lines)


def _reason(answer: Any) -> str:
    """What is wrong, from the error of an answer."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, dict):
        causes = error.get("root_cause") or [error]
        return str(causes[0].get("reason") or error.get("reason") or error.get("type"))
    return str(error or answer)
