"""Every protocol of the suite, and a toy of each kind that there can be, through the conformance suite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from envs.protocols.direct import Direct
from envs.protocols.prorag import TAGS as PRORAG_TAGS
from envs.protocols.prorag import ProRAG
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Document, Episode, Limits, Move
from modules.samplers.in_process import InProcessSampler
from systems.adaptive_rag.protocol import AdaptiveRAG
from systems.auto_rag.protocol import AutoRAG
from systems.baselines.flare import FLARE
from systems.baselines.ircot import IRCoT
from systems.baselines.iter_retgen import IterRetGen
from systems.baselines.search_o1 import TAGS as SEARCH_O1_TAGS
from systems.baselines.search_o1 import SearchO1
from systems.hiprag.parse import TAGS as HIPRAG_TAGS
from systems.hiprag.protocol import HiPRAG
from systems.longllmlingua.recovery import RecoveringDirect
from systems.react.protocol import ReAct
from systems.reasonrag.parse import TAGS as REASONRAG_TAGS
from systems.reasonrag.protocol import ReasonRAG
from systems.search_r1.protocol import TAGS as SEARCH_R1_TAGS
from systems.search_r1.protocol import SearchR1
from systems.self_rag.protocol import SelfRAG
from systems.self_rag.tokens import TAGS as SELF_RAG_TAGS
from systems.sirag.parse import TAGS as SIRAG_TAGS
from systems.sirag.protocol import SIRAG
from tests.envs.protocols.conformance import Script, check_protocol
from tests.tiny import FixedRetriever, byte_tokenizer, question, tiny_policy
from tests.toy_protocols import TAGS as TOY_TAGS
from tests.toy_protocols import ForcedSearch, Notebook, OneMove, SearchOnly, Spanning, TwoAgents

SEARCH, READ = Move("search", "first program", "I ask."), Move("read", "Ada", "I see.")
MORE, RECALL = Move("search", "last name of Ada", "I ask."), Move("recall", "Lovelace", "I know.")
ANSWER = Move("conclude", "Ada Lovelace", "So it is.")
HOPS = [SEARCH, READ, MORE, READ, ANSWER]
SENTENCES = [Move("recall", "Ada wrote it."), Move("recall", "Her last name was Lovelace."), ANSWER]


OUTPUTS = [Move("read", "Ada Lovelace"), Move("read", "Ada Lovelace"), ANSWER]
MANY = [SEARCH, READ, RECALL, MORE, READ, RECALL, RECALL, ANSWER]  # several steps in a turn, steps that span two
BEGUN = [RECALL, RECALL, SEARCH, READ, ANSWER]
KEPT = ((), ("d0",), tuple(f"d{number}" for number in range(9)))


class AlwaysMany:
    """A router of Adaptive-RAG that chooses IRCoT for every question."""

    def letter(self, question: str) -> str:
        return "C"


def routed(tokenizer: Any) -> AdaptiveRAG:
    routes = {letter: Direct(tokenizer, retrieve=letter == "B") for letter in "AB"}
    return AdaptiveRAG(routes | {"C": IRCoT(tokenizer)}, AlwaysMany())


# Formats by name, each with what makes it of a tokenizer, its tags and the moves of a good policy.
FORMATS: list[tuple[str, Callable[[Any], Any], tuple[str, ...], list[Move]]] = [
    ("prorag", ProRAG, PRORAG_TAGS, HOPS),
    ("search_r1", SearchR1, SEARCH_R1_TAGS, [SEARCH, MORE, ANSWER]),
    ("hiprag", HiPRAG, HIPRAG_TAGS, MANY),
    ("hiprag from memory", HiPRAG, HIPRAG_TAGS, BEGUN),
    ("reasonrag", ReasonRAG, REASONRAG_TAGS, HOPS),
    ("reasonrag whose last turn may only answer", partial(ReasonRAG, iterations=5), REASONRAG_TAGS, HOPS),
    *((f"sirag keeping {len(k)}", SIRAG, SIRAG_TAGS, [SEARCH, replace(MORE, documents=k), ANSWER]) for k in KEPT),
    ("search_o1", SearchO1, SEARCH_O1_TAGS, HOPS),
    ("search_o1 with a trained reader", partial(SearchO1, trains_reader=True), SEARCH_O1_TAGS, HOPS),
    ("naive", partial(Direct, retrieve=False), (), [ANSWER]),
    ("standard rag", partial(Direct, retrieve=True), (), [ANSWER]),
    ("standard rag with recovery", RecoveringDirect, (), [ANSWER]),
    ("iter_retgen", IterRetGen, (), OUTPUTS),
    ("ircot", IRCoT, (), SENTENCES),
    ("ircot, worst first", partial(IRCoT, worst_first=True), (), SENTENCES),
    ("flare", FLARE, (), SENTENCES),
    ("self_rag, short form", partial(SelfRAG, passages=2), SELF_RAG_TAGS, [ANSWER]),
    ("self_rag, long form", partial(SelfRAG, depth=2, beam=1, passages=2), SELF_RAG_TAGS, [READ, ANSWER]),
    ("self_rag as written", partial(SelfRAG, depth=2, passages=1, written=True), SELF_RAG_TAGS, [READ, ANSWER]),
    ("adaptive_rag", routed, (), SENTENCES),
    ("react", ReAct, (), [SEARCH, MORE, ANSWER]),
    ("auto_rag", AutoRAG, (), [SEARCH, MORE, ANSWER]),
    ("auto_rag that writes documents", partial(AutoRAG, max_iter=2, parametric=2), (), [SEARCH, MORE, ANSWER]),
    ("every move", OneMove, TOY_TAGS, [SEARCH, READ, RECALL, ANSWER]),
    ("no claims, and parsing depends on the episode", SearchOnly, TOY_TAGS, [SEARCH, MORE, ANSWER]),
    ("several agents of which one trains", TwoAgents, TOY_TAGS, HOPS),
    ("a context that is rendered anew", Notebook, TOY_TAGS, HOPS),
    ("steps that span turns and share them", Spanning, TOY_TAGS, MANY),
    ("steps that span turns, from memory", Spanning, TOY_TAGS, BEGUN),
]
# The tags of a format as tokens, and as plain text.
CASES = {
    f"{name}{spelt}": (made, tags, moves)
    for name, made, own, moves in FORMATS
    for spelt, tags in {"": own, ", plain": ()}.items()
    if own or not spelt
}


@pytest.mark.parametrize(("made", "tags", "moves"), CASES.values(), ids=CASES)
def test_a_format_holds_what_every_format_must(made: Callable[[Any], Any], tags: tuple[str, ...], moves: Any) -> None:
    check_protocol(made(byte_tokenizer(tags)), moves, "Ada Lovelace")


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
