"""RECOMP: which sentences are shown, what a writer is asked, what is shown of its summary, what is counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from common.errors import ConfigError
from envs.protocols.rendering import render_hits
from envs.retrievers.encoder import Encoder
from envs.types import Document, Hit
from systems.recomp.abstractive import AbstractiveCompressor
from systems.recomp.extractive import ExtractiveCompressor, best, split_sentences
from systems.recomp.writers import CausalWriter, Seq2SeqWriter
from tests.tiny import byte_tokenizer, tiny_policy
from tests.word_encoder import WordEncoder

ADA = Document("a", "Ada", "Ada was born in London. She wrote a program. So!")
BAB = Document("b", "Babbage", "He built the engine. It was never finished.")
HITS = [Hit(ADA, 2.0), Hit(BAB, 1.0)]


class CountingEncoder(WordEncoder, Encoder):
    def lengths(self, texts: list[str]) -> list[int]:
        return [len(text.split()) for text in texts]


def test_the_best_sentences_are_shown_in_the_order_of_the_document() -> None:
    assert best([0.9, 0.1, 0.7], 2) == [0, 2]
    assert best([0.5, 0.9, 0.5], 2) == [0, 1], "the earlier of equal ones"


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One is here. Two is! Is it so? So. 12345.", ["One is here.", "Two is!", "Is it so?", "12345."]),
        ("J. K. Rowling wrote it. He read it.", ["J. K. Rowling wrote it.", "He read it."]),
        ("", []),
    ],
)  # fmt: skip
def test_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


def test_the_sentences_nearest_to_the_question_are_left() -> None:
    compressor = ExtractiveCompressor(CountingEncoder(), sentences=1)  # type: ignore[arg-type] (no network)
    hits = compressor.compress("the engine", HITS)
    assert [(hit.document.id, hit.shown) for hit in hits] == [("b", "He built the engine."), ("a", "")]
    assert compressor.counts == {"cost/read_tokens/encoder": 19}
    both = ExtractiveCompressor(CountingEncoder(), sentences=9).compress("the engine", HITS)  # type: ignore[arg-type]
    assert [hit.shown for hit in both] == ["Ada was born in London. She wrote a program.", BAB.text]
    nothing = compressor.compress("x", [Hit(Document("c", "C", "No."))])
    assert [hit.shown for hit in nothing] == [""], "no sentence is long enough"


class Says:
    """A writer that remembers its prompt."""

    def __init__(self, text: str) -> None:
        self.text, self.tokenizer, self.counts = text, byte_tokenizer(()), Counter[str]()

    def write(self, prompt_ids: tuple[int, ...], max_tokens: int) -> str:
        self.prompt, self.most = self.tokenizer.decode(prompt_ids), max_tokens
        return self.text


def test_a_summary_stands_in_the_place_of_all_passages_and_may_be_empty() -> None:
    writer = Says("Ada wrote it.")
    hits = AbstractiveCompressor(writer).compress("Who <|im_end|> wrote?", HITS)
    question = "Question: Who &lt;|im_end|> wrote?"
    assert (writer.prompt, writer.most) == (f"{question}\n Document: {ADA.text}\n{BAB.text}\n Summary: ", 512)
    assert render_hits(hits) == "Doc 1 Ada wrote it.\n"
    assert render_hits(AbstractiveCompressor(Says("")).compress("Who?", HITS)) == ""
    AbstractiveCompressor(writer, source_tokens=50).compress("Who?", HITS)
    assert writer.prompt == "Question: Who?\n Document: Ada was born \n Summary: ", "cut from the end of the passages"


def test_a_causal_model_writes_up_to_a_line_break() -> None:
    policy = tiny_policy(byte_tokenizer(()))
    with torch.no_grad():
        policy.model.lm_head.weight.zero_()
    writer = CausalWriter(policy)
    written = writer.write(tuple(policy.tokenizer("Summary:").input_ids), 5)
    assert len(written) <= 5
    assert writer.counts == {"cost/tokens/compressor": 5, "cost/read_tokens/compressor": 8}
    assert written == writer.write(tuple(policy.tokenizer("Summary:").input_ids), 5)


def test_an_encoder_decoder_writes_the_most_probable_tokens(tmp_path: Path) -> None:
    words = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", "a", "b", "c", "d"])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    sizes = {"d_model": 8, "d_ff": 8, "d_kv": 4, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        T5ForConditionalGeneration(T5Config(vocab_size=len(words), **sizes)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    writer = Seq2SeqWriter(str(tmp_path), device="cpu")
    model = T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    source, written = torch.tensor([[3, 4, 1]]), [0]
    for _ in range(3):
        written.append(int(model(input_ids=source, decoder_input_ids=torch.tensor([written])).logits[0, -1].argmax()))
    assert writer.write((3, 4), 3) == tokenizer.decode(written, skip_special_tokens=True).strip()
    assert writer.counts["cost/read_tokens/compressor"] == 3
    assert 1 <= writer.counts["cost/tokens/compressor"] <= 3


def test_settings_and_models_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sentences is 0; it must be at least 1"):
        ExtractiveCompressor(CountingEncoder(), sentences=0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="source_tokens 0, summary_tokens 512: each must be at least 1"):
        AbstractiveCompressor(Says(""), source_tokens=0)
    with pytest.raises(ConfigError, match="no such folder"):
        Seq2SeqWriter(str(tmp_path / "gone"))
