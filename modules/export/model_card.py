"""The model card of an exported folder: results with intervals, data, settings, and how to run it without the suite."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from common.manifests import load_manifest, load_record
from modules.export.agent_file import ancestry, components, read_settings, without_folders

_SUITE = Path(__file__).parents[2]
MERGED = "model = AutoModelForCausalLM.from_pretrained(folder)"
ADAPTERS = """\
from peft import PeftModel
from transformers import GenerationConfig
model = AutoModelForCausalLM.from_pretrained({base!r})
if len(tokenizer) > model.config.get_text_config().vocab_size:
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
PeftModel.from_pretrained(model, folder)  # changes the model itself
model.generation_config = GenerationConfig.from_pretrained(folder)"""
# In the order of `RetrievalEnvironment`: opening, turn, passages within the limits.
LINES = """\
import re, unicodedata
import torch, yaml
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteriaList

folder = "."  # this one; from the hub: huggingface_hub.snapshot_download("name/repository")
agent = yaml.safe_load(open(f"{{folder}}/agent.yaml", encoding="utf-8"))
tokenizer = AutoTokenizer.from_pretrained(folder)
{load}

def decode(ids):
    return tokenizer.decode(ids, clean_up_tokenization_spaces=False)

def control(text):
    return tokenizer(text, add_special_tokens=False).input_ids

def data(text):  # a question or a passage never becomes a tag
    text = re.sub(agent["escape"], "&lt;", text)
    folded = unicodedata.normalize("NFKC", text)
    text = re.sub(agent["escape"], "&lt;", folded) if re.search(agent["escape"], folded) else text
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids

def ask(question, search):  # search(query, k) gives (title, text) of k passages
    limits, (before, end, after), turns = agent["limits"], agent["passages"], []
    ids = control(agent["prompt"][0]) + data(question) + control(agent["prompt"][1])
    for turn in agent["turns"]:
        ids += control(turn["opening"])
        room = min(limits["turn_tokens"], limits["total_tokens"] - len(ids))
        if room < 1:
            break
        said = lambda output: any(end in decode(output[0, len(ids):]) for end in turn["stop"])
        ended = StoppingCriteriaList([lambda output, *_, **__: torch.tensor([said(output)], device=output.device)])
        context = torch.tensor([ids], device=model.device)
        limit = {{"max_new_tokens": room, "stopping_criteria": ended, "attention_mask": torch.ones_like(context)}}
        output = model.generate(context, do_sample=False, **limit)
        turns.append(output[0, len(ids):].tolist())
        ids += turns[-1]
        text = decode(turns[-1])
        if answer := re.search(agent["answer"], text):
            return answer[1].strip(), turns
        if query := re.search(agent["query"], text):
            found = enumerate(search(query[1].strip(), agent["top_k"]), 1)
            shown = "\\n".join(f"Doc {{n}}(Title: {{title}}) {{text}}" for n, (title, text) in found)
            most = limits["total_tokens"] - len(ids + control(before) + control(after) + control(turn["opening"])) - 1
            shown = data(shown + end)[: max(0, min(limits["observation_tokens"], most))]
            ids += control(before) + shown + control(after)
        elif agent["eos_ends"] and turns[-1][-1] in model.generation_config.eos_token_id:
            break
        else:
            ids += control(agent["otherwise"])
    return "", turns
