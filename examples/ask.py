"""Watch one question being answered, step by step, with what each search found.

    python examples/ask.py --config configs/world.yaml --stage eval_teacher
    python examples/ask.py --config configs/eval/smollm2_untrained.yaml --stage prorag_bm25 "Who founded Apple?"

The agent, protocol, retriever and budgets are those of an evaluation stage. Without a question of your own, the first
one of the dataset is asked, or the one with `--id`. `key=value` replaces a setting of the file, as in train.py.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.terminal import prepare_terminal, say

prepare_terminal()  # before the libraries that draw bars are imported

from common.errors import DataError, RetrievalError
from common.plain_text import one_line
from envs.rollout import rollout
from envs.types import Episode, Question
from evaluation.evaluate import Evaluation
from evaluation.kept_episodes import passages
from evaluation.report.page import write_episode
from evaluation.scoring import score
from examples.agents import dataset_of, evaluation_of
from examples.transcript import answer_line, step_lines
from modules.metrics import exact_match, f1_score
from pipeline.failures import exit_code


def main(arguments: Sequence[str]) -> int:
    """Ask and print; 2 for a wrong setting, 1 for any other error, 0 at the end."""
    options = parse(arguments)
    return exit_code(lambda: _ask_and_print(options))


def _ask_and_print(options: argparse.Namespace) -> None:
    evaluation = evaluation_of(options)
    episode = ask(evaluation, options)
    say(transcript(episode))
    if options.html:
        write_html(options.html, evaluation, episode, options)
    if episode.status == "error":
        raise RetrievalError(episode.error)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "words",
        nargs="*",
        metavar="QUESTION|key=value",
        help="your own question, in quotes, which has no known answer; settings that replace the file's",
    )
    parser.add_argument("--config", required=True, help="an experiment file")
    parser.add_argument("--stage", required=True, help="one of its evaluation stages")
    parser.add_argument("--dataset", help="whose questions and passages; default: the stage's first")
    parser.add_argument("--id", help="ask this question of the dataset")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the episode as a page too")
    parser.add_argument("--seed", type=int, default=0, help="for a policy that samples")
    options = parser.parse_intermixed_args(arguments)
    options.overrides = [word for word in options.words if re.match(r"\S+=", word)]  # no question begins so
    questions = [word for word in options.words if word not in options.overrides]
    if len(questions) > 1:
        parser.error(f"one question at a time, in quotes: {' '.join(questions)}")
    options.question = "".join(questions)
    return options


def ask(evaluation: Evaluation, options: argparse.Namespace) -> Episode:
    """Run one episode of the evaluation's agent."""
    dataset = dataset_of(evaluation, options.dataset)
    if options.question:
        question: Question | None = Question("your-own", options.question, ("",))
    else:
        question = next((q for q in dataset.questions if options.id in (None, q.id)), None)
    if question is None:
        raise DataError(f"{options.dataset or options.stage} has no question with id {options.id}")
    environment = evaluation.environment.variant(retriever=dataset.retriever)
    return rollout(environment, evaluation.sampler, [question], seed=options.seed)[0]


def write_html(path: Path, evaluation: Evaluation, episode: Episode, options: argparse.Namespace) -> None:
    """The same view of the episode as a run's page gives; a question of one's own is not scored."""
    dataset = dataset_of(evaluation, options.dataset)
    environment = evaluation.environment.variant(retriever=dataset.retriever)
    row = score(
        episode,
        valid=environment.protocol.valid(episode),
        retrieves=environment.retriever is not None,
        match=dataset.match,
        oracle=None if options.question else dataset.oracle,
    )
    if options.question:
        row |= {"answers": [], "em": None, "f1": None}
    write_episode(path, options.stage, row, passages([episode]))


def transcript(episode: Episode) -> str:
    """The episode for a reader."""
    lines = [f"Question: {one_line(episode.question.text)}", ""]
    for number, step in enumerate(episode.steps, 1):
        lines += step_lines(number, step)
    if episode.status == "error":
        return "\n".join(lines).rstrip()
    lines += ["", answer_line(episode)]
    if any(episode.question.answers):
        em, f1 = (measure(episode.answer, episode.question.answers) for measure in (exact_match, f1_score))
        lines.append(f"Gold:   {one_line(' / '.join(episode.question.answers))}   EM {em:.0f}, F1 {f1:.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
