"""Checks of the steps of episodes: whether their searches were needed and their statements hold; what answers them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from common.costs import tokens_of
from common.seeds import stable_hash
from envs.interfaces import Sampler
from envs.requests import OwnAnswer
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.sampling import Greedy
from envs.search_steps import searches, statements
from envs.types import Episode, Question


@dataclass(frozen=True, slots=True)
class Check:
    """A question about one step of an episode, to be answered by yes or no.

    - `over_search`: does `answer`, the policy's own to the step's query, alone and without passages, say the same as
      the claim that reads the search? If so the search was needless.
    - `under_search`: is the claim of the step true, and does it follow from what the step says? If not, it should have
      searched.
    """

    kind: Literal["over_search", "under_search"]
    episode: Episode
    step: int
    answer: str = ""


class Verifier(Protocol):
    """Answers checks: by the truth, by gold reasoning, by comparing texts, by a model's opinion."""

    def verify(self, checks: Sequence[Check]) -> list[bool | None]:
        """One verdict a check, in order; None where no verdict was had.

        A failed call is counted by the verifier and never becomes a verdict. One that cannot work at all raises a
        UserError: what it left undone is asked for when the command is repeated.
        """
        ...


def claims_of_searches(episode: Episode) -> dict[int, str]:
    """For each step of the policy that searches, the claim that reads what it found, where there is one."""
    steps = episode.steps
    read = {search: reader for search, reader in searches(steps) if reader is not None and steps[search].spans}
    return {search: steps[reader].claim or "" for search, reader in read.items()}


def read_claim(check: Check) -> str:
    """The claim that a check is about."""
    claims = claims_of_searches(check.episode) if check.kind == "over_search" else {}
    return claims.get(check.step, check.episode.steps[check.step].claim or "")


def over_search_checks(episode: Episode, answers: Mapping[str, str]) -> list[Check]:
    """One for each search whose claim is known; `answers` are the policy's own, by query, of those that it answered."""
    own = ((step, answers.get(episode.steps[step].query)) for step in claims_of_searches(episode))
    return [Check("over_search", episode, step, answer) for step, answer in own if answer is not None]


def under_search_checks(episode: Episode) -> list[Check]:
    """One for each step that states something without a search."""
    return [Check("under_search", episode, step) for step in statements(episode.steps)]


def answers_alone(
    queries: Iterable[str],
    sampler: Sampler,
    environment: RetrievalEnvironment,
    known: dict[str, OwnAnswer] | None = None,
) -> dict[str, str]:
    """A policy's greedy answer to each distinct query, alone: in an environment that shows no passages.

    A query whose turn could not be sampled is left out. Those in `known` are not asked again; new ones are put there.
    """
    known = {} if known is None else known
    distinct = list(dict.fromkeys(queries))
    new = [query for query in distinct if query not in known]
    asked: Sequence[Question] = [Question(f"alone-{stable_hash(query)}", query, ()) for query in new]
    episodes = rollout(environment, Greedy(sampler), asked, seed=0, label="answers alone")
    for query, episode in zip(new, episodes, strict=True):
        spent: Counter[str] = Counter()
        for turn in episode.turns:
            spent[tokens_of(turn.agent)] += len(turn.action_ids)
        known[query] = OwnAnswer(None if episode.status == "error" else episode.answer, spent)
    return {query: text for query in distinct if (text := known[query].text) is not None}
