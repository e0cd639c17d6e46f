"""The scores of an answer by their public names: exact match, F1 and cover match over aliases (`common.answers`)."""

from __future__ import annotations

from common.answers import cover_match as cover_match
from common.answers import exact_match as exact_match
from common.answers import f1_score as f1_score
from common.answers import normalize_answer as normalize_answer
