"""Ways of sampling the same episodes: they agree on greedy tokens, and a way that computes otherwise is seen."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import rollouts
from benchmarks.equal_turns import Work
from benchmarks.made_up_episodes import WORLD_BASE
from benchmarks.peers import make_world
from benchmarks.resending import until_end
from benchmarks.rollout_way import WAYS, Sampling, cache_bytes
from benchmarks.rollouts import agreement, proved
from benchmarks.ways import Message, WayFailed
from modules.policy import Policy, load_policy
from modules.samplers.vllm.engine import VLLMEngine
from modules.samplers.vllm.sampler import VLLMSampler
from tests.vllm_server import vllm_server

WORK = Work(questions=2, group=2, turns=2, turn_tokens=6, observation=12, prompt=16)
OPTIONS = [
    "--questions",
    "2",
    "--group",
    "2",
    "--turns",
    "2",
    "--turn-tokens",
    "4",
    "--observation",
    "8",
    "--prompts",
    "16",
    "--repeats",
    "1",
    "--threads",
    "1",
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make_world(folder, 40)
    return folder


def sampling(way: str, world: Path, policy: Policy, temperature: float = 1.0) -> Sampling:
    settings = {"model": str(WORLD_BASE), "world": str(world), "temperature": temperature, "rows": WORK.episodes}
    return Sampling(WAYS[way](policy, settings), settings)


def test_ways_sample_the_same_episodes_with_the_same_weights(world: Path) -> None:
    policy, proof = load_policy(str(WORLD_BASE), device="cpu"), {"work": asdict(WORK), "greedy": True}
    ours, peer = (sampling(way, world, policy)(proof)["ids"] for way in ("in process", "generate"))
    assert [len(turns) for turns in ours] == [2, 2, 2, 2]
    assert agreement(ours, peer) == 1
    assert ours[0] == ours[1] != ours[2]  # greedy, so a question's episodes are one; another question's differ

    with_other_weights = load_policy(str(WORLD_BASE), device="cpu")
    layer = with_other_weights.model.get_submodule("model.layers.0.mlp.down_proj")
    layer.weight.data *= -1  # pyright: ignore
    assert agreement(ours, sampling("generate", world, with_other_weights)(proof)["ids"]) < 1


def test_a_run_counts_what_it_sampled_and_searched(world: Path) -> None:
    policy = load_policy(str(WORLD_BASE), device="cpu")
    for way in ("in process", "generate"):
        figures = sampling(way, world, policy)({"work": asdict(WORK), "greedy": False})
        assert 4 * 2 <= figures["tokens"] <= WORK.episodes * WORK.turns * WORK.turn_tokens
        assert 0 < figures["retrieval_s"] < figures["seconds"]


def test_a_server_has_room_for_all_rows_and_no_prefixes_of_the_run_before(world: Path, tmp_path: Path) -> None:
    policy = load_policy(str(WORLD_BASE), device="cpu")
    assert cache_bytes(policy, 10, "float32") == 10 * 4 * (2 * 4 * 2 * 32), "both, of 4 layers with 2 heads of 32"
    with vllm_server() as server:
        engine = VLLMEngine(512, dtype="float32", urls=[server.url], scratch=str(tmp_path))
        settings = {"model": str(WORLD_BASE), "world": str(world)}
        run = Sampling(VLLMSampler(engine, policy, temperature=1.0), settings)
        small = Work(questions=1, group=1, turns=1, turn_tokens=2, observation=4, prompt=8)
        for _ in range(2):
            run({"work": asdict(small), "greedy": False})
        assert server.control().count("/pause?mode=wait") == 2, "which drops what is cached"


def test_agreement_is_the_share_of_equal_turns() -> None:
    assert agreement([[(1, 2), (3,)], [(4,), (5,)]], [[(1, 2), (3,)], [(4,), (6,)]]) == 0.75


def test_ids_end_with_the_first_that_ends_the_message() -> None:
    assert until_end([5, 6, 0, 0, 0], frozenset({0})) == [5, 6, 0]
    assert until_end([5, 6], frozenset({0})) == [5, 6]


def test_a_peer_that_is_not_installed_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rollouts, "installed", lambda: {})
    assert rollouts.opened(["vllm", "trl, paged"], {}, 100, {}) == []
    said = capsys.readouterr().err
    assert "make engine" in said
    assert "make peers" in said


def test_a_peer_that_fails_is_left_out_and_ours_is_not() -> None:
    class Scripted:
        def __init__(self, ids: list[list[int]] | None) -> None:
            self._ids = ids

        def take(self, work: Message) -> Message:
            if self._ids is None:
                raise WayFailed("vllm ended: no room")
            return {"ids": [self._ids]}

    ways: Any = {"in process": Scripted([[1], [2]]), "vllm": Scripted(None), "generate": Scripted([[1], [3]])}
    assert proved(ways, WORK) == ({"in process": 1, "generate": 0.5}, {"vllm": "vllm ended: no room"})
    with pytest.raises(WayFailed):
        proved(ways | {"in process": Scripted(None)}, WORK)


@pytest.mark.slow
@pytest.mark.peers
def test_trl_samples_the_same_episodes(tmp_path: Path) -> None:
    rollouts.main([*OPTIONS, "--ways", "trl", "--json", str(tmp_path / "out.json")])
    written = json.loads((tmp_path / "out.json").read_text())
    ours, trl = written["rows"]
    assert [ours["way"], trl["way"]] == ["in process", "trl"]
    assert trl["agreement"] == 1
    assert trl["context"] == 16 + 2 * (4 + 8) + 1
    assert trl["ratio"] == pytest.approx(ours["tokens_per_s"] / trl["tokens_per_s"], abs=0.006)
    assert "trl" in written["peers"]
