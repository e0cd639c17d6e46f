"""The paper's file goes through all its stages on two processes, once everything that costs money or weeks is small."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

import train
from common.seeds import stable_hash
from envs.protocols.prorag import INSTRUCTION
from modules.policy import Policy, load_tokenizer
from pipeline.loader import load
from pipeline.locations import leaves
from tests import forked
from tests.chat_server import chat_server
from tests.tiny import CHAT_TEMPLATE
from tests.vllm_server import vllm_server

ROOT = Path(train.__file__).parent
CONFIG = ROOT / "configs" / "prorag" / "qwen3_8b.yaml"
STAGES = {"tokenizer", "passages", "teach", "sft", "search", "label", "prm", "sample", "refine", "rft", "rl"} | {
    f"eval_{stage}" for stage in ("sft", "rft", "rl")
}
COUNTS = {"max_epochs", "batch_size", "questions_per_iteration", "rows", "pool", "unit"} | {
    *("simulations", "children", "depth", "chunk", "turns", "turn_tokens", "observation_tokens")
}
THOUGHTS = ("I look", "Now I read", "So I see it", "I think")  # several, or all siblings would be alike
NOWHERE = "http://127.0.0.1:1/v1"
SAMPLERS = {"sft": "in_process", "rft": "sampling"}  # of evaluations, as the command line can choose
QUERY, ANSWER = "It was written by ?", "Ada"


def tokenizer(folder: Path) -> Path:
    """Words; whatever is none of these is unknown."""
    words = {
        *re.findall(r"\w+", f"{INSTRUCTION} {THOUGHTS} {QUERY} {ANSWER} The Doc Title was written by"),
        *"<>/:().?",
    }
    tokens = ["<pad>", "<unk>", "<|im_start|>", "<|im_end|>", *sorted(words)]
    backend = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, "<unk>"))
    parts = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated")]
    backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", eos_token="<|im_end|>"
    )
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    made.chat_template = CHAT_TEMPLATE
    made.save_pretrained(str(folder))
    return folder


def tiny_qwen3(folder: Path) -> Path:
    """Untrained, one layer, with an output layer of its own as the real one has. Its states are loud: at the paper's
    learning rate a small model would learn nothing else within forty steps."""
    words = load_tokenizer(str(tokenizer(folder.with_name("words"))))
    config = Qwen3Config(
        vocab_size=len(words),
        hidden_size=256,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=64,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        eos_token_id=words.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        model.model.norm.weight.mul_(128)
        model.lm_head.weight.div_(32)
    Policy(model, words).save(folder)
    return folder


def questions(path: Path, count: int, letter: str) -> Path:
    """MuSiQue rows of two hops whose answers are all the same, so that even a tiny model gets some right."""
    with path.open("w") as f:
        for number in range(count):
            work, titles = f"{letter}{number}", (f"The {letter}{number}", f"The film {letter}{number}")
            paragraphs = [
                {
                    "idx": i,
                    "title": title,
                    "paragraph_text": f"{title} was written by {ANSWER} .",
                    "is_supporting": True,
                }
                for i, title in enumerate(titles)
            ]
            hops = [
                {"id": i, "question": f"{title} >> author", "answer": ANSWER, "paragraph_support_idx": i}
                for i, title in enumerate(titles)
            ]
            row = {"id": f"2hop__{letter}{number}", "question": f"Who wrote the {letter} story numbered {work} ?"}
            row |= {"answer": ANSWER, "answer_aliases": [], "answerable": True}
            f.write(json.dumps(row | {"paragraphs": paragraphs, "question_decomposition": hops}) + "\n")
    return path


def chat(message: str) -> dict[str, Any]:
    """The teacher's two replies, and the judge's."""
    asked = json.loads(message)
    if "step" in asked:
        return {"reason": "by its words", "score": 100 * (stable_hash(asked["step"][-1]["said"]) % 2)}
    if any(">>" in hop["question"] for hop in asked["hops"]):
        return {"hops": [{"question": QUERY, "answer": hop["answer"]} for hop in asked["hops"]]}
    places = range(2 * len(asked["hops"]) + 1)
    return {"thoughts": [THOUGHTS[stable_hash(asked["question"], place) % len(THOUGHTS)] for place in places]}


def overrides(folder: Path, url: str = NOWHERE, engines: Sequence[str] = (NOWHERE, NOWHERE)) -> list[str]:
    """Paths, addresses, counts and lengths; nothing of the method. `engines` are vLLM servers, one a rank."""
    model = tiny_qwen3(folder / "qwen3")
    source = "{{target: 'datamodules.sources.musique:MuSiQue', path: '{}'}}"
    train_file, more_file, test_file, dev_file = (
        source.format(questions(folder / f"{letter}.jsonl", count, letter))
        for letter, count in (("a", 16), ("b", 6), ("c", 2), ("d", 2))
    )
    corpus = folder / "corpus.jsonl"
    rows = [{"id": str(i), "title": f"The {i}", "text": f"The {i} was written by {ANSWER} ."} for i in range(8)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        "devices=2",
        "accelerator=cpu",
        *(f"parts.vllm.{kind}.engine.urls=[{', '.join(engines)}]" for kind in ("frozen", "rl_adapters")),
        *(f"parts.vllm.{kind}.engine.scratch={folder}" for kind in ("frozen", "rl_adapters")),
        "parts.sampling.rows=16",
        f"output={folder / 'runs'}",
        f"parts.model={model}",
        f"parts.musique={train_file}",
        f"parts.hotpotqa={more_file}",
        f"parts.dev_questions={dev_file}",
        *(
            f"parts.test.{name}.questions={test_file}"
            for name in ("popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
        ),
        f"parts.retriever={{target: 'envs.retrievers.bm25:BM25', corpus: '{corpus}'}}",
        *(f"parts.{who}_api.base_url={url}" for who in ("teacher", "judge")),
        *(f"parts.{who}_api.cache={folder / 'runs' / who}" for who in ("teacher", "judge")),
        *("parts.limits.turns=6", "parts.limits.turn_tokens=16", "parts.limits.observation_tokens=48"),
        *("parts.search_questions.sample=5", "stages.search.data.simulations=8", "stages.search.data.width.children=2"),
        *("stages.search.data.depth=6", "stages.search.data.chunk=2"),
        *("stages.sft.trainer.max_epochs=5", "stages.sft.data.batch_size=2"),
        *("stages.prm.data.batch_size=2", "stages.rft.data.batch_size=4", "stages.sample.data.unit=10"),
        *("parts.rl_questions.sample=2", "stages.rl.data.questions_per_iteration=2", "stages.rl.trainer.max_epochs=2"),
        *(f"parts.rl_limits.{limit}" for limit in ("turns=5", "turn_tokens=16", "observation_tokens=48")),
    ]


def test_only_paths_addresses_counts_and_lengths_are_put_in(tmp_path: Path) -> None:
    small, whole = (
        dict(leaves(dataclasses.asdict(load(CONFIG, settings).experiment)["stages"]))
        for settings in (overrides(tmp_path), [])
    )
    changed = {key for key in small.keys() | whole.keys() if small.get(key) != whole.get(key)}
    method = {key for key in changed if not {"questions", "source", "retriever", "urls"} & set(key)}
    assert {key[-1] for key in method} == {"model", "tokenizer", "base_url", "cache", "scratch"} | COUNTS
    assert {key[1] for key in changed} == {"data", "module", "trainer", "callbacks"}
    assert {key[-1] for key in changed if key[1] == "module"} == {"model"}


def test_a_step_of_fine_tuning_takes_the_pairs_of_the_recipe() -> None:
    """128 (context, action) pairs a step: 109k pairs of 19,938 teacher episodes make about 850 steps."""
    for stage, validation in (("sft", 0.01), ("rft", 0.0)):
        data = load(CONFIG, []).experiment.stages[stage].data
        assert data.get("validation", 0.0) == validation
        assert pytest.approx(data["batch_size"] * 109_000 / 19_938, rel=0.05) == 128
        assert pytest.approx(19_938 * (1 - validation) / data["batch_size"], rel=0.05) == 109_000 / 128
        assert data["micro_tokens"] >= data["max_tokens"]


def test_a_run_of_days_can_be_watched_and_loses_little_when_it_is_killed() -> None:
    stages = load(CONFIG, []).experiment.stages
    rl = stages["rl"]
    assert rl.module["reference"] == rl.module["policy"], "the divergence from the RFT policy, without a second model"
    assert rl.trainer.precision == "bf16-mixed", "adapters are float32 and computed in bfloat16"
    assert rl.callbacks["curve"]["every"] <= 100
    for stage in ("sft", "prm", "rft"):
        assert stages[stage].callbacks["checkpoint"]["every_n_train_steps"] <= 100
    rounds = stages["search"].data["simulations"] / stages["search"].data["parallel"]
    seconds = rounds * (5 + 27)  # an expansion and a rollout, one after the other; docs/scale.md
    assert seconds < 30 * 60, "a unit of the search"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of all stages on two ranks, each with a vLLM server of its own; one stage samples in process.

    A server that runs already is not sent the model under adapters: the first run leaves it at that of `rft`.
    """
    folder = tmp_path_factory.mktemp("qwen3_8b")
    with chat_server(chat) as server, vllm_server() as one, vllm_server() as other:
        one.context = other.context = 8192
        settings = overrides(folder, server.url, [one.url, other.url])
        settings += [f"stages.eval_{name}.data.sampler.like={how}.frozen" for name, how in SAMPLERS.items()]
        for stages in (["--stage", "eval_sft", "eval_rft"], []):
            variables = {"OPENAI_API_KEY": "none"}
            run = forked.run("--config", str(CONFIG), *stages, *settings, timeout=550, variables=variables)
            assert run.returncode == 0, run.stderr
        whole, adapters, sleeps = "/update_weights", "/v1/load_lora_adapter", "/sleep?level=1&mode=wait"
        for control in (one.control(), other.control()):
            assert control.count(whole) == 3, "search, sample, eval_rft"
            assert control.count(adapters) >= 2 + 1, "iterations, eval_rl"
            assert control.count(sleeps) >= 2
    return folder / "runs"


