from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from common.errors import ConfigError, DataError
from envs.protocols.prorag import TAGS, ProRAG
from envs.score_positions import collate_scored, scored_sequences
from envs.token_ids import fingerprint
from envs.types import Episode
from modules.reward_model import model as reward_model
from modules.reward_model.features import FeatureWeights
from modules.reward_model.model import ReadAt, RewardModel, StepHead, load_reward_model, untrained_reward_model
from tests.steps import episodes
from tests.tiny import byte_tokenizer, tiny_policy


@pytest.fixture(scope="module")
def protocol(tmp_path_factory: pytest.TempPathFactory) -> ProRAG:
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer().save_pretrained(folder)
    return ProRAG(folder, instruction="")


def model(read_at: ReadAt = "observation", kinds: list[str] | None = None) -> RewardModel:
    made = untrained_reward_model(tiny_policy(byte_tokenizer()), read_at=read_at, kinds=kinds)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in (made.head.linear.weight, *(made.head.features.buffers() if made.head.features else ())):
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return made


def until(episode: Episode, step: int) -> Episode:
    """The episode as it was when a step had just been observed."""
    return replace(episode, turns=episode.turns[: step + 1], steps=episode.steps[: step + 1], status=None)


@pytest.mark.parametrize("read_at", ["observation", "action"])
def test_one_pass_scores_what_every_prefix_alone_scores(protocol: ProRAG, read_at: ReadAt) -> None:
    scorer, whole = model(read_at, ["query", "answer"]), episodes(protocol)
    for episode, scores in zip(whole, scorer.score(whole), strict=True):
        alone = [scorer.score([until(episode, step)])[0][step] for step in range(len(episode.steps))]
        assert torch.allclose(scores, torch.stack(alone), atol=1e-4)
        assert len(scores) == 1 or scores.std() > 0.1


def test_it_does_not_score_the_ids_of_another_tokenizer(protocol: ProRAG) -> None:
    [episode, *_] = episodes(protocol)
    other = fingerprint(byte_tokenizer(TAGS[::-1]))
    assert model().score([replace(episode, tokenizer=fingerprint(byte_tokenizer()))])
    with pytest.raises(DataError, match=f"reward model, question {episode.question.id}: its token ids are those of an"):
        model().score([episode, replace(episode, tokenizer=other)])


def test_a_step_is_read_after_its_observation_or_before_it(protocol: ProRAG) -> None:
    [episode, *_] = episodes(protocol)
    blind = replace(episode, turns=[replace(turn, observation_ids=()) for turn in episode.turns[:1]])
    blind.steps = episode.steps[:1]
    for read_at, equal in (("observation", False), ("action", True)):
        scorer = model(read_at)  # type: ignore[arg-type]
        seen, unseen = (float(scorer.score([one])[0][0]) for one in (until(episode, 0), blind))
        assert (abs(seen - unseen) < 1e-4) == equal


def test_a_score_is_the_head_on_the_last_token_of_what_is_read(protocol: ProRAG) -> None:
    """The model run by hand on everything up to that token, without the batches that place it."""
    for read_at in ("action", "observation"):
        scorer = model(read_at)
        for episode in episodes(protocol)[:2]:
            ids: list[int] = list(episode.prompt_ids)
            [scores] = scorer.score([episode])
            for step, turn in enumerate(episode.turns):
                ids += [*turn.opening_ids, *turn.action_ids]
                seen = ids if read_at == "action" else [*ids, *turn.observation_ids]
                with torch.no_grad():
                    states = scorer.policy.model(input_ids=torch.tensor([seen]), output_hidden_states=True)
                    expected = scorer.head.linear(states.hidden_states[-1][0, -1]).squeeze()
                assert scores[step] == pytest.approx(float(expected), abs=1e-5)
                ids += turn.observation_ids


