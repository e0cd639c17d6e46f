"""Text safety: retrieved text is data, and data can never act as control.

Control tags inside data are made visible but inert (`<` becomes `&lt;`), whatever their case or spacing, and data is
encoded with special tokens split, so no id of a control token can come out of it. A chat template is rendered around
placeholders, so a question cannot close its own message either.
"""

from __future__ import annotations

import os
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path

from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from common.errors import ConfigError
from common.model_files import check_model_files
from envs.requests import Control, Data, Piece, Quoted

_SLOT = "\ue000{}\ue001"
_MARK = re.compile("\ue000(\\w+)\ue001")
_THINK, _THOUGHT = "<think>", "</think>"
_KEPT = 2048  # encoded texts: a context that is rendered anew has its passages and prompts in every turn
_FAILURES = (TemplateError, ValueError, TypeError, LookupError, AttributeError)  # of a template
_DATE = "26 Jul 2024"  # for templates that write a date: the default of Llama's template


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
        self._ids = lru_cache(_KEPT)(self._encoded)

    def neutralise(self, text: str) -> str:
        """Escape the `<` of every control tag and special token in `text`, written in full-width letters or not."""
        escaped = self._escape(text)
        folded = unicodedata.normalize("NFKC", escaped)  # what some tokenizers would read
        return escaped if folded == self._escape(folded) else self._escape(folded)

    @property
    def escaped(self) -> str:
        """The pattern of each `<` that `neutralise` escapes, for programs without this class."""
        patterns = [pattern.pattern for pattern in (self._tag, self._literal) if pattern]
        return f"(?i:{'|'.join(patterns)})" if patterns else "(?!)"

    def _escape(self, text: str) -> str:
        for pattern in (self._tag, self._literal):
            text = pattern.sub("&lt;", text) if pattern else text
        return text

    def control(self, text: str) -> tuple[int, ...]:
        """Ids of trusted text: tags that are tokens become their tokens."""
        return self._ids(text, True)

    def data(self, text: str) -> tuple[int, ...]:
        """Ids of untrusted text: neutralised, special tokens split, no control id among them."""
        return self._ids(text, False)

    def _encoded(self, text: str, trusted: bool) -> tuple[int, ...]:
        if trusted:
            return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)
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

    def encode(self, pieces: Iterable[Piece]) -> tuple[int, ...]:
        """Ids of a context in pieces."""
        return tuple(token for piece in pieces for token in self.encode_piece(piece))

    def token_index(self, ids: Sequence[int], characters: Sequence[int]) -> list[int]:
        """For each position in `decode(ids)` the number of tokens that begin before it.

        So the tokens of the text from position a to b are `ids[i:j]` with `[i, j] = token_index(ids, [a, b])`. A token
        that straddles a border belongs to the text that it begins in; of a character that several tokens spell, all
        but the first begin inside it.
        """
        whole = self.decode(ids)

        def begins(index: int) -> int:
            # A prefix that ends inside a character decodes to a replacement character there.
            before = _in_common(self.decode(ids[:index]), whole)
            space = whole[before : before + 1] == " "  # the token's own, or one that the decoder adds
            return before + (space and not self.decode(ids[index : index + 1]).startswith(" "))

        return [bisect_left(range(len(ids)), position, key=begins) for position in characters]

    def chat(self, user: str, *, system: str = "", **slots: str | Piece | Sequence[Piece]) -> tuple[Piece, ...]:
        """The chat template around a user message, up to where the assistant writes, with thinking switched off.

        `{name}` in `user` or `system` marks where `slots[name]` goes; a slot that is a plain string is untrusted data
        that may not be cut. A template without a system role gets the system text at the head of the user message.
        Where a template opens a thought all the same, it is closed again, unless the thought is part of the format:
        see `opened`.

        Raises:
            ConfigError: the tokenizer has no chat template, or one that writes today's date, fails, or does not show
                the messages as they are.
        """
        for slot in slots:
            mark = _SLOT.format(slot)
            user, system = user.replace(f"{{{slot}}}", mark), system.replace(f"{{{slot}}}", mark)
        rendered = self._rendered(user, system)
        if _leaves_open(rendered, user) and not self.opened:
            rendered = f"{rendered.rstrip()}\n\n{_THOUGHT}\n\n"
        pieces: list[Piece] = []
        for number, text in enumerate(_MARK.split(rendered)):
            if number % 2 == 0:
                pieces += [Control(text)] if text else []
            else:
                slot = slots[text]
                pieces += [Data(slot)] if isinstance(slot, str) else slot if isinstance(slot, Sequence) else [slot]
        return tuple(pieces)

    @cached_property
    def opened(self) -> str:
        """`<think>` where that tag is one of the format's and the chat template writes it before the reply; else empty.

        The first turn then begins inside the thought: the tag counts as written, and must not be written again.
        """
        return _THINK if _THINK in self.tags and _leaves_open(self._rendered("Q", ""), "Q") else ""

    @cached_property
    def between_replies(self) -> tuple[str, str]:
        """Text of the chat template from a reply up to the user's next message, and from there up to the next reply.

        Raises:
            ConfigError: the template does not take a dialogue, or does not show its messages as they are.
        """
        texts = [_SLOT.format(name) for name in ("question", "reply", "more")]
        messages = [
            {"role": role, "content": text} for role, text in zip(("user", "assistant", "user"), texts, strict=True)
        ]
        try:
            rendered = self._render(messages)
        except _FAILURES:
            rendered = ""
        parts = _MARK.split(rendered)
        if parts[1::2] != ["question", "reply", "more"]:
            name = self.tokenizer.name_or_path or "(no name)"
            raise ConfigError(
                f"the chat template of {name} does not write a dialogue of question, reply and question as it is: set "
                "tokenizer.chat_template to one that does"
            )
        close = f"\n\n{_THOUGHT}\n\n" if _leaves_open(rendered, texts[-1]) and not self.opened else ""
        return parts[4], f"{parts[6].rstrip()}{close}" if close else parts[6]

    def _rendered(self, user: str, system: str) -> str:
        """The template around both messages; around one of both texts where it knows no system role."""
        template, name = str(self.tokenizer.chat_template or ""), self.tokenizer.name_or_path or "(no name)"
        if not template:
            raise ConfigError(f"tokenizer {name} has no chat template: set tokenizer.chat_template and save it again")
        if "strftime_now" in template and "date_string" not in template:
            raise ConfigError(f"the chat template of {name} writes today's date: replace strftime_now in it by a date")
        try:
            if system:
                with suppress(*_FAILURES):  # how templates say that they know no such role
                    text = self._render([{"role": "system", "content": system}, {"role": "user", "content": user}])
                    if system.strip() in text and user.strip() in text:
                        return text
                user = f"{system}\n\n{user}"
            text = self._render([{"role": "user", "content": user}])
        except _FAILURES as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ConfigError(
                f"the chat template of {name} fails on a user message ({reason}): set tokenizer.chat_template to one "
                "that takes one message of a user, whose content is a string"
            ) from error
        if user.strip() not in text:
            raise ConfigError(
                f"the chat template of {name} does not show {_lost(user, text)!r} of the prompt as it is: set "
                "tokenizer.chat_template to one that writes a message's content, a string, unchanged"
            )
        return text

    def _render(self, messages: list[dict[str, str]]) -> str:
        rendered = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False, date_string=_DATE
        )
        return str(rendered)


