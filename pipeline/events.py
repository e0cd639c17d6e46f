"""TensorBoard's runs: `<output>/<experiment>/seed<k>/<stage>` holds the events of one artifact and of no other.

The file `artifact` in a run's folder names it. Where a stage has got another artifact, by other settings, the older
events are replaced: TensorBoard would draw both as one curve. A finished fit packs its events into its own artifact, as
`events.tar`, which TensorBoard does not read; every experiment that shares the fit unpacks them from there.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from common.errors import DataError
from pipeline.plan import Plan, PlannedStage

_OWNER, _ARCHIVE = "artifact", "events"


def events_folder(planned: PlannedStage, plan: Plan) -> Path:
    """The folder of a stage's run."""
    return plan.folder / planned.name


def prepare_events(planned: PlannedStage, plan: Plan) -> None:
    """Get a stage's run ready for its work: a resumed fit adds to its events, all others start without any.

    Where an artifact is made from the start, events of an earlier making go in all experiments.
    """
    if not planned.artifact.begun:
        for run in Path(plan.experiment.output).glob(f"*/seed*/{planned.name}"):
            if _owner(run) == planned.artifact.folder.name:
                shutil.rmtree(run)
    run = events_folder(planned, plan)
    if planned.stage.module is not None and _owner(run) != planned.artifact.folder.name:
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir(parents=True)
        (run / _OWNER).write_text(planned.artifact.folder.name)


def pack_events(planned: PlannedStage, plan: Plan) -> None:
    """Keep a fit's events in its artifact."""
    shutil.make_archive(str(planned.artifact.folder / _ARCHIVE), "tar", events_folder(planned, plan))


def show_events(planned: PlannedStage, plan: Plan) -> None:
    """Give a finished stage its run: the events of its fit, or else its headline metrics as scalars."""
    run, artifact = events_folder(planned, plan), planned.artifact
    if _owner(run) == artifact.folder.name:
        return
    half = run.with_name(f".{run.name}.tmp")
    for old in (run, half):
        shutil.rmtree(old, ignore_errors=True)
    metrics = {name: value for name, value in artifact.manifest()["metrics"].items() if value is not None}
    archive = artifact.folder / f"{_ARCHIVE}.tar"
    if archive.exists():
        try:
            shutil.unpack_archive(archive, half, filter="data")
        except (shutil.ReadError, tarfile.TarError, EOFError) as error:
            raise DataError(f"{archive} is damaged: remove {artifact.folder} to make it again") from error
    elif metrics:
        _write_scalars(half, metrics)
    else:
        return
    (half / _OWNER).write_text(artifact.folder.name)
    half.rename(run)


def _write_scalars(folder: Path, metrics: dict[str, float]) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for name, value in metrics.items():
            writer.add_scalar(name, value)


def _owner(run: Path) -> str | None:
    """The artifact whose events are in a folder."""
    try:
        return (run / _OWNER).read_text(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