@pytest.mark.parametrize("read_at", ["observation", "action"])
@pytest.mark.parametrize("kinds", [None, ["query", "answer"]])
def test_the_forward_pass_of_sampling_gives_the_scores_of_the_model(
    protocol: ProRAG, read_at: ReadAt, kinds: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer, whole = model(read_at, kinds), episodes(protocol)
    monkeypatch.setattr(reward_model, "can_fuse", lambda _: False)
    models = scorer.score(whole)
    monkeypatch.undo()

    def run(**_: object) -> None:
        raise AssertionError("the model itself ran")

    monkeypatch.setattr(scorer.policy.model, "forward", run)
    for ours, expected in zip(scorer.score(whole), models, strict=True):
        assert torch.allclose(ours, expected, atol=1e-4)
        assert len(expected) == 1 or expected.std() > 0.01


def test_neither_batches_nor_padding_nor_what_is_trained_matter(
    protocol: ProRAG, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer, whole = model(), episodes(protocol)
    together = scorer.score(whole)
    untrained = [replace(e, turns=[replace(turn, trainable=False) for turn in e.turns]) for e in reversed(whole)]
    monkeypatch.setattr(reward_model, "_TOKENS", 1)  # one sequence a batch
    alone = scorer.score(untrained)[::-1]
    for first, second in zip(together, alone, strict=True):
        assert torch.allclose(first, second, atol=1e-4)


def test_the_features_of_a_step_are_what_the_model_run_by_hand_gives_its_tokens(protocol: ProRAG) -> None:
    policy = tiny_policy(byte_tokenizer(), scale=5.0)
    [episode, *_] = episodes(protocol)
    made = untrained_reward_model(policy, kinds=[step.kind for step in episode.steps])
    [sequence] = episode.sequences()
    ids, index = torch.tensor([sequence.ids]), torch.tensor(sequence.step_index)
    with torch.no_grad():
        _, features = made.states(collate_scored(scored_sequences(episode)))
        logps = policy.model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None]).squeeze(-1)
    for place, row in enumerate(features):  # type: ignore[arg-type]
        own = logps[index[1:] == place]
        expected = [float(own.mean()), float(own.sum()), float(own.min()), len(own), place]
        assert row.tolist() == pytest.approx(expected, abs=1e-3)
    assert made.score([episode])[0].abs().max() == 0


def test_calibration_moves_the_scores_and_the_mode_of_the_model_stays(protocol: ProRAG) -> None:
    scorer, whole = model(), episodes(protocol)
    raw = scorer.score(whole)[0]
    scorer.scale, scorer.offset = 3.0, -1.0
    scorer.policy.model.train()
    assert torch.allclose(scorer.score(whole)[0], 3 * raw - 1, atol=1e-4)
    assert scorer.policy.model.training


def test_what_is_saved_scores_the_same_when_loaded(protocol: ProRAG, tmp_path: Path) -> None:
    scorer, whole = model("action", ["answer", "query"]), episodes(protocol)
    scorer.scale, scorer.offset = 2.0, 0.5
    scorer.save(tmp_path)
    loaded = load_reward_model(tmp_path, device="cpu")
    for first, second in zip(scorer.score(whole), loaded.score(whole), strict=True):
        assert torch.equal(first, second)
    assert loaded.read_at == "action"
    assert load_reward_model(tmp_path, dtype="bfloat16").score(whole)[0].dtype == torch.float32


def test_one_of_an_earlier_version_is_read_where_it_means_the_same(protocol: ProRAG, tmp_path: Path) -> None:
    """Then every head had a weight of the mean log-probability; 0 left it out."""
    scorer, whole = model("action"), episodes(protocol)
    scorer.save(tmp_path)
    settings = json.loads((tmp_path / "reward_model.json").read_text())
    del settings["features"]
    (tmp_path / "reward_model.json").write_text(json.dumps(settings | {"schema": "reward_model/1"}))
    head = {name: value.detach() for name, value in scorer.head.state_dict().items()}
    save_file(head | {"logp_weight": torch.zeros(1)}, tmp_path / "head.safetensors")
    assert torch.equal(load_reward_model(tmp_path, device="cpu").score(whole)[0], scorer.score(whole)[0])
    save_file(head | {"logp_weight": torch.ones(1)}, tmp_path / "head.safetensors")
    with pytest.raises(ConfigError, match="an earlier version made this reward model; fit it again"):
        load_reward_model(tmp_path)


def test_a_policy_is_no_reward_model(tmp_path: Path) -> None:
    tiny_policy(byte_tokenizer()).save(tmp_path)
    with pytest.raises(ConfigError, match=r"no reward model at .*; give the model/ folder of a fitted PRM"):
        load_reward_model(tmp_path)


# Scores 1 and 1 + 2^-12; a step of bfloat16 at 1 is 2^-7.
CLOSE = torch.tensor([[1.0, 0.0], [1.0, 1.0]])


def close_head(features: FeatureWeights | None = None) -> StepHead:
    head = StepHead(2, features)
    with torch.no_grad():
        head.linear.weight.copy_(torch.tensor([[1.0, 2.0**-12]]))
    return head


def test_siblings_closer_than_a_bfloat16_step_keep_their_order_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        scores = close_head()(CLOSE.bfloat16())
    assert scores.tolist() == [1.0, 1.0 + 2.0**-12]


def test_a_cast_of_the_module_around_it_leaves_the_head_in_float32() -> None:
    features = FeatureWeights(["query"])
    torch.nn.init.constant_(features.weight_KF, 1 / 3)
    head = close_head(features)
    torch.nn.ModuleList([head]).to(torch.bfloat16)
    assert {parameter.dtype for parameter in head.parameters()} == {torch.float32}
    assert head(CLOSE.bfloat16()).tolist() == [1.0, 1.0 + 2.0**-12]
    assert features.weight_KF[0, 0].item() == pytest.approx(1 / 3)
    assert torch.nn.ModuleList([head]).to("meta")[0].zero.device.type == "meta"  # type: ignore[union-attr]
