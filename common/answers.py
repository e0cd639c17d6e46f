"""Answer metrics: normalisation, and exact match, F1 and cover match over aliases.

They follow the official HotpotQA evaluation (Yang et al. 2018, hotpot_evaluate_v1.py, itself after SQuAD's), with one
difference: an answer that normalises to nothing ("The", "---") is never matched. Officially an empty prediction is
right there. Texts are compared in Unicode NFC, so a combining accent equals the precomposed letter; for ASCII text,
results are the published ones. Other spellings stay different, as published: "ß" and "ss", half-width
and full-width forms, "10²" and "102".
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

ABSTENTION = "I do not know"  # what an answer says that gives none, and the accepted answer of a question without one
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_MARKS = r"\u0300-\u036f"  # accents that no letter takes in: part of their word, which \b does not know
_ARTICLE = re.compile(rf"(?<![\w{_MARKS}])(a|an|the)(?![\w{_MARKS}])")
_CLOSED = frozenset({"yes", "no", "noanswer"})


def normalize_answer(text: str) -> str:
    """Lowercase, compose (NFC), delete ASCII punctuation and the words a, an, the, collapse whitespace; in this order.

    Source: the official HotpotQA evaluation (Yang et al. 2018), itself after SQuAD's.
    """
    composed = unicodedata.normalize("NFC", text.lower())
    return " ".join(_ARTICLE.sub(" ", composed.translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answers: str | Sequence[str]) -> float:
    """1 if the normalised prediction equals any normalised answer, else 0."""
    predicted = normalize_answer(prediction)
    return float(predicted in _normalized(answers))


def abstains(prediction: str) -> bool:
    """Whether an answer says that it is not known: "I do not know" or "I don't know", normalised."""
    return normalize_answer(prediction) in (normalize_answer(ABSTENTION), "i dont know")


def f1_score(prediction: str, answers: str | Sequence[str]) -> float:
    """Bag-of-tokens F1, the highest over the answers, in [0, 1].

    Where the prediction or an answer is yes, no or noanswer and they differ, that answer scores 0.
    """
    predicted = normalize_answer(prediction)
    return max((_token_f1(predicted, answer) for answer in _normalized(answers)), default=0.0)


def cover_match(prediction: str, answers: str | Sequence[str]) -> float:
    """1 if any normalised answer is a substring, by characters, of the normalised prediction, else 0.

    HiPRAG's measure (there with another normaliser); it forgives long predictions and counts "no" inside "nobody".
    """
    predicted = normalize_answer(prediction)
    return float(any(answer in predicted for answer in _normalized(answers)))


def _normalized(answers: str | Sequence[str]) -> list[str]:
    """The normalised answers, without empty ones."""
    aliases = [answers] if isinstance(answers, str) else answers
    return [answer for answer in map(normalize_answer, aliases) if answer]


def _token_f1(predicted: str, answer: str) -> float:
    if predicted != answer and (predicted in _CLOSED or answer in _CLOSED):
        return 0.0
    predicted_tokens, answer_tokens = predicted.split(), answer.split()
    shared = (Counter(predicted_tokens) & Counter(answer_tokens)).total()
    return 2 * shared / (len(predicted_tokens) + len(answer_tokens))
