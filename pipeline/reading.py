"""Inputs of a stage, checked when it begins and when it ends: its result is that of its fingerprint, or none."""

from __future__ import annotations

from typing import Any

from common.errors import DataError
from pipeline.fingerprints import settings_of
from pipeline.locations import leaves
from pipeline.plan import Plan


def look(name: str, plan: Plan, *, ended: bool = False) -> dict[str, Any]:
    """Present state of what a stage reads; after it has `ended`, files that were not there before are its own.

    `inputs` are artifacts, with the hashes of their manifests; `stamps` differ also where an input file was replaced
    and put back.

    Raises:
        DataError: an input has changed since the run was planned, or an artifact is damaged; says which and what to do.
    """
    planned = plan.stages[name]
    for need in planned.needs:
        for damage in plan.stages[need].artifact.damages():
            raise DataError(damage)
    settings, inputs = settings_of(planned.stage), plan.inputs.again()
    before, now = dict(leaves(planned.pinned)), dict(leaves(inputs.pinned(settings)))
    for key, text in leaves(settings):
        appeared = before[key] == text  # it was no input when the run was planned
        if now[key] != before[key] and not (appeared and ended):
            where = plan.locations.at(("stages", name, *key))
            raise DataError(f"{text} at {where} has changed since this run was planned: run again, and it is read anew")
    inputs.save()
    return {"inputs": plan.read(name), "stamps": inputs.stamps(settings)}


def check_unchanged(name: str, plan: Plan, begun: dict[str, Any]) -> list[str]:
    """Check at the end of a stage that it has read what it was to read; `begun` is the look at its begin.

    Returns the input files that were replaced meanwhile though their content is the same now.

    Raises:
        DataError: as `look`, or an artifact was made again.
    """
    now = look(name, plan, ended=True)
    for need, artifact in now["inputs"].items():
        if artifact != begun["inputs"].get(need):
            folder = plan.stages[need].artifact.folder
            raise DataError(f"{folder} was made again while {name} read it: run again, and it is read anew")
    return replaced(begun["stamps"], now["stamps"])


def replaced(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """The input files whose stamps differ."""
    return [text for text in now if before.get(text, now[text]) != now[text]]
