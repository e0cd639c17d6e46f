"""The rule teacher on upstream questions, through the real environment and BM25."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from common.answers import exact_match
from common.errors import ConfigError, DataError
from datamodules.corpus_data import CorpusData
from datamodules.episode_sampling import EpisodeSampling
from datamodules.records import episode_from_row, numbered_rows
from datamodules.sources.dataset import Dataset
from datamodules.sources.hotpotqa import HotpotQA
from datamodules.sources.musique import MuSiQue
from datamodules.sources.rows import Rows
from datamodules.sources.twowiki import TwoWiki
from envs.interfaces import AgentFormat
from envs.protocols.direct import Direct
from envs.protocols.prorag import ProRAG
from envs.requests import Request
from envs.retrieval import RetrievalEnvironment
from envs.retrievers.bm25 import BM25
from envs.retrievers.gold_among import GoldAmong
from envs.rollout import rollout
from envs.sampling import ByAgent
from envs.teachers.gold_plans import GoldPlans
from envs.teachers.plans import Plan, PlannedHop, PlanTeacher
from envs.teachers.wording import natural
from envs.types import Document, Episode, Gold, GoldStep, Hit, Limits, Question
from systems.sirag.parse import TAGS
from systems.sirag.protocol import DECISION_MAKER, GENERATOR, KNOWLEDGE_SELECTOR, SIRAG
from tests.tiny import FixedRetriever, byte_tokenizer
from tests.toy_protocols import OneMove, SearchOnly, Spanning, TwoAgents

FIXTURES = Path(__file__).parents[2] / "fixtures"
PROTOCOL = ProRAG(byte_tokenizer(), instruction="")  # type: ignore[arg-type] (a loaded one will do)
ROOMY = Limits(turns=13, total_tokens=100_000)


def sampled(
    source: Dataset[Any], folder: Path, corpus: Path | None = None, seed: int = 0
) -> tuple[list[Episode], dict[str, float]]:
    """Episodes of the rule teacher over a source's questions, by BM25 with the gold passage among the hits."""
    if corpus is None:
        CorpusData(source).make(folder / "corpus", seed=0, rank=0, world_size=1)
        corpus = folder / "corpus" / "data" / "corpus.jsonl"
    teacher = PlanTeacher(PROTOCOL, GoldPlans(seed=seed))
    retriever = GoldAmong(BM25(corpus), teacher, corpus)
    stage = EpisodeSampling(source, RetrievalEnvironment(PROTOCOL, retriever, limits=ROOMY), teacher)
    stage.make(folder, seed=0, rank=0, world_size=1)
    headline = stage.merge(folder, seed=0, world_size=1)
    rows = numbered_rows(folder / "data" / "episodes.jsonl")
    return [episode_from_row(row, where) for where, row in rows], headline


def said(episode: Episode) -> list[tuple[str, str]]:
    return [(step.kind, step.text) for step in episode.steps]


def refuse_flaws(episodes: Sequence[Episode]) -> None:
    """Every episode is in format and right, and has each sub-answer's gold passage in view."""
    for episode in episodes:
        assert PROTOCOL.valid(episode), said(episode)
        assert exact_match(episode.answer, episode.question.answers) == 1
        assert not any(mark in step.text for step in episode.steps for mark in (">>", "#1", "#2", "#3"))


def test_musique_references_and_shorthand_become_questions(tmp_path: Path) -> None:
    episodes, headline = sampled(MuSiQue(FIXTURES / "musique.jsonl"), tmp_path)
    refuse_flaws(episodes)
    assert headline["em"] == headline["valid_episodes"] == headline["valid_steps"] == 1.0
    three = next(episode for episode in episodes if episode.question.id.startswith("3hop"))
    assert said(three) == [
        ("query", "What is the filming location of The Reed?"),
        ("subanswer", "Tarn"),
        ("query", "Who is the mayor of Tarn?"),
        ("subanswer", "Juno Pell"),
        ("query", "Where did Juno Pell study?"),
        ("subanswer", "Ostrava Bay"),
        ("answer", "Ostrava Bay"),
    ]
    for number, title in ((0, "The Reed"), (2, "Tarn"), (4, "Juno Pell")):
        assert title in {hit.document.title for hit in three.turns[number].hits}


def test_in_a_format_that_selects_passages_the_gold_ones_are_kept(tmp_path: Path) -> None:
    """MuSiQue names them by id, 2WikiMultiHopQA by title."""
    protocol = SIRAG(byte_tokenizer(TAGS), retrievals=4)  # type: ignore[arg-type] (a loaded one will do)
    for source in (MuSiQue(FIXTURES / "musique.jsonl"), TwoWiki(FIXTURES / "2wikimultihopqa.json")):
        folder = tmp_path / type(source).__name__
        CorpusData(source).make(folder, seed=0, rank=0, world_size=1)
        teacher, corpus = PlanTeacher(protocol, GoldPlans()), folder / "data" / "corpus.jsonl"
        environment = RetrievalEnvironment(protocol, GoldAmong(BM25(corpus), teacher, corpus), limits=ROOMY)
        agents = dict.fromkeys((DECISION_MAKER, KNOWLEDGE_SELECTOR, GENERATOR), teacher)
        for episode in rollout(environment, ByAgent(agents), list(source), seed=0):
            gold = episode.question.gold
            assert gold is not None
            assert protocol.valid(episode), said(episode)
            wanted = {name for step in gold.steps for name in step.documents}
            selections = [step for step in episode.steps if step.kept is not None]
            assert any(step.kept for step in selections)
            assert all({*step.kept} <= named(step.hits, wanted) for step in selections)  # type: ignore[misc]
            kept = {name for step in selections for name in step.kept or ()}
            assert kept == named([hit for turn in episode.turns for hit in turn.hits], wanted)


