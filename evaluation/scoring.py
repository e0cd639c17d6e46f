"""Rows of finished episodes, and means over rows. Pure: no model, no files, no clock."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from common.answers import abstains
from envs.interfaces import Judgement, Oracle
from envs.types import Episode, Gold, Step
from evaluation.retrieval_recall import Match, evidence
from evaluation.statistics import bootstrap_interval, bootstrap_ratio
from modules.metrics import cover_match, exact_match, f1_score

Row = dict[str, Any]

MEASURES = (
    *("em", "f1", "cover", "flawed", "unresolved", "searches"),
    *("valid_steps", "valid_episodes", "true_steps", "recall", "premature", "late"),
)
# Measures of evaluations with a judge of answers, or with policies that may abstain: rows of others have none of them.
OPTIONAL = ("judged", "coverage", "selective_em")
# Rates over all steps of an evaluation, over-search and under-search (HiPRAG): what is counted, of how many.
RATES = {
    "osr": ("needless_searches", "judged_searches"),
    "usr": ("unfounded_statements", "judged_statements"),
}


def score(
    episode: Episode,
    *,
    valid: bool,
    retrieves: bool = True,
    match: Match = "id",
    oracle: Oracle | None = None,
    may_abstain: bool = False,
) -> Row:
    """One row of a predictions file. Measures that do not apply are None, all of them after an error.

    - `searches`: queries; `recall`, `premature`, `late`: what they found and whether it stopped then, see
      `evaluation.retrieval_recall`. All None without a retriever.
    - `valid_steps`: share of sampled steps in format; `valid_episodes`: 1 if the whole episode is.
    - `true_steps`: share of sampled steps that the oracle calls true, of those that it can judge.
    - `judged_searches`: searches of which the oracle can tell whether they were needless; `needless_searches`: those
      that were. `judged_statements`, `unfounded_statements`: statements without a search, and those that are untrue.
    - `flawed`, `unresolved`: 1 for a right answer with an untrue step, or one that the steps do not establish; None
      without an oracle, `flawed` also where it can judge no step.
    - `gold`: the hops and documents that the dataset knows; None without any.
    - `coverage`: 1 if it did not abstain; `selective_em`: exact match of such an episode, None where it abstained. Only
      where episodes may abstain.
    - `steps`: of every step what it is, what was written, which documents it found and kept; `logp`, the mean
      log-probability of its sampled tokens; and, where known, its `agent` (if several act), whether it is true
      (`truth`), whether its search was `needless` and its statement `unfounded`.

    Args:
        episode: a finished episode.
        valid: whether the whole episode is in format.
        retrieves: whether there is a retriever.
        match: how retrieved documents are compared with gold ones.
        oracle: judges steps, where truth is known.
        may_abstain: whether "I do not know" is an answer.
    """
    question, gold = episode.question, episode.question.gold or Gold()
    row: Row = {
        "id": question.id,
        "question": question.text,
        "answers": list(question.answers),
        "prediction": episode.answer,
        "status": episode.status,
        "hops": gold.hops,
        "type": gold.type,
        "gold": _gold(gold),
        "turns": sum(turn.finish != "scripted" for turn in episode.turns),
        "tokens": sum(len(turn.action_ids) for turn in episode.turns),
        "truncations": dict(sorted(episode.truncations.items())),
        "error": episode.error,
        **dict.fromkeys(MEASURES),
        **dict.fromkeys(count for counts in RATES.values() for count in counts),
    }
    judgement: Judgement | None = None
    if episode.status != "error":
        sampled = [step for step in episode.steps if step.spans]
        row |= {
            "em": exact_match(episode.answer, question.answers),
            "f1": f1_score(episode.answer, question.answers),
            "cover": cover_match(episode.answer, question.answers),
            "searches": sum(turn.action.kind == "query" for turn in episode.turns) if retrieves else None,
            "valid_steps": _mean([float(step.valid) for step in sampled]),
            "valid_episodes": float(valid),
            **(evidence(episode, gold, match) if retrieves else {}),
        }
        if may_abstain:
            answered = not abstains(episode.answer)
            row |= {"coverage": float(answered), "selective_em": row["em"] if answered else None}
        if oracle is not None:
            judgement = oracle.judge(episode)
            verdicts: Sequence[bool | None] = judgement.valid
            unknown = bool(verdicts) and all(verdict is None for verdict in verdicts)
            row["flawed"] = None if unknown else _float(judgement.flawed)
            row["unresolved"] = _float(judgement.unresolved)
            judged = [v for v, step in zip(verdicts, episode.steps, strict=True) if step.spans and v is not None]
            row["true_steps"] = _mean(judged)
            for rate, truth in (("osr", judgement.needless), ("usr", judgement.unfounded)):
                known = [verdict for verdict in truth if verdict is not None]
                row |= dict(zip(RATES[rate], (sum(known), len(known)), strict=True))
    row["steps"] = [_step(episode, place, step, judgement) for place, step in enumerate(episode.steps)]
    return row


def _gold(gold: Gold) -> Row | None:
    steps = [{"question": hop.question, "answer": hop.answer, "documents": list(hop.documents)} for hop in gold.steps]
    known = {"steps": steps, "documents": list(gold.documents), "titles": list(gold.titles)}
    return known if any(known.values()) else None


def _step(episode: Episode, place: int, step: Step, judgement: Judgement | None) -> Row:
    agents = {turn.agent for turn in episode.turns if turn.finish != "scripted"}
    logps = [logp for turn, start, end in step.spans for logp in episode.turns[turn].action_logps[start:end]]
    row: Row = {
        "kind": step.kind,
        "text": step.text,
        "valid": step.valid,
        "hits": [hit.document.id for hit in step.hits],
        "said": step.said,
        "logp": round(math.fsum(logps) / len(logps), 4) if logps else None,
    }
    row |= {} if step.kept is None else {"kept": list(step.kept)}
    row |= {"agent": episode.turns[step.spans[0][0]].agent} if step.spans and len(agents) > 1 else {}
    if judgement is not None:
        verdicts = {"truth": judgement.valid, "needless": judgement.needless, "unfounded": judgement.unfounded}
        row |= {name: of[place] for name, of in verdicts.items() if place < len(of) and of[place] is not None}
    return row


def _float(value: bool | None) -> float | None:
    return None if value is None else float(value)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def summarise(rows: Sequence[Row], *, seed: int) -> Row:
    """Means of all measures with 95 % bootstrap intervals over the questions that were scored; `n` is their number.

    Rates are of all judged steps together, with intervals over questions too.
    """
    result: Row = {"n": sum(row["em"] is not None for row in rows)}
    for measure in (*MEASURES, *(name for name in OPTIONAL if any(name in row for row in rows))):
        values = [float(row[measure]) for row in rows if row.get(measure) is not None]
        low, high = bootstrap_interval(values, seed=seed) if values else (None, None)
        result |= {measure: _mean(values), f"{measure}_low": _known(low), f"{measure}_high": _known(high)}
    for rate, counts in RATES.items():
        wrong, judged = ([float(row[count] or 0) for row in rows] for count in counts)
        value = math.fsum(wrong) / math.fsum(judged) if any(judged) else None
        low, high = bootstrap_ratio(wrong, judged, seed=seed) if any(judged) else (None, None)
        result |= {rate: value, f"{rate}_low": _known(low), f"{rate}_high": _known(high)}
    return result


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def summarise_groups(rows: Sequence[Row], *, seed: int) -> list[Row]:
    """The same by number of hops and by type, where a dataset knows more than one."""
    groups: list[Row] = []
    for key in ("hops", "type"):
        values = sorted({row[key] for row in rows if row[key] is not None})
        if len(values) > 1:
            groups += [
                {"group": f"{key}={value}"} | summarise([row for row in rows if row[key] == value], seed=seed)
                for value in values
            ]
    return groups


def endings(rows: Sequence[Row]) -> dict[str, Mapping[str, float]]:
    """Counts by name of how episodes ended, what was truncated and which errors there were; mean turns and tokens."""
    truncations: Counter[str] = Counter()
    for row in rows:
        truncations.update(row["truncations"])
    return {
        "stop": dict(sorted(Counter(row["status"] for row in rows).items())),
        "truncations": dict(sorted(truncations.items())),
        "errors": dict(sorted(Counter(row["error"] for row in rows if row["error"]).items())),
        "mean": {key: round(math.fsum(row[key] for row in rows) / len(rows), 2) for key in ("turns", "tokens")},
    }
