"""Queries that name a tool: where they go, what the policy is shown, what is counted, what fails."""

from __future__ import annotations

import pytest

from common.costs import split
from common.errors import ConfigError, RejectedError, RetrievalError, ToolError
from envs.protocols.prorag import ProRAG
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.tools.calculator import Calculator
from envs.tools.routing import Tools
from envs.types import Document, Episode, Hit, Limits
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer, question

PROTOCOL = ProRAG(byte_tokenizer())  # type: ignore[arg-type] (a loaded one will do)
PAGE = Document("d", "Zebra", "A bicycle.")


class Echo:
    """Says what it is asked, and is down or at a loss where it is asked to be."""

    def call(self, query: str) -> str:
        if query == "down":
            raise RetrievalError("nobody answers")
        if query.startswith("fail"):
            raise ToolError(f"cannot {query}")
        return query


class Rejecting(FixedRetriever):
    def search(self, queries: list[str], k: int) -> list[list[Hit]]:  # type: ignore[override]
        if "bad" in queries:
            raise RejectedError("bad query")
        return super().search(queries, k)


def tools(retriever: FixedRetriever | None = None) -> Tools:
    return Tools(retriever or FixedRetriever([PAGE]), {"calc": Calculator(), "echo": Echo()})


def played(routed: Tools, *queries: str, limits: Limits | None = None, compressor: object = None) -> Episode:
    """An episode that asks these queries one after the other."""
    environment = RetrievalEnvironment(PROTOCOL, routed, limits=limits, compressor=compressor)  # type: ignore[arg-type]
    texts = [f"T </step><subquery>{query}</subquery>" for query in queries] + ["T </step><answer>Ada</answer>"]
    sampler = Scripted(PROTOCOL.codec.control, lambda episode: texts[len(episode.turns)])
    return rollout(environment, sampler, [question()], seed=0)[0]


def seen(episode: Episode) -> list[str]:
    """What the policy was shown after each query."""
    return [PROTOCOL.codec.decode(turn.observation_ids) for turn in episode.turns[:-1]]


@pytest.mark.parametrize(
    ("query", "routed"),
    [
        ("calc: 3*17", ("calc", "3*17")),
        (" Calc :3:4 ", ("calc", "3:4")),
        ("calc 3*17", ("search", "calc 3*17")),
        ("Alien: who made it?", ("search", "Alien: who made it?")),
        ("search: zebra", ("search", "search: zebra")),
    ],
)
def test_the_name_before_the_first_colon_picks_the_tool(query: str, routed: tuple[str, str]) -> None:
    assert tools().route(query) == routed


def test_tools_answer_between_searches_and_are_counted_as_costs() -> None:
    retriever = FixedRetriever([PAGE])
    routed = tools(retriever)
    hits = routed.search(["calc: 1/4", "zebra", "calc: x", "horse", "calc: 1/4"], 3)
    assert [[hit.document.title for hit in one] for one in hits] == [
        ["calc"],
        ["Zebra"],
        ["calc (failed)"],
        ["Zebra"],
        ["calc"],
    ]
    assert hits[0] == hits[4]
    assert retriever.queries == ["zebra", "horse"]
    _, costs = split(routed.counts)
    assert costs["tool_calls"] == {"calc": 3, "search": 2}
    assert costs["tool_failures"] == {"calc": 1}


def test_an_answer_is_data_that_is_neutralised_cut_and_never_compressed() -> None:
    class Nothing:
        def compress(self, question: str, hits: list[Hit]) -> list[Hit]:
            return [Hit(hit.document, hit.score, shown="") for hit in hits]

    limits = Limits(observation_tokens=20)
    episode = played(tools(), "echo: 1</retrieval>", "echo: " + "a" * 99, "zebra", limits=limits, compressor=Nothing())
    tag, long, page = seen(episode)
    assert tag.count("</retrieval>") == 1
    assert tag.startswith("\n<retrieval>\nDoc 1 1")
    assert long == "\n<retrieval>\nDoc 1 aaaaaaaaaaaaaa</retrieval>"
    assert page == "\n<retrieval>\n</retrieval>"
    assert episode.truncations["observation"] >= 1


def test_a_failure_is_shown_and_pays_nothing() -> None:
    episode = played(tools(), "echo: fail Ada", "echo: Bab")
    assert seen(episode)[0] == "\n<retrieval>\nDoc 1 error: cannot fail Ada\n</retrieval>"
    assert episode.status == "answered"
    [failed] = episode.turns[0].hits
    assert (failed.document.title, failed.document.text) == ("echo (failed)", ""), "what rewards read has no reason"


def test_a_tool_that_is_down_ends_its_episode_as_a_retriever_does() -> None:
    routed = tools()
    episode = played(routed, "echo: down")
    assert (episode.status, episode.error) == ("error", "nobody answers")
    assert split(routed.counts)[1]["tool_failures"] == {"echo": 1}


def test_a_rejected_search_is_counted_once_and_calls_no_tool_twice() -> None:
    routed = tools(Rejecting([PAGE]))
    results = RetrievalEnvironment(PROTOCOL, routed).search(["calc: 2", "bad", "good"])
    assert [isinstance(result, RejectedError) for result in results] == [False, True, False]
    _, costs = split(routed.counts)
    assert costs["tool_calls"] == {"calc": 1, "search": 2}
    assert costs["tool_failures"] == {"search": 1}


@pytest.mark.parametrize("name", ["search", "Calc", "a b", "", "1a"])
def test_names_of_tools(name: str) -> None:
    with pytest.raises(ConfigError, match="name a tool by"):
        Tools(FixedRetriever([]), {name: Calculator()})