def named(hits: Sequence[Hit], names: set[str]) -> set[str]:
    """Ids of the documents with one of these ids or titles."""
    return {hit.document.id for hit in hits if {hit.document.id, hit.document.title} & names}


def test_twowiki_comparisons_end_with_the_gold_answer(tmp_path: Path) -> None:
    episodes, headline = sampled(TwoWiki(FIXTURES / "2wikimultihopqa.json"), tmp_path)
    refuse_flaws(episodes)
    assert headline["em"] == 1.0
    compared = next(episode for episode in episodes if episode.question.gold.type == "bridge_comparison")  # type: ignore[union-attr]
    assert [text for kind, text in said(compared) if kind == "subanswer"] == ["Ansel Birk", "Mira Sol", "1999", "1981"]
    assert said(compared)[-1] == ("answer", "Long Noon")
    assert "Ansel Birk, Mira Sol, 1999 and 1981" in compared.turns[-1].text


def test_no_thought_tells_what_is_not_known_yet(tmp_path: Path) -> None:
    for seed in range(6):
        episodes, _ = sampled(MuSiQue(FIXTURES / "musique.jsonl"), tmp_path / str(seed), seed=seed)
        three = next(episode for episode in episodes if episode.question.id.startswith("3hop"))
        assert not any("Juno" in turn.text for turn in three.turns[:3])
        assert not any("Ostrava" in turn.text for turn in three.turns[:5])


def test_the_seed_chooses_wordings_and_thoughts() -> None:
    question = next(iter(TwoWiki(FIXTURES / "2wikimultihopqa.json")))
    plans = {str(GoldPlans(seed=seed).plan([question])[0]) for seed in range(8)}
    assert len(plans) == 8
    assert GoldPlans(seed=3).plan([question]) == GoldPlans(seed=3).plan([question])


@pytest.mark.parametrize(
    ("text", "worded"),
    [
        ("Green >> performer", {"Who is the performer of Green?", "Who performed Green?"}),
        ("A >> B >> father", {"Who is the father of A >> B?", "Who was the father of A >> B?"}),
        ("Tarn >> filming location", {"What is the filming location of Tarn?"}),
        ("who is the mayor of Tarn ?", {"Who is the mayor of Tarn?"}),
        ("{x} >> place of birth", {"Where was {x} born?", "What is the place of birth of {x}?"}),
    ],
)
def test_sub_questions_are_worded_in_full(text: str, worded: set[str]) -> None:
    assert {natural(text, Random(seed)) for seed in range(20)} == worded


def planned(*steps: GoldStep, answer: str = "x") -> Plan | str:
    return GoldPlans().plan([Question("q", "Why?", (answer,), Gold(steps=steps) if steps else None)])[0]


def test_questions_without_usable_gold_have_no_plan() -> None:
    assert planned() == "no gold reasoning"
    assert planned(GoldStep("Who?", " ")) == "a sub-question or its answer is empty"
    assert planned(GoldStep("Who is #2?", "a"), GoldStep("Who?", "b")) == "a sub-question refers to a later one"
    assert planned(GoldStep("Who is #0?", "a")) == "a sub-question refers to a later one"


def test_questions_without_a_plan_are_skipped_and_counted(tmp_path: Path) -> None:
    _, headline = sampled(TwoWiki(FIXTURES / "2wikimultihopqa.json"), tmp_path)
    assert headline["skipped"] == 0
    with pytest.raises(DataError, match=r"no episode of \d+ questions is left: {'no gold reasoning': \d+}"):
        sampled(HotpotQA(FIXTURES / "hotpotqa.json"), tmp_path / "hotpotqa")


def test_a_question_without_a_plan_is_never_begun() -> None:
    teacher = PlanTeacher(PROTOCOL, GoldPlans())
    request = Request(Episode(Question("q7", "Why?", ("x",)), ()), (), ())
    with pytest.raises(DataError, match="question q7 has no plan: no gold reasoning"):
        teacher.take(request)


def test_a_format_that_cannot_search_is_refused_before_any_work() -> None:
    protocol = Direct(byte_tokenizer(), retrieve=True)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="PlanTeacher needs the move 'search', which Direct cannot write"):
        RetrievalEnvironment(protocol).check(PlanTeacher(protocol, GoldPlans()))


