"""Episodes of reinforcement learning to read, in TensorBoard and next to the model, with rewards and advantages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from callbacks.rewarded_episodes import rewarded_row, shown, trains
from callbacks.rollout import Iteration, RolloutCallback, rollout_of
from common.errors import ConfigError
from envs.interfaces import Oracle
from envs.types import Episode, Hit, Step
from evaluation.kept_episodes import keep, passages

_LONGEST = 400  # characters of a passage of text


class EpisodeText(Callback):
    """Writes the episodes of some questions with the best and the worst reward as text, tag `episodes`.

    Of a question that was sampled as a tree it writes all paths. It also keeps them in the stage's folder,
    `data/iterations/<iteration>.json` (`evaluation.kept_episodes`).

    Args:
        every: iterations between two texts.
        questions: how many groups, from the first.
        oracle: judges the steps of those that are kept, where truth is known.

    Raises:
        ConfigError: a setting is out of range; on setting up, there is no `RolloutCallback` beside it.
    """

    def __init__(self, *, every: int = 10, questions: int = 2, oracle: Oracle | None = None) -> None:
        if min(every, questions) < 1:
            raise ConfigError(f"every {every}, questions {questions}: each must be at least 1")
        self.every, self.questions, self.oracle = every, questions, oracle

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if rollout_of(trainer) is None:
            raise ConfigError("EpisodeText needs a callbacks.rollout:RolloutCallback beside it")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        rollout, logger = rollout_of(trainer), trainer.logger
        if trainer.current_epoch % self.every or trainer.global_rank:
            return
        assert rollout is not None
        assert rollout.latest is not None
        self._keep(rollout, rollout.latest, trainer)
        if not isinstance(logger, TensorBoardLogger):
            return
        text = "\n\n---\n\n".join(texts(rollout.latest, self.questions))
        logger.experiment.add_text("episodes", text, trainer.global_step)

    def _keep(self, rollout: RolloutCallback, latest: Iteration, trainer: Trainer) -> None:
        chosen = list(shown(latest, self.questions))
        rows = [
            rewarded_row(latest, place, rollout.environment, self.oracle or rollout.oracle) | {"shown_as": name}
            for place, name in chosen
        ]
        folder, iteration = Path(trainer.default_root_dir) / "data" / "iterations", trainer.current_epoch
        found = passages([latest.episodes[place] for place, _ in chosen])
        keep(folder / f"{iteration:06d}.json", rows, found, iteration=iteration, update=trainer.global_step)


def texts(iteration: Iteration, questions: int) -> Iterator[str]:
    """The episodes that are shown of the first questions (`callbacks.rewarded_episodes.shown`) as Markdown."""
    for place, name in shown(iteration, questions):
        yield f"**{name}**\n\n{episode_text(iteration, place)}"


def episode_text(iteration: Iteration, index: int) -> str:
    """One episode as an indented block, which no text inside it can close."""
    episode, scores = iteration.episodes[index], iteration.scores
    per_step = {name: table[index] for name, table in scores.breakdown.items() if table.dim() == 2}
    outcomes = {name: float(table[index]) for name, table in scores.breakdown.items() if table.dim() == 1}
    question = episode.question
    lines = [f"Question: {_clip(question.text)}", f"Accepted: {_clip(' / '.join(question.answers))}", ""]
    selects, evidence = any(step.kept is not None for step in episode.steps), list[Hit]()
    for number, step in enumerate(episode.steps):
        verdict = "" if step.valid else " (invalid)"
        lines.append(f"{number + 1}. {_who(episode, step)}{step.kind}{verdict}: {_clip(step.text)}")
        if selects and step.kept is None:
            lines.append(f"   evidence: {_titles(evidence)}")
        lines.append(f"   said: {_clip(step.said)}")
        if step.hits:
            lines.append(f"   passages: {_titles(step.hits)}")
        if step.kept is not None:
            kept = [hit for hit in step.hits if hit.document.id in step.kept]
            evidence += kept
            lines += [f"   kept: {_titles(kept)}", f"   dropped: {_titles([h for h in step.hits if h not in kept])}"]
        if bool(scores.step_mask_BS[index, number]):
            rewards = {"reward": float(scores.step_BS[index, number])}
            rewards |= {name: float(values_S[number]) for name, values_S in per_step.items()}
            advantage = f"{float(iteration.advantages_BS[index, number]):+.3f}" if trains(episode, step) else "–"
            lines.append(f"   {_figures(rewards)}, advantage {advantage}")
    outcome = {"reward": float(scores.outcome_B[index])} | outcomes
    lines += ["", f"Answer:   {_clip(episode.answer) or '(none)'} [{episode.status}]", f"          {_figures(outcome)}"]
    return "\n".join(f"    {line}".rstrip() for line in lines)


def _who(episode: Episode, step: Step) -> str:
    """The agent of a step, where several act."""
    agents = {turn.agent for turn in episode.turns if turn.finish != "scripted"}
    return f"{episode.turns[step.spans[0][0]].agent}, " if step.spans and len(agents) > 1 else ""


def _titles(hits: Sequence[Hit]) -> str:
    return _clip(", ".join(hit.document.title for hit in hits)) or "none"


def _figures(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items())


def _clip(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[:_LONGEST] + " …"
