"""Run a planned stage on all ranks: make or fit its artifact in the store, under a lock."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from common.api_costs import api_costs, api_text
from common.costs import split
from common.errors import DataError
from common.files import write_json
from common.progress import stage_progress
from common.seeds import stable_hash
from common.terminal import say
from pipeline.components import build, with_default
from pipeline.events import events_folder, pack_events, prepare_events, show_events
from pipeline.interruption import remember
from pipeline.launcher import Ranks
from pipeline.loggers import log_headline, loggers_of
from pipeline.plan import Plan, PlannedStage
from pipeline.provenance import facts_of, provenance
from pipeline.reading import check_unchanged, look, replaced
from pipeline.store import finite


class _Begun(NamedTuple):
    """The origin of an artifact, which a killed run may have begun, and what this run has found its inputs to be."""

    origin: dict[str, Any]
    reads: dict[str, Any]


def run_stage(name: str, plan: Plan, ranks: Ranks) -> None:
    """Bring one stage to completion; does nothing where its artifact is complete.

    Raises:
        UserError: the stage cannot be finished; what it has written stays for the next run, with the error's line.
    """
    planned = plan.stages[name]
    with planned.artifact.lock() if ranks.rank == 0 else nullcontext():
        try:
            settings = plan.resolved(name)
            begun = ranks.broadcast_from_rank0(lambda: _opened(planned, plan, settings))
            if begun is None:
                return
            _finish(planned, plan, ranks, settings, begun)
        except Exception as error:
            planned.artifact.fail(error)
            raise
    ranks.broadcast_from_rank0(lambda: None)  # no rank reads the artifact before it is complete


def _finish(planned: PlannedStage, plan: Plan, ranks: Ranks, settings: Mapping[str, Any], begun: _Begun) -> None:
    start, computed = time.monotonic(), time.process_time()
    run = _make if planned.stage.module is None else _fit
    built: dict[str, Any] = {}
    work = f"{planned.artifact.folder.name} {begun.origin.get('began', '')}"
    with loggers_of(planned.name, plan) as loggers, stage_progress(planned.name, work):
        metrics, costs = split(run(planned, plan, ranks, settings, built, loggers))
        if planned.stage.module is None:
            log_headline(loggers, finite(metrics))
    facts = facts_of(built.values())
    if api := ranks.broadcast_from_rank0(lambda: api_costs(built.values(), work)):
        costs["api"] = api
    built.clear()
    _free_memory()
    costs["cpu_seconds"] = round(sum(ranks.gather(time.process_time() - computed)), 3)
    seconds = round(time.monotonic() - start, 3)
    result = {"seconds": seconds, "costs": costs, "metrics": finite(metrics), **facts}
    ranks.broadcast_from_rank0(lambda: _close(planned, plan, begun, result))


def _close(planned: PlannedStage, plan: Plan, begun: _Begun, result: Mapping[str, Any]) -> None:
    """Finish the artifact, if what it was made from is still what the run was planned with.

    Raises:
        DataError: an input has changed; no run resumes the work.
    """
    try:
        written = check_unchanged(planned.name, plan, begun.reads)
    except DataError:
        planned.artifact.give_up()
        raise
    _note_written(planned, begun.origin, written)
    if planned.stage.module is not None:
        pack_events(planned, plan)
    planned.artifact.close(_manifest(planned, plan, begun.origin, result))
    say(f"{planned.name}: finished in {result['seconds']:.1f} s{_headline(result['metrics'])}")
    for line in api_text(result["costs"].get("api", {})):
        say(f"{planned.name}: {line}")


def _free_memory() -> None:
    """Free a finished stage's models, on every device: reference cycles (Trainer and module, say) keep them alive."""
    gc.collect()
    torch = sys.modules.get("torch")  # a record stage may do without
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def announce(plan: Plan, question: str, reused: Mapping[str, str] | None = None) -> None:
    """Write `experiment.json` in the experiment's folder: what is about to run, for readers of an unfinished run.

    It holds the question that the experiment asks, what its file sets otherwise than its bases, the artifact folder of
    every stage, made or not, the display names of stages, and, after the work, how those that were `reused` had been
    made otherwise.
    """
    plan.inputs.save()
    remember(plan)
    output = Path(plan.experiment.output)
    places = {name: stage.artifact.folder.relative_to(output).as_posix() for name, stage in plan.stages.items()}
    entry = {"question": question, "changes": plan.settings()["changes"], "names": plan.experiment.names}
    entry |= {"stages": places, "reused": reused or {}}
    write_json(plan.folder / "experiment.json", entry)


def record(plan: Plan, question: str) -> None:
    """Write which artifacts this experiment is made of, and have TensorBoard show all of them under its name."""
    done = [name for name, stage in plan.stages.items() if stage.done]
    announce(plan, question, {name: made for name in done if (made := plan.made_otherwise(name))})
    artifacts = plan.artifacts()
    output = Path(plan.experiment.output)
    places = {name: folder.relative_to(output).as_posix() for name, folder in artifacts.items()}
    write_json(plan.folder / "stages.json", places)
    for name in artifacts:
        show_events(plan.stages[name], plan)


