"""The stages of an experiment in dependency order, each with the artifact that is, or will be, its result."""

from __future__ import annotations

import dataclasses
import graphlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import ConfigError
from pipeline.components import check_stage
from pipeline.fingerprints import Inputs, fingerprint, settings_of, stage_names, with_folders
from pipeline.loader import Configuration
from pipeline.locations import Key, Locations, dotted, leaves, suggest
from pipeline.provenance import source_hash
from pipeline.schema import Experiment, Stage
from pipeline.skeletons import read_or_imported
from pipeline.store import Artifact, verify
from pipeline.world_size import check_ranks


@dataclass(frozen=True)
class PlannedStage:
    """A stage, the stages it references, and its artifact; `forced`: run it even if the artifact is complete.

    `pinned` are its settings with the content of its inputs, as the plan was made from them.
    """

    name: str
    stage: Stage
    needs: tuple[str, ...]
    pinned: dict[str, Any]
    fingerprint: str
    artifact: Artifact
    forced: bool

    @property
    def done(self) -> bool:
        """Whether there is nothing to do."""
        return self.artifact.complete and not self.forced


@dataclass(frozen=True)
class Plan:
    """All stages of an experiment in dependency order; `chosen` are those of this run."""

    experiment: Experiment
    locations: Locations
    written: dict[str, Any]
    changes: dict[Key, Any]
    inputs: Inputs
    stages: dict[str, PlannedStage]
    chosen: tuple[str, ...]
    _otherwise: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, configuration: Configuration, *, only: Collection[str] = (), force: Collection[str] = ()) -> Plan:
        """Order the stages and find their artifacts; nothing is imported, built or written.

        `only` chooses stages and what they depend on (default: all); `force` names finished stages to run again.

        Raises:
            ConfigError: a stage is unknown, or stages depend on each other in a cycle.
        """
        experiment, locations = configuration.experiment, configuration.locations
        needs = {name: _needs(name, experiment, locations) for name in experiment.stages}
        order = _order(needs, locations)
        for name in [*only, *force]:
            if name not in needs:
                raise ConfigError(f"unknown stage '{name}' on the command line{suggest(name, needs)}")
        selected = set(only or order)
        for name in reversed(order):
            selected |= set(needs[name]) if name in selected else set()
        for name in force:
            if name not in selected:
                raise ConfigError(f"cannot force '{name}': no chosen stage needs it")
        inputs = Inputs(Path(experiment.output))
        hashes: dict[str, str] = {}
        stages: dict[str, PlannedStage] = {}
        for name in order:
            stage = experiment.stages[name]
            pinned = inputs.pinned(settings_of(stage))
            hashes[name] = fingerprint(pinned, experiment, hashes)
            artifact = Artifact(Path(experiment.output) / "store" / f"{name}-{hashes[name][:12]}")
            stages[name] = PlannedStage(name, stage, needs[name], pinned, hashes[name], artifact, name in force)
        chosen = tuple(name for name in order if name in selected)
        return cls(experiment, locations, configuration.written, configuration.changes, inputs, stages, chosen)

    def checked(self, *, contents: bool = False, imported: bool = True) -> Plan:
        """Check the components and inputs of every stage that would run, building nothing; returns this plan.

        Of artifacts that exist, chosen or not, the manifests and the sizes of files are checked; of the chosen ones
        that are finished also the `contents` of all files, if asked for. Components that are not to be `imported` are
        read in their source, which does not find a module that fails when it is imported.

        Raises:
            ConfigError: a component or an input is wrong; names the key, the file and the line.
            DataError: an artifact is damaged; names the file, and what to remove.
        """
        if contents:
            verify(self.stages[name].artifact for name in self.chosen)
        for planned in self.stages.values():
            if not planned.forced:
                planned.artifact.check()
        if imported:
            self._check_stages()
        else:
            read_or_imported(self._check_stages)
        return self

    def _check_stages(self) -> None:
        known: set[str] = set()
        for name in self.chosen:
            if not self.stages[name].done:
                stage, key = self.stages[name].stage, ("stages", name)
                check_stage(stage, key, self.locations, known)
                check_ranks(stage.data, (*key, "data"), self.locations, self.experiment.world_size)

    @property
    def done(self) -> bool:
        """Whether nothing would run."""
        return all(self.stages[name].done for name in self.chosen)

    @property
    def folder(self) -> Path:
        """The folder of this experiment and seed, for reports and TensorBoard."""
        return Path(self.experiment.output) / self.experiment.experiment / f"seed{self.experiment.seed}"

    def resolved(self, name: str) -> dict[str, Any]:
        """A stage's settings with the folders of the stages it references."""
        planned = self.stages[name]
        folders = {need: self.stages[need].artifact.folder for need in planned.needs}
        return with_folders(dataclasses.asdict(planned.stage), folders)

    def read(self, name: str) -> dict[str, dict[str, str]]:
        """The finished artifacts that a stage reads, each with the hash of its manifest."""
        artifacts = {need: self.stages[need].artifact for need in self.stages[name].needs}
        return {
            need: {"artifact": artifact.folder.name, "made": artifact.made}
            for need, artifact in artifacts.items()
            if artifact.complete
        }

    def made_otherwise(self, name: str) -> str:
        """How a finished artifact differs from what this run would make: by other code, from other inputs, or both.

        Raises:
            DataError: its manifest is damaged.
        """
        if name not in self._otherwise:  # all the code is read for it
            manifest = self.stages[name].artifact.manifest()
            source, read = source_hash(self.resolved(name)), self.read(name)
            runs = [manifest, manifest.get("resumed_by") or manifest]
            code = any(run.get("source") != source for run in runs)
            inputs = any(run.get("inputs") != read for run in runs) or "rewritten" in manifest
            self._otherwise[name] = " and ".join(["by other code"] * code + ["from other inputs"] * inputs)
        return self._otherwise[name]

    def artifacts(self) -> dict[str, Path]:
        """The artifact folders of all finished stages, chosen or not."""
        return {name: planned.artifact.folder for name, planned in self.stages.items() if planned.artifact.complete}

    def settings(self) -> dict[str, Any]:
        """The settings in which experiments may differ, by dotted name, as written: numbers, names and switches.

        Left out are import paths, files, references to other settings and the arguments of Lightning's own callbacks.
        `changes` is what the experiment's file and the command line set otherwise than the file's bases.
        """
        experiment = self.experiment
        run = {"experiment": experiment.experiment, "seed": experiment.seed, "processes": experiment.world_size}
        changes = [_change(key, leaf) for key, leaf in self.changes.items() if key[0] in ("parts", "stages")]
        settings = {dotted(key): leaf for part in ("parts", "stages") for key, leaf in _tunable(self.written, part)}
        return run | {"changes": ", ".join(filter(None, changes))} | settings

    def table(self) -> str:
        """The chosen stages as a table: name, kind, state, artifact, and the stages that each depends on."""
        rows = [("stage", "kind", "state", "artifact", "needs")]
        for name in self.chosen:
            planned = self.stages[name]
            state = self._state(planned)
            folder = planned.artifact.folder.as_posix()
            rows.append((name, planned.stage.kind, state, folder, ", ".join(planned.needs) or "-"))
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    def _state(self, planned: PlannedStage) -> str:
        if not planned.done:
            return "would run"
        otherwise = self.made_otherwise(planned.name)
        if not otherwise and not all(self.stages[need].done for need in planned.needs):
            otherwise = "from other inputs"  # they are about to be made again
        unlisted = "" if "files" in planned.artifact.manifest() else ", unchecked"
        return f"done{unlisted}, made {otherwise}" if otherwise else f"done{unlisted}"


