"""All inference methods that need no training, on questions and passages of one's own, in one table.

    python -m evaluation.zero_shot --model M --questions questions.jsonl --corpus corpus.jsonl [--limit 50]

It writes an experiment of a few lines, `runs/zero_shot_<model>.yaml`, and runs it by `train.py`: the same command
resumes a run that was broken off, and `key=value` overrides a setting.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from common.errors import ConfigError
from common.files import atomic_write
from common.terminal import prepare_terminal, print_error, say

_ROOT = Path(__file__).parent.parent
_NOT_A_NAME = re.compile(r"[^\w.-]+")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the experiment and become its run; 2 where a file is missing."""
    prepare_terminal()
    options = _parser().parse_intermixed_args(arguments)
    try:
        settings = experiment(options)
    except ConfigError as error:
        print_error(error)
        return 2
    path = Path("runs") / f"{settings['experiment']}.yaml"
    with atomic_write(path) as file:
        file.write("# Which way to answer suits these questions, without training?\n")
        yaml.safe_dump(settings, file, sort_keys=False, allow_unicode=True, width=120)
    say(f"{path}: the experiment; python train.py --config {path} runs it too")
    command = [sys.executable, str(_ROOT / "train.py"), "--config", str(path), *options.overrides]
    os.execv(sys.executable, command)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.zero_shot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder or hub id of an instruct model")
    parser.add_argument(
        "--questions",
        required=True,
        type=Path,
        metavar="FILE",
        help="question, answers: JSON lines, CSV, …",
    )
    parser.add_argument(
        "--corpus",
        required=True,
        type=Path,
        metavar="FILE",
        help="id, title, text, in any of these",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="so many of the questions, chosen by hash; default: all")
    encoder = "models/all-MiniLM-L6-v2"
    parser.add_argument("--encoder", default=encoder, help=f"of RECOMP's sentences; {encoder} (make models)")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings, as in train.py")
    return parser


def experiment(options: argparse.Namespace) -> dict[str, Any]:
    """The experiment of a command line.

    Raises:
        ConfigError: a file or folder is missing, or the limit leaves no question.
    """
    for name in ("questions", "corpus"):
        if not (path := getattr(options, name)).exists():
            raise ConfigError(f"--{name} {path}: no such file")
    if options.limit is not None and options.limit < 1:
        raise ConfigError(f"--limit {options.limit} leaves no question; give 1 or more, or leave it out")
    if options.encoder.startswith("models/") and not Path(options.encoder).is_dir():
        raise ConfigError(f"--encoder {options.encoder}: no such folder; `make models` fills models/, or name another")
    name, dataset = Path(options.model).name, _NOT_A_NAME.sub("_", options.questions.stem)
    source = {"target": "datamodules.sources.rows:Rows", "path": str(options.questions.resolve())}
    anywhere = {"policy": {"device": "auto"}}
    return {
        "base": ["base/methods.yaml"],
        "experiment": f"zero_shot_{_NOT_A_NAME.sub('_', name)}",
        "parts": {
            "model": os.path.abspath(options.model) if os.path.isdir(options.model) else options.model,
            **anywhere,
            "real_sampler": anywhere,
            "scorer": {"sampler": anywhere},
            "encoder": {"model": options.encoder, "device": "auto"},
            "real": {
                dataset: {
                    "target": "evaluation.evaluate:Benchmark",
                    "questions": source | ({"sample": options.limit} if options.limit else {}),
                    "split": "all",
                    "retriever": {"target": "envs.retrievers.bm25:BM25", "corpus": str(options.corpus.resolve())},
                }
            },
        },
    }


if __name__ == "__main__":
    sys.exit(main())
