"""Models of the shape of Qwen3 with random weights, and what they cost by arithmetic: parameters, bytes, operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config

from modules.policy import Policy


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Qwen3; the defaults are what 0.6B and 1.7B share."""

    hidden: int
    feed_forward: int
    layers: int = 28
    heads: int = 16
    kv_heads: int = 8
    head_dim: int = 128
    vocabulary: int = 151_936
    tied: bool = True

    @property
    def embedding(self) -> int:
        """Parameters of a table of one row a token: the embedding, and the output layer where it is not tied to it."""
        return self.vocabulary * self.hidden

    @property
    def body(self) -> int:
        """Parameters of the layers and of the last norm: all but the tables."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        norms = 2 * self.hidden + 2 * self.head_dim
        return self.layers * (attention + 3 * self.hidden * self.feed_forward + norms) + self.hidden

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.body + self.embedding * (1 if self.tied else 2)

    def adapter_parameters(self, rank: int) -> int:
        """Those of LoRA adapters on all linear layers of the body: `rank` for each input and output of a layer."""
        states, kv = self.hidden + self.heads * self.head_dim, self.hidden + self.kv_heads * self.head_dim
        return rank * self.layers * (2 * states + 2 * kv + 3 * (self.hidden + self.feed_forward))

    def cache_bytes(self, tokens: int, width: int = 2) -> int:
        """Keys and values of so many tokens, in numbers of `width` bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim * tokens * width

    def bytes_a_step(self, contexts: Sequence[int], width: int = 2) -> int:
        """Bytes that a decoding step must read: each weight once, and the keys and values of every row.

        Args:
            contexts: tokens so far of each row.
            width: bytes of a number.
        """
        return width * (self.body + self.embedding) + self.cache_bytes(sum(contexts), width)

    def update_flops(self, lengths: Sequence[int], trained: int) -> float:
        """Operations of a forward and a backward pass over sequences, two a weight and token forward, twice that back.

        Attention counts the pairs that a causal mask leaves. The output layer counts for the trained tokens alone.
        Recomputed activations do not count.

        Args:
            lengths: tokens of each sequence.
            trained: tokens whose log-probs are asked for.
        """
        pairs = sum(length * (length + 1) / 2 for length in lengths)
        attention = 4 * self.layers * self.heads * self.head_dim * pairs
        return 3 * (2 * self.body * sum(lengths) + 2 * self.embedding * trained + attention)


SHAPES = {
    "0.6B": Shape(1024, 3072),
    "1.7B": Shape(2048, 6144),
    "8B": Shape(4096, 12288, layers=36, heads=32, tied=False),
    "tiny": Shape(64, 128, layers=2, heads=4, kv_heads=2, head_dim=16, vocabulary=512),
}


def untrained(shape: Shape, *, dtype: str = "bfloat16", device: str = "cpu", seed: int = 0) -> Policy:
    """A policy of this shape; the same seed gives the same weights on the same kind of device."""
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.feed_forward,
        max_position_embeddings=40_960,
        tie_word_embeddings=shape.tied,
        eos_token_id=0,
        bos_token_id=None,
    )
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    return Policy(model.eval(), numbered_words(shape.vocabulary))


def numbered_words(vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer with a word a token, `w1` to `w<vocabulary - 1>`; token 0 ends a message, other words are `w1`."""
    words = {"<end>": 0} | {f"w{number}": number for number in range(1, vocabulary)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w1"))
    tokenizer.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>", unk_token="w1")