def _tunable(settings: Mapping[str, Any], part: str) -> Iterator[tuple[Key, Any]]:
    library = {key[:-1] for key, leaf in leaves(settings) if key[-1] == "target" and str(leaf).startswith("lightning.")}
    for key, leaf in leaves(settings.get(part) or {}, (part,)):
        if key[-1] != "target" and not _points(leaf) and not any(key[:length] in library for length in range(len(key))):
            yield key, leaf


def _change(key: Key, leaf: object) -> str | None:
    """`rl.module.lr=2`, and for another target `label.judge=GoldJudge`; None for files and references."""
    if key[-1] == "target":
        return f"{dotted(key[:-1])}={str(leaf).rpartition(':')[2]}"
    return None if _points(leaf) else f"{dotted(key)}={leaf}"


def _points(leaf: object) -> bool:
    """Whether a value is a file or a reference to another setting."""
    return isinstance(leaf, str) and ("${" in leaf or os.sep in leaf)


def _needs(name: str, experiment: Experiment, locations: Locations) -> tuple[str, ...]:
    """The stages that a stage references, in order."""
    settings = dataclasses.asdict(experiment.stages[name])
    for key, leaf in leaves(settings, ("stages", name)):
        for other in stage_names(leaf):
            if other not in experiment.stages:
                raise ConfigError(f"unknown stage '{other}' at {locations.at(key)}{suggest(other, experiment.stages)}")
    return tuple(stage_names(settings))


def _order(needs: Mapping[str, tuple[str, ...]], locations: Locations) -> list[str]:
    try:
        return list(graphlib.TopologicalSorter(needs).static_order())
    except graphlib.CycleError as error:
        cycle: list[str] = error.args[1]
        where: Key = ("stages", cycle[0])
        raise ConfigError(
            f"stages depend on each other in a cycle: {' -> '.join(cycle)} ({locations.where(where)})"
        ) from error
