"""Loggers beside TensorBoard's, the `loggers` of an experiment file: Lightning's own, each with one run a stage.

A fit logs all its tags to them, a stage of records its headline metrics, and the run `summary` the results of every
evaluation. No stage's result depends on them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from common.errors import ConfigError, UserError
from common.plain_text import one_line
from pipeline.components import build, check, is_component, with_default
from pipeline.plan import Plan

SUMMARY = "summary"


def check_loggers(plan: Plan) -> None:
    """Build every logger once, before any work.

    Raises:
        ConfigError: a library is missing, or a setting is wrong; names the key, the file and the line.
    """
    _built(SUMMARY, plan)


@contextmanager
def loggers_of(run: str, plan: Plan) -> Iterator[list[Any]]:
    """The loggers of a run: a stage, or the summary. They are closed at the end, so that the next run is another one.

    Raises:
        UserError: one cannot begin its run, for lack of a key or of a network, say.
    """
    loggers, status = _built(run, plan), "failed"
    try:
        for name, logger in loggers.items():
            try:
                logger.log_hyperparams(plan.settings())
            except Exception as error:  # of any service
                raise UserError(f"{plan.locations.at(('loggers', name))}: {one_line(str(error))}") from error
        yield [*loggers.values()]
        status = "success"
    finally:
        for logger in loggers.values():
            logger.finalize(status)
            if callable(finish := getattr(logger.experiment, "finish", None)):
                finish()  # W&B would log the next stage into the same run


def log_summary(plan: Plan) -> None:
    """Log the final table's figures, `<stage>/<dataset>/<split>/<measure>`, and all of it where a logger has tables."""
    if not plan.experiment.loggers:
        return
    rows = json.loads((plan.folder / "results.json").read_text(encoding="utf-8"))["rows"]
    figures = {
        f"{row['stage']}/{row['dataset']}/{row['split']}/{name}": row[name] for row in rows for name in _numbers(row)
    }
    with loggers_of(SUMMARY, plan) as loggers:
        for logger in loggers:
            logger.log_metrics(figures, step=0)
            if rows and hasattr(logger, "log_table"):
                logger.log_table("results", columns=[*rows[0]], data=[[*row.values()] for row in rows], step=0)


def log_headline(loggers: list[Any], metrics: Mapping[str, float | None]) -> None:
    """Log the headline metrics of a stage of records."""
    for logger in loggers:
        logger.log_metrics({name: value for name, value in metrics.items() if value is not None}, step=0)


def _numbers(row: Mapping[str, Any]) -> list[str]:
    return [name for name, value in row.items() if isinstance(value, int | float) and name != "seed"]


def _built(run: str, plan: Plan) -> dict[str, Any]:
    """The loggers by name; what a file leaves out names the run, and lies in the experiment's folder."""
    name = f"{plan.experiment.experiment}/seed{plan.experiment.seed}/{run}"
    made = plan.stages[run].fingerprint if run in plan.stages else ""
    usual = {
        "save_dir": (plan.folder / "loggers").as_posix(),
        "name": name,
        "run_name": name,
        "id": hashlib.sha256(f"{name} {made}".encode()).hexdigest()[:12],  # a resumed stage continues its run
    }
    loggers: dict[str, Any] = {}
    for key, component in plan.experiment.loggers.items():
        at = ("loggers", key)
        for argument, value in usual.items() if is_component(component) else ():
            component = with_default(component, argument, value, at, plan.locations)
        check(component, at, plan.locations, set(), whole=True)
        try:
            loggers[key] = build(component, at, plan.locations, {})
        except UserError:
            raise
        except Exception as error:  # of any library
            raise ConfigError(f"{plan.locations.at(at)}: {one_line(str(error))}") from error
    return loggers
