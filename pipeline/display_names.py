"""Display names of stages, the `names` of an experiment file: what is checked of them."""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import ConfigError
from pipeline.locations import Locations, suggest
from pipeline.schema import Experiment
from pipeline.yaml_reader import Document


def check_display_names(experiment: Experiment, own: Sequence[Document], locations: Locations) -> None:
    """Check that names are text; one that the file itself or the command line gives must be of a stage.

    Raises:
        ConfigError: it is not; names the key, the file and the line.
    """
    given = {name for document in own for name in document.value.get("names") or {}}
    for stage, name in experiment.names.items():
        if not isinstance(name, str):
            raise ConfigError(f"{locations.at(('names', stage))} must be text, not {name!r}")
        if stage in given - experiment.stages.keys():
            raise ConfigError(f"{locations.at(('names', stage))} names no stage{suggest(stage, experiment.stages)}")
