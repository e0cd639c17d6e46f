"""Judges SIRAG's actions by the passages that the question takes: the world's truth, or a dataset's gold passages."""

from __future__ import annotations

from collections.abc import Sequence

from common.document_names import id_key
from common.errors import DataError
from envs.types import Hit
from systems.sirag.protocol import KNOWLEDGE_SELECTOR
from systems.sirag.state import Choice


class GoldEvidence:
    """An action is as reasonable as what it does for the missing evidence. A `systems.sirag.reward:ChoiceJudge`.

    - To stop is worth 1 where every gold passage is in the pool, else 0.
    - To retrieve is worth 1 where its query found a gold passage that is not in the pool, else 0.
    - To select is worth the passages kept and gold, over those kept or gold: 1 if just the gold ones among those shown
      are kept, none where none is gold.

    Raises:
        DataError: on judging, a question has no gold passages.
    """

    def score(self, choices: Sequence[Choice]) -> list[float | None]:
        return [self._score(choice) for choice in choices]

    def _score(self, choice: Choice) -> float:
        gold = set(map(id_key, choice.question.gold.documents)) if choice.question.gold else set[str]()
        if not gold:
            raise DataError(f"question {choice.question.id} has no gold passages to judge by: use another judge")
        missing = gold - _ids(choice.evidence)
        if choice.agent == KNOWLEDGE_SELECTOR:
            kept, right = _ids(choice.kept), gold & _ids(choice.shown)
            return len(kept & right) / len(kept | right) if kept | right else 1.0
        if choice.action.kind == "query":
            return float(bool(missing & _ids(choice.hits)))
        return float(not missing)


def _ids(hits: Sequence[Hit]) -> set[str]:
    return {id_key(hit.document.id) for hit in hits}
