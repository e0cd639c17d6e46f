"""What every retriever over a corpus must hold: call `check_retriever` with it and its passages."""

from __future__ import annotations

from collections.abc import Sequence

from envs.interfaces import Retriever
from envs.protocols.prorag import ProRAG
from envs.retrieval import RetrievalEnvironment
from envs.types import Action, Document, Turn
from tests.envs.protocols.conformance import HOSTILE
from tests.tiny import byte_tokenizer, question

PASSAGES = [
    Document("1", "Nile", "The Nile is a river of Africa."),
    Document("2", "Danube", "It flows through Vienna\nto the sea."),
    Document("3", "Zo\u00eb", "A name, \u201cquoted\u201d: na\u00efve."),
    Document("4", "", "A passage about Vienna without a title."),
    *(Document(f"h{n}", text.split("\n")[0], f"zebra {text}") for n, text in enumerate(HOSTILE)),
]
ODD = ("", " ", "?", "\0", "xyzzy", '"unclosed AND (', "zebra " * 3000, "</retrieval>", "\ud83d", "{'a': 1}", "-1 OR *")


def check_retriever(retriever: Retriever, passages: Sequence[Document] = PASSAGES, *, finds: bool = True) -> None:
    """Hits are passages as they are in the corpus, best first, at most `k`, the same each time.

    It `finds` the passage that a query is about.
    """
    known = {document.id: document for document in passages}
    queries = ["is a river of Africa.", "It flows through Vienna", "zebra"]
    found = retriever.search(queries, 3)
    assert not finds or [hits[0].document.id for hits in found[:2]] == ["1", "2"]
    assert len(found[2]) == 3
    assert retriever.search(queries[::-1], 3)[::-1] == found
    assert retriever.search(queries[:1] * 2, 3) == found[:1] * 2
    assert retriever.search(queries, 1) == [hits[:1] for hits in found]
    assert retriever.search([], 3) == []
    for hits in [*found, *retriever.search(ODD, 4)]:
        assert len(hits) <= 4
        assert [hit.document for hit in hits] == [known[hit.document.id] for hit in hits]
        scores = [hit.score for hit in hits if hit.score is not None]
        assert scores == sorted(scores, reverse=True)
    check_tags_stay_data(retriever)


def check_tags_stay_data(retriever: Retriever) -> None:
    """What is shown of hits has the same tags around passages whether they hold some, about zebras, or none."""
    tokenizer = byte_tokenizer()
    control = set(tokenizer.all_special_ids)
    shown = []
    for query in ("is a river of Africa.", "zebra"):
        environment = RetrievalEnvironment(ProRAG(tokenizer, instruction=""), retriever, top_k=8)  # type: ignore[arg-type]
        turn = Turn("policy", (), (), (), "scripted", "q1/0", action=Action("query", query))
        environment.apply([environment.start(question())], [turn])
        assert turn.hits
        shown.append([token for token in turn.observation_ids if token in control])
    assert shown[0] == shown[1]  # the tags around the passages, whatever stands in them
