"""A corpus from a folder of documents: `python -m datamodules.corpus_folder docs/ --out corpus.jsonl`.

Every .md, .txt, .html, .pdf and .docx file of the folder and those below becomes passages of at most `--tokens`, cut at
headings, pages and sentences. The id of a passage names its file and, of a PDF, its page: `manual/a.pdf#page=3`. Beside
`id`, `title` and `text` each row has `source` and, of a PDF, `page`. Nothing is written unless every file can be read,
or is left out by `--skip`.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from common.document_names import id_key
from common.errors import ConfigError, DataError, UserError
from common.hashes import visible_files
from common.terminal import prepare_terminal, print_error, say
from datamodules.documents.formats import READERS, Section, read_document
from datamodules.documents.pieces import pieces, words
from datamodules.records import write_rows

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the folder and write the corpus; 2 where a setting or a file is wrong."""
    prepare_terminal()
    options = _parsed(arguments)
    try:
        if not 0 <= options.overlap < options.tokens:
            raise ConfigError(f"--overlap {options.overlap} must lie between 0 and --tokens, {options.tokens}")
        count = _counter(options.tokenizer) if options.tokenizer else words
        files, others = files_of(options.folder)
        rows, problems = read_files(options.folder, files, options.tokens, options.overlap, count)
        for problem in problems:
            if options.skip:
                say(f"left out: {problem}")
            else:
                print_error(problem)
        if problems and not options.skip:
            raise DataError(f"{options.out} is not written: repair or remove the files above, or give --skip")
        if not rows:
            raise DataError(f"{options.folder}: no passage; it takes files of {', '.join(READERS)}")
        write_rows(options.out, rows)
    except UserError as error:
        print_error(error)
        return 2
    left = "".join(f"; left out: {number} of {kind}" for kind, number in sorted(others.items()))
    say(f"{options.out}: {len(rows)} passages of {len(files) - len(problems)} files{left}")
    return 0


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m datamodules.corpus_folder",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON lines")
    parser.add_argument("--tokens", type=int, default=200, help="of a passage, at most; 200")
    parser.add_argument("--overlap", type=int, default=40, help="tokens shared with the passage before; 40")
    parser.add_argument("--tokenizer", help="whose tokens are counted, a folder or hub id; by default words and signs")
    parser.add_argument("--skip", action="store_true", help="name files that cannot be read and write the others")
    return parser.parse_args(arguments)


def files_of(folder: Path) -> tuple[list[Path], Counter[str]]:
    """The documents of a folder, in the order of their names, and the number of other files by suffix.

    Raises:
        DataError: there is no such folder.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    files = sorted(visible_files(folder))
    others = Counter(file.suffix.lower() or file.name for file in files if file.suffix.lower() not in READERS)
    return [file for file in files if file.suffix.lower() in READERS], others


def read_files(
    folder: Path, files: Sequence[Path], tokens: int, overlap: int, count: Callable[[str], int]
) -> tuple[list[Row], list[DataError]]:
    """Passages of all files, and what is wrong with those that cannot be read.

    Raises:
        ConfigError: a library is missing.
    """
    rows, problems, first = list[Row](), list[DataError](), dict[str, Path]()
    for file in files:
        source = file.relative_to(folder).as_posix()
        try:
            if (other := first.setdefault(id_key(source), file)) != file:
                raise DataError(f"{file}: its passages have the ids of {other}, whose name reads the same: rename one")
            title, sections = read_document(file)
        except DataError as error:
            problems.append(error)
            continue
        rows += passages(source, title or file.stem, sections, tokens, overlap, count)
    return rows, problems


def passages(
    source: str, title: str, sections: Sequence[Section], tokens: int, overlap: int, count: Callable[[str], int] = words
) -> Iterator[Row]:
    """Rows of a corpus. Ids end in the number of the passage in its file or, after its page, on that page."""
    number: Counter[int | None] = Counter()
    for section in sections:
        for text in pieces(section.text, tokens=tokens, overlap=overlap, count=count):
            number[section.page] += 1
            where: Row = {} if section.page is None else {"page": section.page}
            yield {
                "id": f"{source}#{_place(section.page, number[section.page])}",
                "title": title if section.heading in ("", title) else f"{title}: {section.heading}",
                "text": text,
                "source": source,
            } | where


def _place(page: int | None, number: int) -> str:
    if page is None:
        return str(number)
    return f"page={page}" if number == 1 else f"page={page}&part={number}"


def _counter(tokenizer: str) -> Callable[[str], int]:
    from transformers import AutoTokenizer

    try:
        encode = AutoTokenizer.from_pretrained(tokenizer)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"--tokenizer {tokenizer}: neither a folder nor a hub id of a tokenizer: {reason}") from error
    return lambda text: len(encode(text, add_special_tokens=False).input_ids)


if __name__ == "__main__":
    sys.exit(main())
