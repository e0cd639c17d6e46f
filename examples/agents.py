"""Agents that answer questions of one's own: of an evaluation stage, or of an exported folder with a corpus."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from common.errors import ConfigError, DataError
from common.manifests import load_record
from envs.interfaces import Sampler
from envs.retrieval import RetrievalEnvironment
from envs.rollout import play_out
from envs.types import Document, Episode, Question, Step
from evaluation.evaluate import Benchmark, Evaluation
from pipeline.components import build
from pipeline.loader import load
from pipeline.locations import Locations
from pipeline.plan import Plan
from pipeline.stages import build_data

Watch = Callable[[int, Episode, list[tuple[int, Step]]], object]
_BM25 = "envs.retrievers.bm25:BM25"


@dataclass(frozen=True)
class Agent:
    """A policy with its format, limits and retriever."""

    name: str
    environment: RetrievalEnvironment
    sampler: Sampler

    def answer(self, questions: Sequence[str], *, watch: Watch = lambda *_: None, pool: int = 64) -> list[Episode]:
        """A finished episode a question; a question's random numbers come from its text.

        `watch` gets a question's place, its episode and the steps that are new or that a later turn completed, by
        number: after every turn, and at the end, when the episode has a status.

        Raises:
            UserError: retriever or engine failed too often in a row.
        """
        environment = self.environment
        episodes = [environment.start(Question(text, text, ("",))) for text in questions]
        places = {id(episode): place for place, episode in enumerate(episodes)}
        known: list[tuple[Step, ...]] = [()] * len(episodes)

        def passed_on(episode: Episode) -> None:
            place = places[id(episode)]
            steps = episode.steps if episode.status else environment.protocol.steps(episode)
            new = [(n, step) for n, step in enumerate(steps, 1) if step not in known[place][n - 1 : n]]
            known[place] = steps
            watch(place, episode, new)

        play_out(environment, self.sampler, episodes, seed=0, pool=pool, watch=passed_on)
        return episodes


def add_agent_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that `load_agent` reads."""
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that replace those of --config")
    parser.add_argument("--config", help="an experiment file, with --stage")
    parser.add_argument("--stage", help="one of its evaluation stages")
    parser.add_argument("--dataset", help="whose passages; default: the stage's first")
    parser.add_argument("--agent", type=Path, metavar="FOLDER", help="a folder of python -m modules.export")
    parser.add_argument("--corpus", type=Path, metavar="FILE", help="passages for --agent")
    parser.add_argument("--device", default="auto", help="of --agent; auto is a GPU where there is one")


def load_agent(options: argparse.Namespace) -> Agent:
    """The agent that a command line names.

    Raises:
        ConfigError: it names none, or a setting is wrong.
        DataError: a file is damaged.
    """
    if (options.agent is None) == (options.config is None) or (options.config and not options.stage):
        raise ConfigError("name an agent: --config FILE --stage STAGE, or --agent FOLDER --corpus FILE")
    if options.agent is not None:
        return exported_agent(options.agent, options.corpus, options.device)
    evaluation = evaluation_of(options)
    dataset = dataset_of(evaluation, options.dataset)
    environment = evaluation.environment.variant(retriever=dataset.retriever)
    return Agent(options.stage, environment, evaluation.sampler)


def evaluation_of(options: argparse.Namespace) -> Evaluation:
    """The evaluation of `--config`, `--stage` and overrides, built.

    Raises:
        ConfigError: a stage that it needs is not made, or it evaluates nothing.
    """
    plan = Plan.of(load(options.config, options.overrides), only=[options.stage]).checked()
    missing = [name for name in plan.stages[options.stage].needs if not plan.stages[name].done]
    if missing:
        raise ConfigError(f"make {', '.join(missing)} first: python train.py --config {options.config}")
    evaluation = build_data(options.stage, plan)
    if not isinstance(evaluation, Evaluation):
        raise ConfigError(
            f"stage {options.stage} evaluates nothing; name one whose data is evaluation.evaluate:Evaluation"
        )
    return evaluation