"""
_EXAMPLE = """
print(ask("Who founded it?", lambda query, k: [("A title", "A passage about it.")] * k)[0])
"""
_FIGURES = (("em", "EM"), ("f1", "F1"), ("valid_steps", "valid steps"), ("recall", "recall"))


def model_card(artifact: Path, agent: Mapping[str, Any], *, base: str | None) -> str:
    """The text of `README.md`; `base` is what a kept adapter is loaded on."""
    manifest, settings = load_manifest(artifact), read_settings(artifact)
    name = f"{manifest.get('stage', artifact.name)}, an agent that searches"
    head = {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["rag", "prorag-suite"]}
    if (origin := base or _origin(artifact)) and not os.path.isabs(origin):
        head["base_model"] = origin
    made = ", ".join(f"{key} {str(manifest[key])[:12]}" for key in ("seed", "commit", "fingerprint") if key in manifest)
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n# {name}",
        f"Answers questions in turns: it writes queries, reads the passages that are found, and answers in the "
        f"{agent['format']} format. Made by the [ProRAG suite](https://arxiv.org/abs/2601.21912): {made}.",
        "## Results",
        _results(artifact),
        "## Run it",
        _how_to_run(agent, base),
        "## Data",
        _data(artifact),
        "## Settings",
        f"`agent.yaml` has instruction, format, stops, limits and retriever. The stage's own settings:\n\n```yaml\n"
        f"{yaml.safe_dump(without_folders(settings), sort_keys=False, allow_unicode=True)}```",
    ]
    return "\n\n".join(parts) + "\n"


def plain_lines(base: str | None) -> str:
    """The lines that run the folder in plain transformers."""
    return LINES.format(load=MERGED if base is None else ADAPTERS.format(base=base))


def _how_to_run(agent: Mapping[str, Any], base: str | None) -> str:
    suite = (
        "In the suite, with passages of your own:\n\n```\n"
        "python -m examples.chat --agent FOLDER --corpus corpus.jsonl\n"
        "python -m examples.serve --agent FOLDER --corpus corpus.jsonl\n```"
    )
    if reason := agent.get("not_plain"):
        return f"{suite}\n\nThe model loads in plain transformers. Its format needs the suite: {reason}."
    plain = f"```python\n{plain_lines(base)}{_EXAMPLE}```"
    return f"In plain transformers, greedily, token for token as the suite does:\n\n{plain}\n\n{suite}"


def _results(artifact: Path) -> str:
    """A row for each evaluation of the stage's model that lies in the same store."""
    rows = list(_evaluations(artifact))
    if not rows:
        return "No evaluation of this model is in the store that it was exported from."
    shown = [(name, title) for name, title in _FIGURES if any(row.get(name) is not None for _, row in rows)]
    lines = [["evaluation", "dataset", "split", "n", *(title for _, title in shown), "searches"]]
    lines.append(["---", "---", "---", *["--:"] * (len(lines[0]) - 3)])
    for stage, row in rows:
        searches = "–" if row.get("searches") is None else f"{row['searches']:.2f}"
        cells = [stage, row["dataset"], row["split"], row["n"], *(_figure(row, name) for name, _ in shown), searches]
        lines.append([str(cell).replace("|", "\\|") for cell in cells])
    note = "Percent, except searches a question. Brackets: 95 % bootstrap interval over questions."
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{note}"


def _figure(row: Mapping[str, Any], name: str) -> str:
    value, low, high = (row.get(f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return "–"
    return f"{100 * value:.1f}" + ("" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]")


def _evaluations(artifact: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Stage and result row of the evaluations whose sampler loads this stage's model."""
    for path in sorted(artifact.parent.glob("*/data/results.json")):
        folder = path.parent.parent
        if not (folder / "manifest.json").is_file():
            continue
        manifest = load_manifest(folder, "inputs")
        if any(used["artifact"] == artifact.name for used in manifest["inputs"].values()):
            sampler = read_settings(folder).get("data", {}).get("sampler")
            if any(f"{artifact.name}/model" in str(one.get("model")) for one in components(sampler)):
                rows = load_record(path, folder, "rows")["rows"]
                yield from ((str(manifest.get("stage", folder.name)), row) for row in rows)


def _data(artifact: Path) -> str:
    """What questions the stage, and those that it came from, were made with."""
    lines = ["| stage | questions | settings |", "| --- | --- | --- |"]
    for folder in ancestry(artifact):
        for source in components(read_settings(folder)):
            if source["target"].startswith("datamodules.sources."):
                told = {name: value for name, value in without_folders(source).items() if name != "target"}
                stage = load_manifest(folder).get("stage", folder.name)
                plain = ", ".join(f"{name} {value}" for name, value in told.items() if value is not None)
                line = f"| {stage} | {source['target'].rpartition(':')[2]} | {plain} |"
                lines += [] if line in lines else [line]
    return "\n".join(lines) if len(lines) > 2 else "The stage names no questions."


def _origin(artifact: Path) -> str:
    """The hub id that the first policy was loaded from; empty where that was a folder."""
    for folder in reversed(list(ancestry(artifact))):
        for one in components(read_settings(folder).get("module")):
            model = one.get("model")
            if one["target"] == "modules.policy:load_policy" and isinstance(model, str) and not _is_folder(model):
                return model
    return ""


def _is_folder(model: str) -> bool:
    """Whether it is no hub id, which has one slash at most."""
    local = model.startswith(("/", ".", "models/")) or model.count("/") > 1
    return local or any(Path(at, model).exists() for at in ("", _SUITE))
