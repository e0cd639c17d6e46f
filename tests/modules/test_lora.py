"""LoRA: what trains, what is saved, what comes out."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

from common.errors import ConfigError
from datamodules.batches import Batches
from envs.packing import PackedSequence, SequenceBatch, collate
from envs.protocols.prorag import TAGS
from modules.lora import LoRA, adapters_disabled
from modules.optimizer import AdamW
from modules.policy import Policy, load_policy
from modules.sft import SFT
from tests.tiny import byte_tokenizer, tiny_policy
from tests.toy_training import quiet_trainer

IDS = torch.arange(40).reshape(2, 20) % 30


class Rows(LightningDataModule):
    """Eight sequences, all trained."""

    def train_dataloader(self) -> Batches[PackedSequence, SequenceBatch]:
        assert self.trainer is not None
        trainer = self.trainer
        rows = [((240 + torch.arange(12) * (3 + i)) % 268).int() for i in range(8)]  # tags among them
        ones, steps, zeros = torch.ones(12, dtype=torch.bool), torch.zeros(12, dtype=torch.int16), torch.zeros(12)
        packed = [PackedSequence(row, ones, steps, zeros) for row in rows]
        return Batches(packed, collate, batch_size=4, seed=0, epoch=lambda: trainer.current_epoch)


def policy(*, tied: bool, tags: Sequence[str] = TAGS, spare: int = 0) -> Policy:
    made = tiny_policy(byte_tokenizer(tags))
    if spare:
        made.model.resize_token_embeddings(len(made.tokenizer) + spare)
    if tied:
        made.model.config.tie_word_embeddings = True
        torch.manual_seed(0)
        made = Policy(Qwen3ForCausalLM(made.model.config).eval(), made.tokenizer)
    return made


def trained(
    folder: Path,
    lora: LoRA | None,
    *,
    tied: bool = False,
    epochs: int = 2,
    start: Policy | None = None,
    **settings: object,
) -> SFT:
    seed_everything(1, verbose=False)
    module = SFT(start or policy(tied=tied), AdamW(1e-2, floor=1.0), lora=lora, **settings)  # pyright: ignore
    checkpoint = ModelCheckpoint(folder, filename="last", enable_version_counter=False)
    trainer = quiet_trainer(max_epochs=epochs, enable_checkpointing=True, callbacks=[checkpoint])
    last = folder / "last.ckpt"
    trainer.fit(module, datamodule=Rows(), ckpt_path=last if last.exists() else None)
    module.export(folder)
    return module


@pytest.mark.parametrize("tied", [False, True])
def test_it_begins_as_no_change_and_its_export_is_the_model_with_the_adapters(tmp_path: Path, tied: bool) -> None:
    plain = policy(tied=tied).model(input_ids=IDS).logits
    began = policy(tied=tied)
    LoRA(r=4).apply(began)
    assert torch.equal(began.model(input_ids=IDS).logits, plain)
    module = trained(tmp_path, LoRA(r=4), tied=tied)
    with torch.no_grad():
        adapted = module.model.eval()(input_ids=IDS).logits
        merged = load_policy(str(tmp_path / "model"), device="cpu").model(input_ids=IDS).logits
    assert (adapted - plain).abs().max() > 0.05
    assert (adapted - merged).abs().max() < 1e-5


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("trainable_tokens", [False, True])
@pytest.mark.parametrize("word", ["", "Doc"])  # no special token, so its row never trains
@pytest.mark.parametrize("spare", [0, 40])  # rows of the base beyond its tokens: none of the new ones needs another
def test_a_format_s_new_tokens_are_in_the_export_and_in_the_adapter(
    tmp_path: Path, tied: bool, trainable_tokens: bool, word: str, spare: int
) -> None:
    policy(tied=tied, tags=(), spare=spare).save(tmp_path / "base")
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([word] if word else [])
    tokenizer.save_pretrained(str(tmp_path / "tagged"))
    start = load_policy(str(tmp_path / "base"), tokenizer=tmp_path / "tagged", device="cpu")
    ids = torch.arange(240, len(tokenizer))[None]
    began = start.model(input_ids=ids).logits
    module = trained(tmp_path, LoRA(r=4, trainable_tokens=trainable_tokens), start=start, epochs=1)
    adapted = load_policy(str(tmp_path / "base"), adapter=tmp_path / "adapter", device="cpu").model
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    with torch.no_grad():
        wanted = module.model.eval()(input_ids=ids).logits
        assert torch.equal(adapted(input_ids=ids).logits, wanted)
        assert (plain(input_ids=ids).logits - wanted).abs().max() < 1e-5
    assert (wanted - began).abs().max() > 0.01
    assert plain.config.tie_word_embeddings == tied == (plain.lm_head.weight is plain.model.embed_tokens.weight)
    written = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    tables = [name for name in written if "embed_tokens" in name or "lm_head" in name]
    rows, whole = int(trainable_tokens), int(bool(word) or not trainable_tokens)
    assert len(tables) == (rows + whole) * (1 if tied else 2), "a tied table is there once; a table only where needed"


def test_a_checkpoint_s_two_tables_stay_two_though_its_config_says_that_they_are_tied(tmp_path: Path) -> None:
    policy(tied=True).save(tmp_path / "base")
    file = tmp_path / "base" / "model.safetensors"
    weights = load_file(file)
    save_file(weights | {"lm_head.weight": 0.1 - weights["model.embed_tokens.weight"]}, file, metadata={"format": "pt"})
    for lora in (None, LoRA(r=2)):
        start = load_policy(str(tmp_path / "base"), device="cpu")
        module = trained(tmp_path / f"{lora is None}", lora, start=start, epochs=1)
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / f"{lora is None}" / "model").eval()
        with torch.no_grad():
            gap = module.model.eval()(input_ids=IDS).logits - plain(input_ids=IDS).logits
        assert gap.abs().max() < 1e-5
        assert not plain.config.tie_word_embeddings


@pytest.mark.parametrize(
    ("layer", "tied", "trainable_tokens", "why"),
    [
        ("lm_head", True, False, "lm_head has the embedding's weights: leave it out"),
        ("lm_head", True, True, "lm_head has the embedding's weights: leave it out"),
        ("lm_head", False, True, "trainable_tokens trains rows of lm_head already: leave either out"),
        ("embed_tokens", False, False, r"model\.embed_tokens is no linear layer but Embedding: leave it out"),
        ("qq_proj", False, True, "the model has no layer qq_proj: leave it out"),
    ],
)
def test_a_layer_that_cannot_have_adapters_is_refused(layer: str, tied: bool, trainable_tokens: bool, why: str) -> None:
    lora = LoRA(r=2, targets=["q_proj", layer], trainable_tokens=trainable_tokens)
    with pytest.raises(ConfigError, match=why):
        lora.apply(policy(tied=tied))


def test_an_output_layer_of_its_own_may_have_adapters(tmp_path: Path) -> None:
    module = trained(tmp_path, LoRA(r=2, targets=["lm_head"], trainable_tokens=False))
    with torch.no_grad():
        gap = module.model.eval()(input_ids=IDS).logits - load_policy(str(tmp_path / "model")).model(IDS).logits
    assert gap.abs().max() < 1e-5


@pytest.mark.parametrize("tied", [False, True])
def test_nothing_of_what_was_trained_on_bfloat16_weights_is_rounded_away(tmp_path: Path, tied: bool) -> None:
    policy(tied=tied).save(tmp_path / "base")
    start = load_policy(str(tmp_path / "base"), dtype="bfloat16", device="cpu")
    module = trained(tmp_path, LoRA(r=4, trainable_tokens=False), start=start)
    adapted = load_policy(str(tmp_path / "base"), adapter=tmp_path / "adapter", dtype="bfloat16", device="cpu")
    with torch.no_grad():
        assert torch.equal(adapted.model(input_ids=IDS).logits, module.model.eval()(input_ids=IDS).logits)
    name, state = "model.layers.0.self_attn.q_proj", module.model.state_dict()
    update = 8.0 * state[f"{name}.lora_B.default.weight"] @ state[f"{name}.lora_A.default.weight"]
    after = load_policy(str(tmp_path / "model"), device="cpu").model.state_dict()[f"{name}.weight"]
    assert torch.equal(after, state[f"{name}.base_layer.weight"].float() + update)
    assert not torch.equal(after.bfloat16().float(), after)


def test_an_adapter_s_bytes_are_the_same_again(tmp_path: Path) -> None:
    for name in ("one", "two"):
        trained(tmp_path / name, LoRA(r=2))
    files = [sorted((tmp_path / name / "adapter").iterdir()) for name in ("one", "two")]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]
    targets = json.loads((tmp_path / "one" / "adapter" / "adapter_config.json").read_text())["target_modules"]
    assert targets == sorted(targets)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("trainable_tokens", [False, True])
def test_of_the_tables_only_the_tags_rows_train(tmp_path: Path, tied: bool, trainable_tokens: bool) -> None:
    module = trained(tmp_path, LoRA(r=4, trainable_tokens=trainable_tokens), tied=tied)
    before, after = policy(tied=tied).model, load_policy(str(tmp_path / "model"), device="cpu").model
    tags = sorted(module.policy.tokenizer.all_special_ids)
    for table in ("get_input_embeddings", "get_output_embeddings"):
        old, new = getattr(before, table)().weight, getattr(after, table)().weight
        changed = (old != new).any(dim=1).nonzero().squeeze(-1).tolist()
        assert set(changed) <= set(tags)
        assert bool(changed) == trainable_tokens


def test_only_the_named_layers_change(tmp_path: Path) -> None:
    trained(tmp_path, LoRA(r=4, targets=["q_proj"], trainable_tokens=False), epochs=1)
    before, after = policy(tied=False).model.state_dict(), load_policy(str(tmp_path / "model"), device="cpu").model
    changed = [name for name, value in after.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == [f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 1)]


@pytest.mark.parametrize("settings", [{"r": 0}, {"alpha": 0.0}, {"dropout": 1.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="r must be at least 1, alpha above 0, dropout in"):
        LoRA(**settings)


def test_a_resumed_run_ends_in_the_bytes_of_an_unbroken_one_with_dropout_too(tmp_path: Path) -> None:
    lora = LoRA(r=4, dropout=0.3)
    trained(tmp_path / "whole", lora, epochs=3)
    trained(tmp_path / "broken", lora, epochs=1)
    saved = torch.load(tmp_path / "broken" / "last.ckpt")["state_dict"]
    assert all("lora_" in name or "trainable_tokens_delta" in name for name in saved)
    torch.manual_seed(7)  # whatever the generator did in between
    trained(tmp_path / "broken", lora, epochs=3)
    one, two = (tmp_path / name / "model" / "model.safetensors" for name in ("whole", "broken"))
    assert one.read_bytes() == two.read_bytes()


def test_activations_computed_again_change_nothing(tmp_path: Path) -> None:
    trained(tmp_path / "a", LoRA(r=4))
    trained(tmp_path / "b", LoRA(r=4), gradient_checkpointing=True)
    one, two = (load_policy(str(tmp_path / name / "model"), device="cpu").model(input_ids=IDS).logits for name in "ab")
    assert (one - two).abs().max() < 1e-5


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_its_adapters_disabled_a_model_is_its_base_to_the_bit(tied: bool, dtype: torch.dtype) -> None:
    began = policy(tied=tied)
    began.model.to(dtype)  # pyright: ignore[reportArgumentType]
    for layer in began.model.model.layers:
        layer.self_attn.attention_dropout = 0.5  # of a model in training mode alone
    base = copy.deepcopy(began.model)
    LoRA(r=4, dropout=0.5).apply(began)
    with torch.no_grad():
        for name, parameter in began.model.named_parameters():
            if parameter.requires_grad:
                parameter.add_(torch.ones_like(parameter) if "tokens_delta" in name else 0.1)
    began.model.train()
    trains = [name for name, parameter in began.model.named_parameters() if parameter.requires_grad]
    with torch.no_grad():
        with adapters_disabled(began.model):
            disabled = began.model(input_ids=IDS).logits
        assert torch.equal(disabled, base(input_ids=IDS).logits)
        assert not torch.equal(began.model(input_ids=IDS).logits, disabled), "they are enabled again"
    assert began.model.training
    assert trains == [name for name, parameter in began.model.named_parameters() if parameter.requires_grad]


def test_autocast_casts_the_input_of_an_adapter_once() -> None:
    """PEFT makes a float32 copy of it, which autocast rounds to the same bfloat16 numbers again."""
    LoRA().apply(adapted := policy(tied=False))
    layer: Any = adapted.model.model.layers[0].mlp.up_proj
    torch.nn.init.normal_(layer.lora_B["default"].weight)
    x, seen = torch.randn(3, layer.in_features).bfloat16(), list[torch.dtype]()
    layer.lora_A["default"].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        once = layer(x)
        del vars(layer)["_cast_input_dtype"]
        assert layer(x).equal(once)
    LoRA().apply(plain := policy(tied=False))
    of_float32: Any = plain.model.model.layers[0].mlp.up_proj
    assert of_float32(torch.randn(3, layer.in_features)).dtype == torch.float32
    assert seen == [torch.bfloat16, torch.float32]


def test_adapters_are_enabled_again_after_an_error() -> None:
    began = policy(tied=False)
    LoRA(r=4).apply(began)
    layers = [module for module in began.model.modules() if isinstance(module, LoraLayer)]

    def fail() -> None:
        with adapters_disabled(began.model):
            assert {layer.disable_adapters for layer in layers} == {True}
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not any(layer.disable_adapters for layer in layers)


@pytest.mark.parametrize("tied", [False, True])
def test_a_policy_with_adapters_is_not_written_under_names_that_no_model_has_and_gets_no_others(
    tmp_path: Path, tied: bool
) -> None:
    module = trained(tmp_path, LoRA(r=2), tied=tied, epochs=1)
    policy(tied=tied).save(tmp_path / "base")
    loaded = load_policy(str(tmp_path / "base"), adapter=tmp_path / "adapter", device="cpu")
    for adapted in (module.policy, loaded):
        with pytest.raises(ConfigError, match="the policy has adapters: write it by export_policy"):
            adapted.save(tmp_path / "again")
    with pytest.raises(ConfigError, match="has adapters already, which new ones would replace"):
        LoRA(r=2).apply(loaded)
    with pytest.raises(ConfigError, match="loss: no weight trains; a policy that was loaded with an `adapter` is froz"):
        trained(tmp_path / "again", None, start=loaded)