def dataset_of(evaluation: Evaluation, name: str | None) -> Benchmark:
    """A dataset of an evaluation by name, the first without one.

    Raises:
        ConfigError: it has no such dataset.
    """
    name = name or next(iter(evaluation.datasets))
    if name not in evaluation.datasets:
        raise ConfigError(f"no dataset {name}; the stage has {', '.join(evaluation.datasets)}")
    return evaluation.datasets[name]


def exported_agent(folder: Path, corpus: Path | None, device: str = "auto") -> Agent:
    """The agent of an exported folder, over a corpus.

    Raises:
        ConfigError: a file is missing, or a setting is wrong.
        DataError: a file is damaged.
    """
    path = folder / "agent.yaml"
    try:
        agent = yaml.safe_load(path.read_text(encoding="utf-8"))
        environment, retriever = dict(agent["environment"]), agent["retriever"] or {}
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing: export a stage by python -m modules.export STAGE {folder}") from None
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError) as error:
        raise DataError(f"{path} is damaged ({type(error).__name__}): export it again") from error
    home = str(folder.resolve())
    environment["protocol"] = environment["protocol"] | {"tokenizer": home}
    if searching := retriever_on(corpus, retriever, path):
        environment["retriever"] = searching
    sampler = {"target": "modules.samplers.in_process:InProcessSampler", "policy": _policy(folder, home, device)}
    built = build({"environment": environment, "sampler": sampler}, (), Locations({(): str(path)}, {}), {})
    made = Agent(folder.resolve().name, built["environment"], built["sampler"])
    made.environment.check(made.sampler)
    return made


def retriever_on(corpus: Path | None, trained_with: dict[str, Any], path: Path) -> dict[str, Any] | None:
    """The retriever that an agent was trained with, on a corpus; BM25 where that searched no corpus file.

    Raises:
        ConfigError: there is no such file, or none is given and the retriever needs one; `path` is the agent's.
    """
    searched = _on_corpus(trained_with, "" if corpus is None else str(corpus.resolve()))
    if corpus is None:
        if searched != trained_with:
            raise ConfigError(f"{path} searches a corpus that is not in the folder: give one by --corpus FILE")
        return trained_with or None
    if not corpus.exists():
        raise ConfigError(f"--corpus {corpus}: no such file")
    return searched if searched != trained_with else {"target": _BM25, "corpus": str(corpus.resolve())}


def _on_corpus(value: Any, corpus: str) -> Any:
    """Settings of a retriever, and of those that it is made of, with another corpus."""
    if isinstance(value, dict):
        return {name: corpus if name == "corpus" else _on_corpus(item, corpus) for name, item in value.items()}
    return [_on_corpus(item, corpus) for item in value] if isinstance(value, list) else value


def _policy(folder: Path, home: str, device: str) -> dict[str, Any]:
    """The policy of an exported folder, in the type of its weights; adapters are loaded on their base."""
    policy = {"target": "modules.policy:load_policy", "model": home, "device": device}
    adapter, config = folder / "adapter_config.json", folder / "config.json"
    if adapter.is_file():
        base = load_record(adapter, folder, "base_model_name_or_path")["base_model_name_or_path"]
        return policy | {"model": base, "adapter": home}
    dtype = load_record(config, folder).get("dtype") if config.is_file() else None
    return policy | ({"dtype": dtype} if dtype else {})


def sources(episode: Episode) -> list[Document]:
    """The passages that an answer rests on, each once: those that were kept, where the format keeps some."""
    keeping = [step for step in episode.steps if step.kept is not None]
    found = (hit.document for step in keeping or episode.steps for hit in step.hits if _shown(hit.document, step))
    return list({document.id: document for document in found}.values())


def _shown(document: Document, step: Step) -> bool:
    return step.kept is None or document.id in step.kept
