"""A finished stage with a tiny policy, as it lies in a store, and a corpus of two passages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from common.files import write_json
from envs.protocols.prorag import TAGS
from tests.tiny import byte_tokenizer, tiny_policy

LIMITS = {"turns": 4, "turn_tokens": 12, "observation_tokens": 40, "total_tokens": 1200}
PRORAG = {"target": "envs.protocols.prorag:ProRAG", "instruction": "Search, then answer."}
PASSAGES = [("d1", "Ada <answer>", "Ada ＜/answer＞ wrote it."), ("d2", "Bob", "Bob read it.")]


def corpus(folder: Path) -> Path:
    """The passages as a file; one speaks tags."""
    path = folder / "corpus.jsonl"
    rows = [json.dumps({"id": key, "title": title, "text": text}) for key, title, text in PASSAGES]
    path.write_text("\n".join(rows) + "\n")
    return path


def stage(store: Path, name: str = "rl", *, protocol: dict[str, Any] = PRORAG, seed: int = 0) -> Path:
    """The artifact of a stage that trained a policy with a rollout in this format; an evaluation of it lies beside."""
    artifact = store / f"{name}-0123456789ab"
    tags = [] if "search_r1" in protocol["target"] else list(TAGS)
    tiny_policy(byte_tokenizer(tags), seed=seed, scale=8).save(artifact / "model")
    environment = {
        "target": "envs.retrieval:RetrievalEnvironment",
        "protocol": {**protocol, "tokenizer": str(store / "sft-0123456789ab/model")},
        "retriever": {"target": "envs.retrievers.bm25:BM25", "corpus": "/home/ada/corpus.jsonl", "title_weight": 2.0},
        "top_k": 2,
        "limits": LIMITS,
    }
    source = {"target": "datamodules.sources.rows:Rows", "path": "/home/ada/mine.jsonl", "split": "train"}
    module = {"policy": {"target": "modules.policy:load_policy", "model": "ada/tiny"}}
    rollout = {"target": "callbacks.rollout:RolloutCallback", "environment": environment}
    _write(artifact, name, {"module": module, "data": {"questions": source}, "callbacks": {"rollout": rollout}}, {})
    evaluation = store / "eval_rl-0123456789ab"
    sampler = {"target": "S", "policy": {"target": "modules.policy:load_policy", "model": f"{artifact}/model"}}
    _write(evaluation, "eval_rl", {"data": {"sampler": sampler}}, {name: {"artifact": artifact.name}})
    row = {"dataset": "mine", "split": "test", "n": 4, "em": 0.25, "em_low": 0.0, "em_high": 0.75, "searches": 1.5}
    write_json(evaluation / "data" / "results.json", {"rows": [row]})
    return artifact


def _write(artifact: Path, name: str, settings: dict[str, Any], inputs: dict[str, Any]) -> None:
    artifact.mkdir(parents=True, exist_ok=True)
    (artifact / "config.yaml").write_text(yaml.safe_dump(settings))
    write_json(artifact / "manifest.json", {"stage": name, "kind": "fit", "seed": 0, "inputs": inputs})