@pytest.mark.parametrize(
    ("protocol", "turns"),
    [(PROTOCOL, 5), (OneMove(), 5), (SearchOnly(), 3), (TwoAgents(), 5), (Spanning(), 3)],
    ids=lambda one: type(one).__name__,
)
def test_a_plan_is_carried_out_in_every_format(protocol: AgentFormat, turns: int) -> None:
    steps = (GoldStep("The Reed >> director", "Ansel Birk", ("d1",)), GoldStep("#1 >> place of birth", "Velmark"))
    question = Question("q", "Where was the director of The Reed born?", ("Velmark",), Gold(steps=steps))
    teacher = PlanTeacher(protocol, GoldPlans())
    environment = RetrievalEnvironment(protocol, FixedRetriever([Document("d1", "The Reed", "text")]))
    [episode] = rollout(environment, teacher, [question], seed=0)
    assert protocol.valid(episode)
    assert (len(episode.turns), episode.answer) == (turns, "Velmark")
    queries = [step.query for step in episode.steps if step.query]
    assert [teacher.documents(query) for query in queries] == [("d1",), ()]
    claims = [step.claim for step in episode.steps if step.claim and step.kind != "answer"]
    assert claims == (["Ansel Birk", "Velmark"] if "read" in protocol.moves else [])


class Fixed:
    """Plans every question alike."""

    def __init__(self, plan: Plan) -> None:
        self.made = plan

    def plan(self, questions: Sequence[Question]) -> list[Plan | str]:
        return [self.made for _ in questions]


def test_where_nothing_can_be_claimed_the_next_thought_says_what_was_read() -> None:
    question = Question("q", "Where was the director of The Reed born?", ("Velmark",))
    hops = (PlannedHop("I ask.", "Who?", "It is Ansel.", "Ansel"), PlannedHop("On.", "Where?", "There.", "Velmark"))
    teacher, protocol = PlanTeacher(SearchOnly(), Fixed(Plan(hops, "So.", "Velmark"))), SearchOnly()
    [episode] = rollout(RetrievalEnvironment(protocol, FixedRetriever([])), teacher, [question], seed=0)
    assert [turn.text for turn in episode.turns] == [
        "I ask.<find>Who?</find>",
        "It is Ansel. On.<find>Where?</find>",
        "There. So.<say>Velmark</say>",
    ]


class Knows:
    """Gold passages of queries, by hand."""

    def __init__(self, **documents: tuple[str, ...]) -> None:
        self.of = documents

    def documents(self, query: str) -> tuple[str, ...]:
        return self.of.get(query, ())


def test_a_missed_gold_passage_takes_the_place_of_the_last_hit(tmp_path: Path) -> None:
    documents = [Document(f"d{n}", f"Title {n}", "text") for n in range(5)]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(f'{{"id": "{d.id}", "title": "{d.title}", "text": "text"}}\n' for d in documents))
    teacher = Knows(missed=("d4",), found=("d1",), named=('"title 3" ',), either=("d4", "d0"), foreign=("nowhere",))
    retriever = GoldAmong(FixedRetriever(documents), teacher, corpus)

    def ids(query: str, k: int = 3) -> list[str]:
        return [hit.document.id for hit in retriever.search([query], k)[0]]

    assert ids("missed") == ["d0", "d1", "d4"]
    assert ids("missed", k=1) == ["d4"]
    assert ids("named") == ["d0", "d1", "d3"]
    assert ids("found") == ids("either") == ids("foreign") == ids("never heard of") == ["d0", "d1", "d2"]
    assert retriever.counts == {"gold_put_in": 3, "gold_found": 2, "gold_unknown": 2}
    assert retriever.search(["missed"], 3)[0][-1] == Hit(documents[4])  # a passage put in has no score


def test_a_gold_passage_is_put_beside_too_few_hits(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "g", "title": "G", "text": "x"}\n')
    retriever = GoldAmong(FixedRetriever([]), Knows(q=("g",)), corpus)
    assert [hit.document.id for hit in retriever.search(["q"], 3)[0]] == ["g"]


@pytest.mark.data
@pytest.mark.parametrize("name", ["musique", "2wikimultihopqa"])
def test_real_questions_become_valid_right_episodes(data_root: Path, tmp_path: Path, name: str) -> None:
    source = Rows(data_root / name / "questions.jsonl", sample=100)
    episodes, headline = sampled(source, tmp_path, data_root / name / "corpus.jsonl")
    refuse_flaws(episodes)
    assert (headline["skipped"], headline["failed"], headline["em"]) == (0, 0, 1.0)
    assert len(episodes) == 100
    assert {len(episode.turns) for episode in episodes} <= {5, 7, 9, 11}
    for episode in episodes:
        gold = episode.question.gold
        assert gold is not None
        for step, turn in zip(gold.steps, episode.turns[::2], strict=False):
            assert not step.documents or step.documents[0] in {hit.document.id for hit in turn.hits}
    assert headline["gold_put_in"] > 0  # the retriever does miss
