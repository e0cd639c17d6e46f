"""Server of an agent: OpenAI's chat API, and a page to ask it at `/`.

python -m examples.serve --config configs/quickstart.yaml --stage eval_rl
python -m examples.serve --agent FOLDER --corpus corpus.jsonl --port 8001
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
from collections.abc import Sequence

from common.terminal import prepare_terminal, say

prepare_terminal()  # before the libraries that draw bars are imported

import uvicorn

from common.errors import ConfigError
from envs.retrievers.connections import exit_at_once, server_config
from envs.retrievers.server import listen
from examples.agents import add_agent_arguments, load_agent
from examples.chat_api import create_app
from pipeline.failures import exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Load the agent and serve it; 2 for a wrong setting, 1 for any other error."""
    options = _parser().parse_intermixed_args(arguments)
    return exit_code(lambda: _serve(options))


def _serve(options: argparse.Namespace) -> None:
    if min(options.batch, options.queue) < 1:
        raise ConfigError(f"--batch {options.batch}, --queue {options.queue}: both must be at least 1")
    with listen(options.host, options.port) as listener:  # before loading: a port in use is known at once
        agent = load_agent(options)
        app = create_app(agent, batch=options.batch, queue=options.queue, host=options.host)
        place = f"http://{options.host}:{listener.getsockname()[1]}"
        say(f"{agent.name}: ask at {place}/ or by an OpenAI client with base_url {place}/v1")
        uvicorn.Server(server_config(app)).run(sockets=[listener])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_agent_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", help="127.0.0.1: this machine alone; 0.0.0.0: all that reach it")
    parser.add_argument("--port", type=int, default=8000, help="8000; 0 takes any free port")
    parser.add_argument("--batch", type=int, default=16, metavar="N", help="questions answered together; 16")
    parser.add_argument("--queue", type=int, default=64, metavar="N", help="questions that may wait; 64")
    return parser


if __name__ == "__main__":
    exit_at_once(main)