def _leaves_open(rendered: str, user: str) -> bool:
    """Whether a rendered template opens a thought after the user's message and does not close it."""
    message = user.strip()
    reply = rendered[rendered.rfind(message) + len(message) :]
    return reply.rfind(_THINK) > reply.rfind(_THOUGHT)


def _lost(message: str, rendered: str) -> str:
    """The first line or slot of a message that is not in what was rendered of it."""
    parts = re.findall("\ue000\\w+\ue001|[^\ue000\n]+", message)
    lost = next((part for part in parts if part.strip() not in rendered), message)
    return _MARK.sub(r"{\1}", lost.strip())[:60]


def _in_common(text: str, other: str) -> int:
    """Length of the common prefix of two texts."""
    return next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))


def require_present(model: str, what: str) -> None:
    """Require that a model named by a path is there and whole: the hub would be asked for it otherwise.

    Raises:
        ConfigError: there is no such folder; `what` says whose it is.
        DataError: a file in it is damaged.
    """
    if os.path.isdir(model):
        check_model_files(Path(model))
    elif model.startswith(("/", ".", "models/")):
        raise ConfigError(f"{what} {model}: no such folder; `make models` fills models/")


def load_tokenizer(path: str | Path, *, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a folder or hub id.

    Raises:
        ConfigError: there is no tokenizer.
    """
    require_present(str(path), "tokenizer")
    try:
        return AutoTokenizer.from_pretrained(str(path), revision=revision)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"no tokenizer at {path}: {reason} Give a folder that holds tokenizer.json.") from error