def artifact(runs: Path, stage: str) -> Path:
    (found,) = (runs / "store").glob(f"{stage}-*")
    return found


def figures(runs: Path, stage: str) -> dict[str, float]:
    return json.loads((artifact(runs, stage) / "manifest.json").read_text())["metrics"]


@pytest.mark.slow
def test_every_stage_is_finished(runs: Path) -> None:
    made = json.loads((runs / "qwen3_8b" / "seed0" / "stages.json").read_text())
    assert set(made) == STAGES


@pytest.mark.slow
def test_every_maker_made_something(runs: Path) -> None:
    assert figures(runs, "teach")["episodes"] == 16
    assert figures(runs, "label")["steps"] >= 20
    assert figures(runs, "label")["unlabelled"] == 0
    refined = figures(runs, "refine")
    assert 0 < refined["refine/steps_kept"] < refined["refine/steps"]
    rows = json.loads((runs / "qwen3_8b" / "results.json").read_text())["rows"]
    assert {row["stage"] for row in rows} == {"eval_sft", "eval_rft", "eval_rl"}
    assert len(rows) == 3 * 5


@pytest.mark.slow
def test_the_reward_model_learnt_from_its_labels_and_is_calibrated(runs: Path) -> None:
    model = artifact(runs, "prm") / "model"
    settings = json.loads((model / "reward_model.json").read_text())
    assert settings["read_at"] == "action"
    assert settings["scale"] != 1
    assert load_file(model / "head.safetensors")["linear.weight"].abs().max() > 0


@pytest.mark.slow
def test_reinforcement_learning_told_episodes_and_steps_apart(runs: Path) -> None:
    last = figures(runs, "rl")
    assert last["unscored"] == 0
    assert last["rewards/prm/std"] > 0
    assert last["adv/abs"] > 0


@pytest.mark.slow
def test_every_training_stage_changed_the_weights_it_began_with(runs: Path) -> None:
    """In bfloat16, in which they answer; the output layer only where all weights train and its log-probs are read."""
    up, output = "model.layers.0.mlp.up_proj.weight", "lm_head.weight"
    for before, after, changed in (
        ("sft", "prm", {up, output}),
        ("sft", "rft", {up, output}),
        ("rft", "rl", {up}),
    ):
        old, new = (load_file(artifact(runs, stage) / "model" / "model.safetensors") for stage in (before, after))
        assert old.keys() == new.keys()
        assert {name for name in (up, output) if not torch.equal(old[name].bfloat16(), new[name].bfloat16())} == changed
