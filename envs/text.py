"""Text safety: retrieved text is data, and data can never act as control.

Control tags inside data are made visible but inert (`<` becomes `&lt;`), whatever their case or spacing, and data is
encoded with special tokens split, so no id of a control token can come out of it. A chat template is rendered around
placeholders, so a question cannot close its own message either.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from common.errors import ConfigError
from envs.pieces import Control, Data, Piece, Quoted

_SLOT = "\ue000{}\ue001"
_DATE = "26 Jul 2024"  # for templates that write a date; the one Llama's own falls back to


def tag_names(tags: Iterable[str]) -> tuple[str, ...]:
    """`("<step>", "</step>")` -> `("step",)`."""
    return tuple(dict.fromkeys(tag.strip("</>") for tag in tags))


def tag_pattern(tags: Iterable[str]) -> re.Pattern[str]:
    """Matches the opening `<` of any of the tags, in any case and spacing, closing or not."""
    names = "|".join(re.escape(name) for name in tag_names(tags))
    return re.compile(rf"<(?=\s*/?\s*(?:{names})(?![\w-]))", re.IGNORECASE)


class Codec:
    """Text to token ids and back, for one tokenizer and one protocol's control tags.

    The tags need not be tokens of the tokenizer: a model that was never trained on them writes them as plain text.

    Raises:
        ConfigError: the tokenizer folder cannot be loaded.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | str | Path, tags: Sequence[str] = ()) -> None:
        self.tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer
        self.tags = tuple(tags)
        # Encoding data splits special tokens, but not other added ones (`</think>`, `<tool_call>`): both are escaped.
        added = [str(token) for token in self.tokenizer.added_tokens_decoder.values()]
        literal = "|".join(re.escape(text[1:]) for text in added if re.fullmatch(r"<\S+>", text))
        self._literal = re.compile(rf"<(?={literal})", re.IGNORECASE) if literal else None
        self._tag = tag_pattern(self.tags) if self.tags else None

    def neutralise(self, text: str) -> str:
        """Escape the `<` of every control tag and special token in `text`, written in full-width letters or not."""
        escaped = self._escape(text)
        folded = unicodedata.normalize("NFKC", escaped)  # what some tokenizers would read
        return escaped if folded == self._escape(folded) else self._escape(folded)

    def _escape(self, text: str) -> str:
        for pattern in (self._tag, self._literal):
            text = pattern.sub("&lt;", text) if pattern else text
        return text

    def control(self, text: str) -> tuple[int, ...]:
        """Ids of trusted text: tags that are tokens become their tokens."""
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)

    def data(self, text: str) -> tuple[int, ...]:
        """Ids of untrusted text: neutralised, special tokens split, no control id among them."""
        text = self.neutralise(text).encode("utf-8", "replace").decode()  # a lone surrogate becomes a question mark
        return tuple(self.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids)

    def encode_piece(self, piece: Piece) -> tuple[int, ...]:
        """Ids of a piece of a context."""
        match piece:
            case Control(text):
                return self.control(text)
            case Data(text):
                return self.data(text)
            case Quoted(ids):
                return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens kept."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def chat(self, user: str, **data: str) -> list[tuple[int, ...]]:
        """Ids of the chat template around one user message, up to where the assistant writes, thinking off.

        `{name}` in `user` marks where the untrusted text `data[name]` goes. Returns the ids in pieces, one for each
        stretch of trusted text and one for each piece of data, in order; most callers join them.

        Raises:
            ConfigError: the tokenizer has no chat template, or one that writes today's date.
        """
        template, name = str(self.tokenizer.chat_template or ""), self.tokenizer.name_or_path or "given"
        if not template:
            raise ConfigError(f"tokenizer {name} has no chat template: set tokenizer.chat_template and save it again")
        if "strftime_now" in template and "date_string" not in template:
            raise ConfigError(f"the chat template of {name} writes today's date: replace strftime_now in it by a date")
        content = user
        for name in data:
            content = content.replace(f"{{{name}}}", _SLOT.format(name))
        rendered = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,
            date_string=_DATE,
        )
        pieces = re.split("\ue000(\\w+)\ue001", str(rendered))
        return [self.data(data[piece]) if i % 2 else self.control(piece) for i, piece in enumerate(pieces)]


def refuse_absent(model: str, what: str) -> None:
    """Tell a folder that is not there from a hub id, before anybody asks the hub for it.

    Raises:
        ConfigError: it is such a folder; `what` names its user.
    """
    if model.startswith(("/", ".", "models/")) and not os.path.isdir(model):
        raise ConfigError(f"{what} {model}: no such folder; `make models` fills models/")


def load_tokenizer(path: str | Path, *, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a folder or hub id.

    Raises:
        ConfigError: there is none there.
    """
    refuse_absent(str(path), "tokenizer")
    try:
        return AutoTokenizer.from_pretrained(str(path), revision=revision)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"no tokenizer at {path}: {reason} Give a folder that holds tokenizer.json.") from error
