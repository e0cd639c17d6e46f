"""Small real pieces for tests: a byte-level tokenizer with ChatML and tags, a tiny policy, scripted generators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from envs.interfaces import Sampler
from envs.protocols.prorag import TAGS
from envs.requests import Request
from envs.types import Document, Episode, Hit, Question, Turn
from modules.policy import Policy

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


THINKING_TEMPLATE = CHAT_TEMPLATE.replace("assistant\n", "assistant\n<think>\n")


def byte_tokenizer(tags: Sequence[str] = TAGS, merges: Sequence[tuple[str, str]] = ()) -> PreTrainedTokenizerFast:
    """One token a byte, so any text survives; `tags`, `<|im_start|>` and `<|im_end|>` are special tokens.

    `merges` adds tokens of several bytes, in the byte-level alphabet: `("Ġ", "b")` is a space and a b.
    """
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges)]
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", *tags]})
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_policy(tokenizer: PreTrainedTokenizerFast, seed: int = 0, scale: float = 1.0) -> Policy:
    """A two-layer random Qwen3 with grouped queries; a larger `scale` of the head makes it surer of itself."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=64,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(scale)
    return Policy(model, tokenizer)


class Scripted(Sampler):
    """A sampler that says what `script(episode)` returns, ending with the stop tag it contains."""

    def __init__(self, codec_ids: Callable[[str], Sequence[int]], script: Callable[[Episode], str]) -> None:
        super().__init__()
        self.codec_ids, self.script = codec_ids, script
        self.finished: set[str] = set()

    def take(self, request: Request) -> Turn:
        text = self.script(request.episode)
        ids = request.forced_ids or tuple(self.codec_ids(text))[: request.max_tokens]
        turn = request.turn(ids, [-0.5] * len(ids), "stop" if len(ids) < (request.max_tokens or 0) else "length", text)
        turn.uid = f"{request.episode.question.id}/{len(request.episode.turns)}"
        return turn

    def release(self, episodes: Sequence[Episode]) -> None:
        super().release(episodes)
        self.finished |= {f"{e.question.id}/{e.sample}" for e in episodes}


class FixedRetriever:
    """Returns the same documents for every query and remembers the queries."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = documents
        self.queries: list[str] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.queries += queries
        return [[Hit(document, 1.0) for document in self.documents[:k]] for _ in queries]


def question(text: str = "Who wrote it?", answer: str = "Ada", identity: str = "q1") -> Question:
    return Question(identity, text, (answer,))
