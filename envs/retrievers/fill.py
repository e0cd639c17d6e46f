"""Fill an index of an engine from a corpus file: `python -m envs.retrievers.fill milvus --corpus FILE`.

    python -m envs.retrievers.fill milvus --corpus corpus.jsonl --uri runs/milvus.db --name wiki [--encoder MODEL]
    python -m envs.retrievers.fill opensearch --corpus corpus.jsonl --url http://127.0.0.1:9200 --name wiki

The index gets another name while it is filled, so that nobody searches half of it. The name leads to it at the end, and
the index that it led to before is removed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.terminal import prepare_terminal, print_error, say
from envs.retrievers.encoder_options import add_encoder_options, take_encoder


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the index of the command line; 2 where a setting, a file or the engine is wrong."""
    prepare_terminal()
    options = vars(_parser().parse_args(arguments))
    fill = options.pop("fill")
    try:
        say(f"{options['name']}: filled as {fill(options)}")
    except UserError as error:
        print_error(error)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--corpus", type=Path, required=True, help="a file of passages, as the retrievers read it")
    common.add_argument("--name", default="corpus", help="of the index; corpus")
    parser = argparse.ArgumentParser(
        prog="python -m envs.retrievers.fill",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    engines = parser.add_subparsers(required=True, metavar="milvus|opensearch")
    milvus = engines.add_parser("milvus", parents=[common], help="a file of Milvus Lite, or a server")
    milvus.add_argument("--uri", default="runs/milvus.db", help="a file that ends in .db, or http://host:port")
    add_encoder_options(milvus, required=False)
    milvus.set_defaults(fill=_milvus)
    opensearch = engines.add_parser("opensearch", parents=[common], help="OpenSearch or Elasticsearch")
    opensearch.add_argument("--url", default="http://127.0.0.1:9200")
    opensearch.add_argument("--analyzer", default="english", help="of the engine; english, standard, german, …")
    opensearch.add_argument("--shards", type=int, default=1)
    opensearch.set_defaults(fill=_opensearch)
    return parser


def _milvus(options: dict[str, Any]) -> str:
    from envs.retrievers import milvus

    encoder = take_encoder(options)
    return milvus.fill(**options, encoder=encoder)


def _opensearch(options: dict[str, Any]) -> str:
    from envs.retrievers import opensearch

    return opensearch.fill(**options)


if __name__ == "__main__":
    sys.exit(main())
