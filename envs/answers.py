"""When two answers are the same: the one normaliser of the suite."""

from __future__ import annotations

import re
import string

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Lowercase, delete ASCII punctuation, delete the words a, an, the, collapse whitespace; in this order.

    Source: the official HotpotQA evaluation (Yang et al. 2018), itself after SQuAD's.
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())
