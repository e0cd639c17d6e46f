"""Two agents that train and one that is frozen, over the seventeen tokens of `tests.toy_rl`: what SIRAG is made of.

asker       sees the question and the letters picked so far; letters ended by </subquery> search, all else stops
picker      sees what was found; its letters are picked
answerer    sees the letters picked; frozen
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from envs.interfaces import Sampler
from envs.protocols.prorag import TAGS
from envs.requests import Act, Control, Data, Done, Piece, Quoted, Request
from envs.retrieval import RetrievalEnvironment
from envs.sampling import ByAgent
from envs.text import Codec
from envs.types import Action, Episode, Hit, Limits, Observation, Question, Step, Turn
from modules.functional.credit import tree_gae_credit
from modules.optimizer import AdamW
from modules.policy import Policy
from modules.samplers.in_process import InProcessSampler
from systems.sirag.joint_ppo import JointPPO
from tests.toy_rl import letters, retriever, save_critic, small_policy, small_tokenizer

ASKER, PICKER, ANSWERER = "asker", "picker", "answerer"
LIMITS = Limits(turns=8, turn_tokens=6, total_tokens=256)
ROOT = ["a</subquery>", "b"]


class AskAndPick:
    """At most two searches; the answerer's turn ends the episode."""

    moves = ()

    def __init__(self, tokenizer: Path | None = None) -> None:
        self.codec = Codec(tokenizer or small_tokenizer(), TAGS)

    def prompt(self, question: Question) -> tuple[int, ...]:
        return ()

    def next(self, episode: Episode) -> Request | Act | Done:
        last = episode.turns[-1] if episode.turns else None
        searches = sum(turn.action.kind == "query" for turn in episode.turns)
        if last and last.agent == ANSWERER:
            return Done("answered")
        if last and last.action.kind == "query":
            found: list[Piece] = [Data(hit.document.text, cuttable=True) for hit in last.hits]
            return self._request(episode, PICKER, found, "</subanswer>")
        picked = [Quoted(turn.action_ids) for turn in episode.turns if turn.agent == PICKER]
        if searches == 2 or (last and last.action.kind == "stop"):
            return self._request(episode, ANSWERER, picked, "</answer>", trains=False)
        return self._request(episode, ASKER, [Data(episode.question.text), *picked], "</subquery>")

    def _request(self, episode: Episode, agent: str, sees: Sequence[Piece], stop: str, trains: bool = True) -> Request:
        opening = self.codec.control(f"<{stop[2:]}")
        return Request(episode, opening, (stop,), agent=agent, context=(Control("<step>"), *sees), trains=trains)

    def parse(self, episode: Episode, turn: Turn) -> Action:
        if turn.agent == ASKER:
            return Action("query", turn.text) if turn.text.endswith("</subquery>") else Action("stop", turn.text)
        return Action("pick" if turn.agent == PICKER else "answer", turn.text)

    def observe(self, episode: Episode, action: Action, hits: Sequence[Hit]) -> Observation:
        return Observation()

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        return tuple(
            Step(turn.action.kind, True, ((number, 0, len(turn.action_ids)),), said=turn.text)
            for number, turn in enumerate(episode.turns)
        )

    def valid(self, episode: Episode) -> bool:
        return episode.status == "answered"

    def answer(self, episode: Episode) -> str:
        return episode.turns[-1].text if episode.turns else ""


class Seen:
    """The joint state: the agent, the question, all that was written before."""

    def __init__(self, protocol: AskAndPick) -> None:
        self.codec = protocol.codec

    def __call__(self, episode: Episode, number: int) -> tuple[int, ...]:
        agent = Control("<answer>" if episode.turns[number].agent == ASKER else "<subanswer>")
        written = [Quoted(turn.action_ids) for turn in episode.turns[:number]]
        return self.codec.encode([agent, Data(episode.question.text), *written])


def agents_environment(tokenizer: Path | None = None) -> RetrievalEnvironment:
    """One passage is found, whatever is asked."""
    return RetrievalEnvironment(AskAndPick(tokenizer), retriever(), limits=LIMITS)  # pyright: ignore[reportArgumentType]


def two_policies(seed: int = 0) -> dict[str, Policy]:
    return {ASKER: small_policy(seed), PICKER: small_policy(seed + 1)}


def agents_sampler(frozen: Policy | None = None, temperature: float = 1.0) -> ByAgent:
    samplers: dict[str, Sampler] = {agent: InProcessSampler(temperature=temperature) for agent in (ASKER, PICKER)}
    return ByAgent(samplers | {ANSWERER: InProcessSampler(frozen or small_policy(9))})


def picked_letters(episodes: Sequence[Episode], context: Any) -> Tensor:
    """An outcome: the share of `a` among what the trained agents wrote."""
    own = [Episode(e.question, (), [turn for turn in e.turns if turn.trainable]) for e in episodes]
    return letters(own, context)


def judged_letters(episodes: Sequence[Episode], context: Any, *, fails: str = "") -> list[Tensor]:
    """A process reward: .9 for an action that begins with an `a`, else .1; unknown for an agent that `fails`."""
    return [
        torch.tensor([float("nan") if t.agent == fails else 0.9 if t.text.startswith("a") else 0.1 for t in e.turns])
        for e in episodes
    ]


class RecordingJointPPO(JointPPO):
    """Joint PPO that writes its gradients, as `tests.toy_rl.RecordingPPO` does."""

    def __init__(self, policies: dict[str, Policy], optimizer: AdamW, folder: str, **settings: Any) -> None:
        super().__init__(policies, optimizer, **settings)
        self.folder = folder

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        super().on_before_optimizer_step(optimizer)
        gradients = {name: one.grad for name, one in self.named_parameters() if one.grad is not None}
        torch.save(gradients, Path(self.folder) / f"gradients-{self.trainer.global_rank}-{self.global_step}.pt")


def joint_settings(**more: Any) -> dict[str, Any]:
    """What `tests.toy_rl.learn` takes for joint PPO on trees."""
    from envs.tree_rollout import TreeRollout

    rollout: Mapping[str, Any] = {"sampler": agents_sampler(), "sampling": TreeRollout(root=ROOT)}
    settings: dict[str, Any] = {
        "module": JointPPO,
        "policy": two_policies(),
        "place": agents_environment(),
        "rollout": {**rollout, **more.pop("rollout", {})},
        "data": {"group_size": 1, **more.pop("data", {})},
        "state": Seen(AskAndPick()),
        "critic_lr": 1e-2,
        "credit": tree_gae_credit,
    }
    return settings | more


def save_two_policies(folder: Path) -> None:
    """Both agents, the frozen one and a critic whose head is not 0, on disk where a config finds them."""
    for agent, policy in (two_policies() | {ANSWERER: small_policy(9)}).items():
        policy.save(folder / agent)
    save_critic(folder / "critic")


def seen(tokenizer: Path) -> Seen:
    """The joint state as a component."""
    return Seen(AskAndPick(tokenizer))
