"""A random BERT of two layers over a few words, as an encoder or a cross-encoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast


def save_tiny_bert(folder: Path, words: Sequence[str], kind: Any = BertModel, **settings: Any) -> str:
    """Write model and tokenizer to a folder; returns its path."""
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    sizes |= {"max_position_embeddings": 256} | settings
    config = BertConfig(vocab_size=len(vocabulary), **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        kind(config).save_pretrained(folder)
    return str(folder)
