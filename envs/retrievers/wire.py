"""The JSON of the `/retrieve` API of Search-R1, HiPRAG and ProRAG.

A request is `{"queries": [...], "topk": 3, "return_scores": true}`; its answer holds one list a query, best hit first:
`{"result": [[{"document": {"id", "contents"}, "score"}]]}`, or bare documents where the request wants no scores.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence

from common.errors import RetrievalError
from common.seeds import stable_hash
from envs.retrievers.corpus import ID_KEYS, document_from_row
from envs.types import Document, Hit


def write_result(answers: Sequence[Sequence[Hit]], *, scores: bool) -> dict[str, list[list[dict[str, object]]]]:
    """The answer to a request, in either shape.

    Other clients read `contents`, whose first line is the title in quotes; `title` and `text` hold the same unchanged.

    Raises:
        RetrievalError: a score is not finite.
    """

    def write(hit: Hit) -> dict[str, object]:
        document = _row(hit.document)
        if hit.score is not None and not math.isfinite(hit.score):
            raise RetrievalError(f"the retriever gives passage {hit.document.id} the score {hit.score}")
        return {"document": document, "score": hit.score} if scores else document

    return {"result": [[write(hit) for hit in hits] for hits in answers]}


def read_result(payload: object, queries: int, k: int) -> list[list[Hit]]:
    """Read an answer to `queries` queries, in either shape; hits beyond `k` are dropped.

    Web-search proxies ignore `topk` and omit scores and ids; a missing id becomes a hash of the document.

    Raises:
        ValueError: the payload is malformed; says where.
    """
    lists = payload.get("result") if isinstance(payload, dict) else None
    if not isinstance(lists, list) or not all(isinstance(hits, list) for hits in lists):
        raise ValueError('expected {"result": [[...], ...]}, one list a query')
    if len(lists) != queries:
        raise ValueError(f'"result" holds {len(lists)} lists for {queries} queries')
    return [[_read(row, f"result[{i}][{j}]") for j, row in enumerate(hits[:k])] for i, hits in enumerate(lists)]


def _row(document: Document) -> dict[str, object]:
    contents = f'"{document.title}"\n{document.text}'
    return {"id": document.id, "contents": contents, "title": document.title, "text": document.text}


def _read(item: object, where: str) -> Hit:
    row, score = item, None
    if isinstance(item, dict) and "document" in item:
        row, score = item["document"], item.get("score")
    if isinstance(row, dict) and all(row.get(key) is None for key in ID_KEYS):
        row = row | {"id": f"{stable_hash(json.dumps(row, sort_keys=True)):016x}"}
    try:
        document = document_from_row(row)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if score is None:
        return Hit(document)
    if not isinstance(score, int | float) or isinstance(score, bool) or not abs(score) <= sys.float_info.max:
        raise ValueError(f'{where}: "score" must be a finite number')
    return Hit(document, float(score))
