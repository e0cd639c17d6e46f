"""The command line of `train.py`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="train.py", description="Run the stages of an experiment.", allow_abbrev=False
    )
    parser.add_argument("--config", required=True, type=Path, help="the experiment file")
    parser.add_argument(
        "--stage", nargs="+", action="extend", default=[], help="run only these stages and those they depend on"
    )
    parser.add_argument("--force", nargs="+", action="extend", default=[], help="run these again, finished or not")
    parser.add_argument("--dry-run", action="store_true", help="check the settings and print which stages would run")
    parser.add_argument(
        "--verify", action="store_true", help="the same, after a check of the content of all files of finished stages"
    )
    parser.add_argument(
        "--show", metavar="STAGE", help="print a stage's settings as all files leave them, each with its file and line"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="override settings of the file")
    options = parser.parse_intermixed_args(arguments)
    options.dry_run |= options.verify
    for names in (options.stage, options.force):  # `--stage sft lr=1` means an override
        options.overrides += [name for name in names if "=" in name]
        names[:] = [name for name in names if "=" not in name]
    return options
