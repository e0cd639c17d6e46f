"""Every protocol of the suite, and a toy of each kind that there can be, through the conformance suite."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envs.protocols.direct import Direct
from envs.protocols.prorag import ProRAG
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Document, Episode, Limits, Move
from modules.samplers.in_process import InProcessSampler
from systems.baselines.flare import FLARE
from systems.baselines.ircot import IRCoT
from systems.baselines.iter_retgen import IterRetGen
from systems.baselines.search_o1 import TAGS as SEARCH_O1_TAGS
from systems.baselines.search_o1 import SearchO1
from systems.reasonrag.parse import TAGS as REASONRAG_TAGS
from systems.reasonrag.protocol import ReasonRAG
from systems.sirag.parse import TAGS as SIRAG_TAGS
from systems.sirag.protocol import SIRAG
from tests.envs.protocols.conformance import Script, check_protocol
from tests.tiny import FixedRetriever, byte_tokenizer, question, tiny_policy
from tests.toy_protocols import ForcedSearch, Notebook, OneMove, SearchOnly, Spanning, TwoAgents

SEARCH, READ = Move("search", "first program", "I ask."), Move("read", "Ada", "I see.")
MORE, RECALL = Move("search", "last name of Ada", "I ask."), Move("recall", "Lovelace", "I know.")
ANSWER = Move("conclude", "Ada Lovelace", "So it is.")
HOPS = [SEARCH, READ, MORE, READ, ANSWER]
SENTENCES = [Move("recall", "Ada wrote it."), Move("recall", "Her last name was Lovelace."), ANSWER]


def test_prorag_with_tags_as_tokens() -> None:
    check_protocol(ProRAG(byte_tokenizer()), HOPS, "Ada Lovelace")


def test_prorag_with_tags_as_plain_text() -> None:
    check_protocol(ProRAG(byte_tokenizer(tags=())), HOPS, "Ada Lovelace")


@pytest.mark.parametrize("retrieve", [False, True])
def test_direct(retrieve: bool) -> None:
    check_protocol(Direct(byte_tokenizer(), retrieve=retrieve), [ANSWER], "Ada Lovelace")


def test_iter_retgen() -> None:
    outputs = [Move("read", "Ada Lovelace"), Move("read", "Ada Lovelace"), Move("conclude", "Ada Lovelace")]
    check_protocol(IterRetGen(byte_tokenizer()), outputs, "Ada Lovelace")


@pytest.mark.parametrize("worst_first", [False, True])
def test_ircot(worst_first: bool) -> None:
    check_protocol(IRCoT(byte_tokenizer(), worst_first=worst_first), SENTENCES, "Ada Lovelace")


def test_flare() -> None:
    check_protocol(FLARE(byte_tokenizer()), SENTENCES, "Ada Lovelace")


@pytest.mark.parametrize("tags", [SEARCH_O1_TAGS, ()])
@pytest.mark.parametrize("trains", [False, True])
def test_search_o1(tags: tuple[str, ...], trains: bool) -> None:
    check_protocol(SearchO1(byte_tokenizer(tags), trains_reader=trains), HOPS, "Ada Lovelace")


@pytest.mark.parametrize("tags", [REASONRAG_TAGS, ()])
@pytest.mark.parametrize("iterations", [5, 8])
def test_reasonrag(tags: tuple[str, ...], iterations: int) -> None:
    """With 5 iterations the answer comes in the last, which may only answer."""
    check_protocol(ReasonRAG(byte_tokenizer(tags), iterations=iterations), HOPS, "Ada Lovelace")


@pytest.mark.parametrize("tags", [SIRAG_TAGS, ()])
@pytest.mark.parametrize("kept", [(), ("d0",), tuple(f"d{number}" for number in range(9))])
def test_sirag(tags: tuple[str, ...], kept: tuple[str, ...]) -> None:
    script = [SEARCH, replace(MORE, documents=kept), ANSWER]
    check_protocol(SIRAG(byte_tokenizer(tags)), script, "Ada Lovelace")


def test_a_format_with_every_move() -> None:
    check_protocol(OneMove(), [SEARCH, READ, RECALL, ANSWER], "Ada Lovelace")


def test_a_format_without_claims_whose_parsing_depends_on_the_episode() -> None:
    check_protocol(SearchOnly(), [SEARCH, MORE, ANSWER], "Ada Lovelace")


def test_a_format_with_several_agents_of_which_one_trains() -> None:
    check_protocol(TwoAgents(), HOPS, "Ada Lovelace")


def test_a_format_that_renders_its_context_anew() -> None:
    check_protocol(Notebook(), HOPS, "Ada Lovelace")


@pytest.mark.parametrize("tags", [True, False])
def test_a_format_whose_steps_span_turns_and_share_them(tags: bool) -> None:
    protocol = Spanning() if tags else Spanning(byte_tokenizer(tags=()))
    check_protocol(protocol, [SEARCH, READ, RECALL, MORE, READ, RECALL, RECALL, ANSWER], "Ada Lovelace")
    check_protocol(protocol, [RECALL, RECALL, SEARCH, READ, ANSWER], "Ada Lovelace")


def test_a_turn_may_be_forced() -> None:
    question_first = Move("search", "Who wrote the first program?", "I ask.")
    check_protocol(ForcedSearch(), [question_first, READ, ANSWER], "Ada Lovelace")
    environment = RetrievalEnvironment(ForcedSearch(), FixedRetriever([]))
    sampler = InProcessSampler(tiny_policy(environment.protocol.codec.tokenizer), temperature=1.0)
    [episode] = rollout(environment.variant(limits=Limits(turns=2, turn_tokens=9)), sampler, [question()], seed=0)
    assert episode.turns[0].text == "I ask.<find>Who wrote it?</find>"
    assert (episode.turns[0].action.kind, episode.turns[0].trainable) == ("query", True)
    assert all(logp < 0 for logp in episode.turns[0].action_logps), "scored by the policy"


def played(protocol: SearchOnly, *moves: Move) -> Episode:
    environment = RetrievalEnvironment(protocol, FixedRetriever([Document("d", "T", "text")]), limits=Limits(turns=6))
    return rollout(environment, Script(protocol, moves), [question()], seed=0)[0]


def test_a_query_may_be_refused_with_a_notice() -> None:
    episode = played(SearchOnly(), SEARCH, SEARCH)
    assert [turn.action.kind for turn in episode.turns[:2]] == ["query", "refused"]
    assert "You searched for that before." in SearchOnly().codec.decode(episode.context())
    episode = played(SearchOnly(searches=1), SEARCH, MORE)
    assert [turn.action.kind for turn in episode.turns[:2]] == ["query", "refused"]
    assert "You cannot search any more." in SearchOnly().codec.decode(episode.context())
