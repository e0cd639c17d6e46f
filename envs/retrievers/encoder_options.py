"""Options of an encoder on a command line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.retrievers.encoder import Encoder  # imports torch, which a lexical server does not need

_SETTINGS = ("pooling", "query_prefix", "passage_prefix", "max_tokens", "device", "dtype")


def add_encoder_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add `--encoder` and its settings."""
    parser.add_argument("--encoder", required=required, help="folder or hub id of a Hugging Face encoder")
    parser.add_argument("--pooling", choices=("mean", "cls", "last"), default="mean")
    parser.add_argument("--query-prefix", default="")
    parser.add_argument("--passage-prefix", default="")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--device", default="auto", help="of the encoder")
    parser.add_argument("--dtype", default="float32", help="of the encoder")


def take_encoder(options: dict[str, Any]) -> Encoder | None:
    """The encoder of some options, which are taken out; None where none is named."""
    settings = {name: options.pop(name) for name in _SETTINGS}
    model = options.pop("encoder")
    if model is None:
        return None
    from envs.retrievers.encoder import Encoder

    return Encoder(model, **settings)
