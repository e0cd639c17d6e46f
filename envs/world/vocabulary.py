"""A word-level tokenizer over everything a world says: small enough for models of a million parameters."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from envs.world.names import Names
from envs.world.relations import RELATIONS, TYPES
from envs.world.teacher import THOUGHTS, UNKNOWN

PAD, UNK, START, END = "<pad>", "<unk>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPACE_TO_DROP = r" (?=[.,:;?!)])|(?<=\() "  # a word-level decoder puts a space around every mark


def wordings() -> Iterator[str]:
    """Every English wording of the world, its slots left open."""
    for relation in RELATIONS.values():
        yield from (*relation.sentences, *relation.phrases, *relation.questions, *relation.same)
    yield from (word for types in TYPES.values() for word in types)
    yield from (thought for thoughts in THOUGHTS.values() for thought in thoughts)
    yield from ("He She a an yes no", UNKNOWN)


def english() -> frozenset[str]:
    """The words of all wordings, in lower case: what no invented name may be."""
    return frozenset(word.lower() for text in wordings() for word in _words(text))


def build_tokenizer(names: Names, *, tags: Sequence[str], texts: Iterable[str] = ()) -> PreTrainedTokenizerFast:
    """The tokenizer of all worlds of one size: special tokens, English words, names, each group in alphabetical order.

    `tags` become special tokens; words of `texts` are added, such as a protocol's instruction. Every word, digit and
    punctuation mark is a token; decoding gives the text back up to whitespace.
    """
    rendering = "Doc Title The Question system user assistant"
    words = {word for text in (*wordings(), rendering, *texts) for word in _words(text)}
    words |= {*string.digits, *string.punctuation}
    tokens = [PAD, UNK, START, END, *tags, *sorted(words), *sorted(names.words() - words)]
    backend = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, UNK))
    backend.pre_tokenizer = _pre_tokenizer()
    backend.decoder = decoders.Sequence(
        [
            decoders.WordPiece(prefix="##", cleanup=False),
            decoders.Fuse(),
            decoders.Replace(Regex(_SPACE_TO_DROP), ""),
        ]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=PAD, unk_token=UNK, eos_token=END)
    tokenizer.add_special_tokens({"additional_special_tokens": [START, *tags]})
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Punctuation("isolated"),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )


def _words(text: str) -> list[str]:
    return [word for word, _ in _pre_tokenizer().pre_tokenize_str(re.sub(r"\{\w+\}", " ", text))]
