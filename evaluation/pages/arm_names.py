"""Display names of a page's arms, and its legend: what columns mean, and the arm and command behind each name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

from evaluation.pages.arms import measured
from evaluation.steps.step_auc import ALL, LOGP, MACRO, POOLED, POSITION, title
from evaluation.tables import MEANINGS, METRICS, UNITS, table

_RANKING = {
    "judged steps": "distinct steps that a judge was shown, mean over seeds",
    title(MACRO): "unweighted mean over the kinds that have true and untrue steps",
    title(POOLED): "all steps together, whatever their kind",
    "score": "AUC of the reward model's score",
    LOGP: "AUC of the policy's mean log-probability of the step",
    POSITION: "AUC of the place of the step: earlier ones are true more often",
    ALL: "AUC of all training-free baselines together, by logistic regression",
    "agrees at 0": "share of steps where a score above 0 agrees with the truth",
}

Row = Mapping[str, Any]
_Id = TypeVar("_Id")


def distinct(names: Mapping[_Id, str], ids: Collection[str]) -> dict[_Id, str]:
    """The names that only one arm has and that are no id: any other arm is called by its id."""
    count = Counter(names.values())
    return {arm: name for arm, name in names.items() if count[name] == 1 and name not in ids}


def named(results: Row) -> Row:
    """Results whose rows have the arm's display name as `arm` and its id as `id`; rankings have a `name`."""
    parts = {part: results[part] for part in ("arms", "rows", "stopping", "curves", "types") if part in results}
    rankings = results.get("rankings", ())
    ids = {row["arm"] for rows in parts.values() for row in rows if "arm" in row}
    ids |= {row["experiment"] for row in rankings}
    names = distinct(results.get("names", {}), ids)

    def shown(row: Row) -> Row:
        changed = {key: names.get(row[key], row[key]) for key in ("arm", "warm_up") if key in row}
        return {**row, **changed, "id": row["arm"]} if "arm" in row else row

    changed = {part: [*map(shown, rows)] for part, rows in parts.items()}
    ranked = [{**row, "name": names.get(row["experiment"], row["experiment"])} for row in rankings]
    baseline = results.get("baseline")
    return {**results, **changed, "rankings": ranked, "baseline": names.get(baseline or "", baseline)}


def legend_parts(results: Row) -> Iterator[str]:
    """The legend of named results: the columns that they have, then the names that are not the arms' ids."""
    arms = [arm for place in measured(results).values() for arm in place.values()]
    shown = [
        METRICS[metric]
        for metric in METRICS
        if any(arm.has(metric) for arm in arms) or any(row.get(metric) is not None for row in results["stopping"])
    ]
    columns = {column: MEANINGS[column] for column in ("n", *shown)} if shown else {}
    columns |= _RANKING if results["rankings"] else {}
    if columns:
        yield UNITS
        yield table(["column", "meaning"], [*map(list, columns.items())], labels=2)
    behind = {row["arm"]: [row["id"], f"{row['experiment']}:{row['stage']}"] for row in results["arms"]}
    behind |= {row["name"]: [row["experiment"], f"{row['experiment']}:{row['stage']}"] for row in results["rankings"]}
    if rows := [[name, *(f"`{text}`" for text in place)] for name, place in behind.items() if name != place[0]]:
        yield "Comments, JSON and folders call an arm by its id, commands by its run, `<experiment>:<stage>`."
        yield table(["name", "id", "run"], rows, labels=3)
