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
from common.files import atomic_write, temporary
from pipeline.plan import Plan, PlannedStage

_OWNER, _ARCHIVE = "artifact", "events.tar"
_END = bytes(2 * tarfile.BLOCKSIZE)  # what a whole archive ends with


def events_folder(planned: PlannedStage, plan: Plan) -> Path:
    """The folder of a stage's run."""
    return plan.folder / planned.name


def prepare_events(planned: PlannedStage, plan: Plan) -> None:
    """Prepare a stage's TensorBoard run: a resumed fit appends to its events, any other stage starts without.

    Where an artifact is made from the start, its earlier events are removed in all experiments.
    """
    if not planned.artifact.begun:
        for run in Path(plan.experiment.output).glob(f"*/seed*/{planned.name}"):
            if _owner(run) == planned.artifact.folder.name:
                shutil.rmtree(run, ignore_errors=True)  # another process may remove it too
    run = events_folder(planned, plan)
    if planned.stage.module is not None and _owner(run) != planned.artifact.folder.name:
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir(parents=True)
        (run / _OWNER).write_text(planned.artifact.folder.name)


def pack_events(planned: PlannedStage, plan: Plan) -> None:
    """Keep a fit's events in its artifact."""
    with atomic_write(planned.artifact.folder / _ARCHIVE, "wb") as f, tarfile.open(fileobj=f, mode="w") as archive:
        archive.add(events_folder(planned, plan), arcname=".")


def show_events(planned: PlannedStage, plan: Plan) -> None:
    """Give a finished stage its run: the events of its fit, or else its headline metrics as scalars.

    Raises:
        DataError: the archive of the events is damaged.
    """
    run, artifact = events_folder(planned, plan), planned.artifact
    if _owner(run) == artifact.folder.name:
        return
    shutil.rmtree(run, ignore_errors=True)
    metrics = {name: value for name, value in artifact.manifest()["metrics"].items() if value is not None}
    archive = artifact.folder / _ARCHIVE
    if not archive.exists() and not metrics:
        return
    with temporary(run.with_name(f".{run.name}.tmp")) as half:
        shutil.rmtree(half, ignore_errors=True)
        if archive.exists():
            _unpack(archive, half)
        else:
            _write_scalars(half, metrics)
        (half / _OWNER).write_text(artifact.folder.name)
        half.rename(run)


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with archive.open("rb") as f:
            f.seek(max(0, archive.stat().st_size - len(_END)))
            if f.read() != _END:  # tarfile takes an archive that is cut between two files for a whole one
                raise tarfile.ReadError("cut off")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise DataError(f"{archive} is damaged: remove {archive.parent} to make it again") from error


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
