"""Export of a stage's policy: `python -m modules.export STAGE OUT [--adapter] [--push REPOSITORY]`.

OUT gets the model and tokenizer, `agent.yaml` (format, instruction, stops, limits, retriever) and a model card.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from common.terminal import prepare_terminal, print_error, say

prepare_terminal()  # before the libraries that draw bars are imported

from huggingface_hub import HfApi  # noqa: E402
from transformers import GenerationConfig  # noqa: E402

from common.contents import check_sizes  # noqa: E402
from common.errors import ConfigError, DataError, UserError  # noqa: E402
from common.files import atomic_write, build_once, write_json  # noqa: E402
from common.manifests import MANIFEST, load_record  # noqa: E402
from common.model_files import check_model_files  # noqa: E402
from envs.text import load_tokenizer  # noqa: E402
from modules.export.agent_file import agent_of  # noqa: E402
from modules.export.model_card import model_card  # noqa: E402

_ADAPTER = "adapter_config.json"
_SHORT = 80  # characters


def main(arguments: Sequence[str] | None = None) -> int:
    """Export, and push if asked; 2 for a wrong setting, 1 for any other error, 0 at the end."""
    options = _parser().parse_args(arguments)
    try:
        artifact = find_stage(options.stage)
        base = export(artifact, options.out, adapter=options.adapter)
        say(f"{options.out}: model, tokenizer, agent.yaml and README.md of {artifact.as_posix()}")
        if options.push:
            push(options.out, options.push, base)
            say(f"https://huggingface.co/{options.push}")
    except UserError as error:
        print_error(error)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m modules.export", description=__doc__)
    parser.add_argument("stage", help="runs/<experiment>/seed<k>:<stage>, or a folder of the store")
    parser.add_argument("out", type=Path, help="a folder that does not exist yet")
    parser.add_argument("--adapter", action="store_true", help="the LoRA adapters alone; else they are merged")
    parser.add_argument("--push", metavar="REPOSITORY", help="upload it to name/repository, new ones private")
    return parser


def find_stage(name: str) -> Path:
    """The artifact folder of a finished stage that has a policy.

    Raises:
        ConfigError: there is no such stage, or it has no policy, or several.
        DataError: it is unfinished or damaged.
    """
    run, _, stage = name.rpartition(":")
    folder = Path(name)
    if run and not folder.is_dir():
        records = [place / "stages.json" for place in (Path(run), Path("runs", run))]
        record = next(filter(Path.is_file, records), None)
        if record is None:
            raise ConfigError(f"{records[0]} is missing: name a finished run, such as runs/quickstart/seed0:rl")
        stages = load_record(record, record.parent)
        if stage not in stages:
            raise ConfigError(f"{run} has no finished stage {stage}; it has: {', '.join(stages)}")
        folder = record.parents[2] / stages[stage]
    if not folder.is_dir():
        raise ConfigError(f"no stage at {name}: give runs/<experiment>/seed<k>:<stage> or a folder of runs/store")
    if not (folder / MANIFEST).is_file():
        raise DataError(f"{folder} is unfinished: run its experiment again to complete it")
    check_sizes(folder)
    model = folder / "model"
    if not (model / "config.json").is_file():
        several = ", ".join(sorted(path.name for path in model.glob("*") if (path / "config.json").is_file()))
        what = f"has a policy for each agent ({several})" if several else "has no model"
        raise ConfigError(f"{folder} {what}: export a stage that trained one policy")
    return folder


def export(artifact: Path, out: Path, *, adapter: bool = False) -> str | None:
    """Write the folder, whole or not at all; returns what a kept adapter is loaded on.

    Raises:
        ConfigError: `out` exists, there is no adapter, or the format is unknown.
        DataError: the stage's files are damaged.
    """
    if out.exists():
        raise ConfigError(f"{out} exists: choose another folder, or remove it first")
    source = artifact / ("adapter" if adapter else "model")
    if adapter and not (source / _ADAPTER).is_file():
        raise ConfigError(f"{artifact} has no adapter: it trained all weights; leave --adapter out")
    check_model_files(artifact / "model")
    agent = agent_of(artifact, artifact / "model")
    base = _base(source) if adapter else None

    def fill(folder: Path) -> None:
        for path in sorted(path for path in source.iterdir() if path.is_file()):
            shutil.copyfile(path, folder / path.name)
        if base is not None:
            settings = json.loads((folder / _ADAPTER).read_text(encoding="utf-8"))
            write_json(folder / _ADAPTER, settings | {"base_model_name_or_path": base})
        _generation(artifact / "model").save_pretrained(str(folder))
        with atomic_write(folder / "agent.yaml") as file:
            file.write("# How this model is asked, as text; `environment` is the same as a component of the suite.\n")
            yaml.dump(agent, file, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=120)
        with atomic_write(folder / "README.md") as file:
            file.write(model_card(artifact, agent, base=base))
        folder.chmod(0o755)
        for path in folder.iterdir():
            path.chmod(0o644)

    build_once(out, fill)
    return base


def push(folder: Path, repository: str, base: str | None) -> None:
    """Upload a folder in one commit.

    Raises:
        ConfigError: it is an adapter on a folder of this machine.
        DataError: the hub refuses.
    """
    if base is not None and os.path.isabs(base):
        raise ConfigError(f"{folder} is an adapter on {base}, which others have not: export it without --adapter")
    try:
        hub = HfApi()
        hub.create_repo(repository, private=True, exist_ok=True)
        hub.upload_folder(repo_id=repository, folder_path=folder, commit_message="Export of the ProRAG suite")
    except Exception as error:  # of several libraries
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"{repository}: the hub refuses: {reason} (`hf auth login` signs in); then: hf upload {repository} {folder}"
        ) from error


def _base(adapter: Path) -> str:
    """What the adapter is loaded on: a hub id, or the absolute path of a folder."""
    base = str(json.loads((adapter / _ADAPTER).read_text(encoding="utf-8"))["base_model_name_or_path"])
    return os.path.abspath(base) if os.path.isdir(base) else base


def _generation(model: Path) -> GenerationConfig:
    """Greedy, without a penalty, up to any token that ends a message: as the suite samples."""
    settings = json.loads((model / "config.json").read_text(encoding="utf-8"))
    with_own = GenerationConfig.from_pretrained(str(model)) if (model / "generation_config.json").is_file() else None
    tokenizer: Any = load_tokenizer(model)
    own: Any = with_own.eos_token_id if with_own else settings.get("eos_token_id")
    ends = {end for end in (tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])) if end is not None}
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(ends)
    return GenerationConfig(do_sample=False, eos_token_id=sorted(ends), pad_token_id=pad, bos_token_id=None)


class _Plain(yaml.SafeDumper):
    """Writes what is repeated again, in place of YAML's references, and long texts of several lines as blocks."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if "\n" not in text else '"' if len(text) < _SHORT else "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Plain.add_representer(str, _text)


if __name__ == "__main__":
    sys.exit(main())