def _opened(planned: PlannedStage, plan: Plan, settings: Mapping[str, Any]) -> _Begun | None:
    """Prepare the artifact's folder and print what happens; None where the artifact is complete."""
    name, artifact = planned.name, planned.artifact
    if planned.done:
        artifact.check()
        unknown = "" if "files" in artifact.manifest() else " (its files are not checked: an earlier version made it)"
        say(f"{name}: done, {artifact.folder.as_posix()}{unknown}")
        if plan.made_otherwise(name):
            say(f"{name}: reused, though made by other code or from an earlier input (--force {name} runs it again)")
        return None
    reads = look(name, plan)
    if planned.forced:
        artifact.set_aside()
    if not artifact.begun and artifact.folder.exists():
        say(f"{name}: starts over, what is in {artifact.folder.as_posix()} is part of a copy or of other inputs")
    prepare_events(planned, plan)
    run = {"seed": plan.experiment.seed, "world_size": plan.experiment.world_size}
    now = {**reads, **provenance(settings), "began": datetime.now(UTC).isoformat()}
    origin = artifact.open({**settings, **run}, now)
    say(f"{name}: {planned.stage.kind} {artifact.folder.as_posix()}")
    runs = (origin, origin.get("resumed_by", origin))
    if any(run.get(key) != now[key] for run in runs for key in ("inputs", "source")):
        say(f"{name}: resumes what other code or inputs began (--force {name} starts over)")
        origin["resumed_by"] = {key: now[key] for key in ("commit", "source", "inputs")}
    _note_written(planned, origin, replaced(origin.get("stamps", {}), now["stamps"]))
    artifact.note(origin | {"stamps": now["stamps"]})
    return _Begun(origin, reads)


def _note_written(planned: PlannedStage, origin: dict[str, Any], written: list[str]) -> None:
    """Print and record the input files that were rewritten since the stage began although their content is the same."""
    if written:
        name, files = planned.name, ", ".join(written)
        say(f"{name}: {files}: written since the stage began, and perhaps not the same in between (--force {name})")
        origin["rewritten"] = sorted({*map(str, origin.get("rewritten", [])), *written})


def build_data(name: str, plan: Plan, built: dict[str, Any] | None = None) -> Any:
    """Build a stage's `data`; the artifacts that it references must be complete.

    `built` takes all components that it is made of.

    Raises:
        UserError: a constructor raised it about its arguments.
    """
    return build(
        plan.resolved(name)["data"],
        ("stages", name, "data"),
        plan.locations,
        {} if built is None else built,
    )


def _make(
    planned: PlannedStage,
    plan: Plan,
    ranks: Ranks,
    settings: Mapping[str, Any],
    built: dict[str, Any],
    loggers: list[Any],
) -> Mapping[str, float]:
    folder, seed = planned.artifact.folder, plan.experiment.seed
    stage = ranks.run_on_all(lambda: build_data(planned.name, plan, built))
    ranks.run_on_all(lambda: stage.make(folder, seed=seed, rank=ranks.rank, world_size=ranks.world_size))
    return ranks.broadcast_from_rank0(lambda: stage.merge(folder, seed=seed, world_size=ranks.world_size))


def _fit(
    planned: PlannedStage,
    plan: Plan,
    ranks: Ranks,
    settings: Mapping[str, Any],
    built: dict[str, Any],
    loggers: list[Any],
) -> Mapping[str, Any]:
    from lightning.pytorch import seed_everything

    from pipeline.checkpoints import check_checkpoints
    from pipeline.fitting import fit

    ranks.broadcast_from_rank0(lambda: check_checkpoints(planned.artifact.folder))
    # Randomly initialised weights are the same on all ranks and in every run.
    seed_everything(stable_hash(plan.experiment.seed, planned.name) % 2**32, verbose=False)
    key = ("stages", planned.name, "data")
    data = with_default(settings["data"], "seed", plan.experiment.seed, key, plan.locations)
    settings = {**settings, "data": data}
    pieces = {
        piece: build(settings[piece], ("stages", planned.name, piece), plan.locations, built)
        for piece in ("module", "data", "callbacks", "trainer")
    }
    return fit(
        pieces["module"],
        pieces["data"],
        list(pieces["callbacks"].values()),
        trainer=planned.stage.trainer,
        strategy=pieces["trainer"]["strategy"],
        experiment=plan.experiment,
        folder=planned.artifact.folder,
        events=events_folder(planned, plan),
        loggers=loggers,
    )


def _manifest(
    planned: PlannedStage, plan: Plan, origin: Mapping[str, Any], result: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "stage": planned.name,
        "kind": planned.stage.kind,
        "fingerprint": planned.fingerprint,
        "seed": plan.experiment.seed,
        "world_size": plan.experiment.world_size,
        **{key: value for key, value in origin.items() if key != "stamps"},
        "finished": datetime.now(UTC).isoformat(),
        **result,
    }


def _headline(metrics: Mapping[str, float | None]) -> str:
    shown = [f"{name} {value:.4g}" for name, value in metrics.items() if value is not None]
    return "".join(f", {text}" for text in shown[:4])
