"""Chat with an agent on the terminal: every step with its searches, the answer, its sources.

    python -m examples.chat --config configs/quickstart.yaml --stage eval_rl
    python -m examples.chat --agent FOLDER --corpus corpus.jsonl

A passage takes one line; the number of a source shows it whole. Ctrl-D ends.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence

from common.terminal import prepare_terminal, print_error, say

prepare_terminal()  # before the libraries that draw bars are imported

from common.errors import UserError
from envs.types import Document, Episode, Step
from examples.agents import Agent, add_agent_arguments, load_agent, sources
from examples.transcript import answer_line, source_lines, step_lines
from pipeline.failures import exit_code


def main(arguments: Sequence[str]) -> int:
    """Load and talk; 2 for a wrong setting, 1 for any other error, 0 at the end."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.chat", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_agent_arguments(parser)
    options = parser.parse_intermixed_args(arguments)
    return exit_code(lambda: _talk(options))


def _talk(options: argparse.Namespace) -> None:
    try:
        agent = load_agent(options)
        say(f"{agent.name}: ask a question; a number shows that source; Ctrl-D ends")
        chat(agent, _typed())
    except KeyboardInterrupt:
        say("")


def _typed() -> Iterator[str]:
    while True:
        try:
            yield input("\n> ")
        except EOFError:
            say("")
            return


def chat(agent: Agent, lines: Iterable[str]) -> None:
    """Answer each line; a number shows that source of the last answer. A failed question ends alone, in one line."""
    shown: list[Document] = []
    for line in filter(None, map(str.strip, lines)):
        if line.isdecimal():
            chosen = shown[int(line) - 1 : int(line)] if int(line) else []
            say(f"{chosen[0].title}\n{chosen[0].text}" if chosen else f"there is no source {line}: 1 to {len(shown)}")
            continue
        try:
            [episode] = agent.answer([line], watch=_show)
        except UserError as error:
            print_error(error)
            continue
        if episode.status == "error":
            print_error(episode.error)
            continue
        shown = sources(episode)
        say("\n".join([answer_line(episode), *source_lines(shown)]))


def _show(_: int, episode: Episode, steps: list[tuple[int, Step]]) -> None:
    for number, step in steps:
        say("\n".join(step_lines(number, step)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
