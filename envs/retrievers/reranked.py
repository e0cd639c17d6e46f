"""Hits of a retriever in the order of a cross-encoder, which reads query and passage together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from transformers import AutoModelForSequenceClassification

from common.costs import counted, read_by
from common.errors import ConfigError, RetrievalError
from common.hashes import short_digest
from common.plain_text import encodable
from common.precision import Dtype
from envs.interfaces import Retriever
from envs.retrievers.dense import passage_text
from envs.retrievers.hub_models import batches_by_length, content_of, load_pretrained
from envs.types import Hit


class Reranked:
    """The best of a retriever's first `depth` hits by the scores of a cross-encoder, such as MS MARCO MiniLM or BGE's.

    `counts` compares the order before with that after: `rerank/queries`; `rerank/new_first`, of them with another first
    hit; `rerank/new_hits`, hits that were below the first `k`; and the tokens read, a cost.

    Args:
        retriever: finds the passages to order.
        model: folder or hub id of a model for sequence classification with one score, or with two classes of which the
            second is the relevant one.
        depth: hits to order, at least those asked for.
        max_tokens: of query and passage together; the longer of the two is cut.
        batch_size, device, dtype, revision: as of `Encoder`.

    Raises:
        ConfigError: there is no such model, it has other scores, or a setting is out of range.
    """

    def __init__(
        self,
        retriever: Retriever,
        model: str,
        *,
        depth: int = 50,
        max_tokens: int = 512,
        batch_size: int = 32,
        device: str = "auto",
        dtype: Dtype = "float32",
        revision: str | None = None,
    ) -> None:
        if depth < 1:
            raise ConfigError(f"reranker {model}: depth {depth} must be at least 1")
        self._tokenizer, self._model = load_pretrained(
            AutoModelForSequenceClassification,
            model,
            "reranker",
            max_tokens=max_tokens,
            batch_size=batch_size,
            device=device,
            dtype=dtype,
            revision=revision,
        )
        if (labels := self._model.config.num_labels) not in (1, 2):
            raise ConfigError(f"reranker {model}: {labels} classes; give a cross-encoder with one score or two classes")
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
            self._model.config.pad_token_id = self._tokenizer.pad_token_id
        self._retriever, self._depth = retriever, depth
        self._max_tokens, self._batch_size = max_tokens, batch_size
        self._settings = [content_of(model, self._model, revision), depth, max_tokens, dtype]
        self._own: Counter[str] = Counter()

    @property
    def identity(self) -> str:
        """A hash of retriever, model and settings; there is none where the retriever has none."""
        behind = getattr(self._retriever, "identity")  # noqa: B009 (not in the protocol)
        return f"reranked-{short_digest([behind, *self._settings])}"

    @property
    def counts(self) -> Counter[str]:
        """Its own counts and the retriever's."""
        return self._own + counted(self._retriever)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits a query, best first, with the scores of the cross-encoder; equal ones as they were found.

        Raises:
            RetrievalError: the retriever failed, or the model gives numbers that are not finite.
        """
        found = self._retriever.search(queries, max(k, self._depth))
        pairs = [(query, hit) for query, hits in zip(queries, found, strict=True) for hit in hits]
        scores = iter(self._scores([(query, passage_text(hit.document)) for query, hit in pairs]))
        results = []
        for hits in found:
            scored = [Hit(hit.document, next(scores)) for hit in hits]
            ordered = sorted(scored, key=lambda hit: -(hit.score or 0.0))[:k]
            self._count([hit.document.id for hit in hits], [hit.document.id for hit in ordered], k)
            results.append(ordered)
        return results

    def _count(self, before: list[str], after: list[str], k: int) -> None:
        self._own["rerank/queries"] += 1
        self._own["rerank/new_first"] += before[:1] != after[:1]
        self._own["rerank/new_hits"] += len(set(after) - set(before[:k]))

    @torch.inference_mode()
    def _scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The score of each pair of query and passage."""
        if not pairs:
            return []
        queries, passages = (list(map(encodable, texts)) for texts in zip(*pairs, strict=True))
        rows = self._tokenizer(queries, passages, truncation=True, max_length=self._max_tokens)
        lengths = [len(ids) for ids in rows["input_ids"]]
        self._own[read_by("reranker")] += sum(lengths)
        scores_N = torch.empty(len(pairs))
        for batch in batches_by_length(lengths, self._batch_size):
            padded = self._tokenizer.pad({name: [rows[name][i] for i in batch] for name in rows}, return_tensors="pt")
            logits_NC = self._model(**padded.to(self._model.device)).logits.float().cpu()
            scores_N[batch] = logits_NC[:, -1] - (logits_NC[:, 0] if logits_NC.shape[1] == 2 else 0.0)
        if not scores_N.isfinite().all():
            raise RetrievalError("the reranker gives a score that is not finite: use dtype float32 or another model")
        return scores_N.tolist()
