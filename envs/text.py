"""Text safety: retrieved text is data, and data can never act as control.

Control tags inside data are made visible but inert (`<` becomes `&lt;`), whatever their case or spacing, and data is
encoded with special tokens split, so no id of a control token can come out of it. A chat template is rendered around
placeholders, so a question cannot close its own message either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from envs.errors import ConfigError

_SLOT = "\ue000{}\ue001"


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
        control = {
            i: str(t) for i, t in self.tokenizer.added_tokens_decoder.items() if t.special or str(t) in self.tags
        }
        self._control_ids = frozenset(i for i, text in control.items() if text != self.tokenizer.unk_token)
        literal = "|".join(re.escape(text[1:]) for text in control.values() if text.startswith("<"))
        self._literal = re.compile(rf"<(?={literal})", re.IGNORECASE) if literal else None
        self._tag = tag_pattern(self.tags) if self.tags else None

    def neutralise(self, text: str) -> str:
        """Escape the `<` of every control tag and special token in `text`."""
        for pattern in (self._tag, self._literal):
            text = pattern.sub("&lt;", text) if pattern else text
        return text

    def control(self, text: str) -> tuple[int, ...]:
        """Ids of trusted text: tags that are tokens become their tokens."""
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)

    def data(self, text: str) -> tuple[int, ...]:
        """Ids of untrusted text: neutralised, special tokens split, no control id among them."""
        text = self.neutralise(text).encode("utf-8", "replace").decode()  # a lone surrogate becomes a question mark
        ids = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
        return tuple(token for token in ids if token not in self._control_ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens kept."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def chat(self, user: str, **data: str) -> list[tuple[int, ...]]:
        """Ids of the chat template around one user message, up to where the assistant writes, thinking off.

        `{name}` in `user` marks where the untrusted text `data[name]` goes. Returns the ids in pieces, one for each
        stretch of trusted text and one for each piece of data, in order; most callers join them.

        Raises:
            ConfigError: the tokenizer has no chat template.
        """
        if not self.tokenizer.chat_template:
            name = self.tokenizer.name_or_path or "given"
            raise ConfigError(f"tokenizer {name} has no chat template: set tokenizer.chat_template and save it again")
        content = user
        for name in data:
            content = content.replace(f"{{{name}}}", _SLOT.format(name))
        rendered = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        pieces = re.split("\ue000(\\w+)\ue001", str(rendered))
        return [self.data(data[piece]) if i % 2 else self.control(piece) for i, piece in enumerate(pieces)]


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a folder or hub id.

    Raises:
        ConfigError: there is none there.
    """
    try:
        return AutoTokenizer.from_pretrained(str(path))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"no tokenizer at {path}: {reason} Give a folder that holds tokenizer.json.") from error
