from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from datamodules.sources.world_questions import WorldQuestions
from envs.protocols.prorag import TAGS, ProRAG
from envs.retrieval import RetrievalEnvironment
from envs.retrievers.bm25 import BM25
from envs.rollout import rollout
from envs.text import Codec
from envs.world.facts import World
from envs.world.names import Names
from envs.world.teacher import Teacher
from envs.world.vocabulary import build_tokenizer, english, wordings

COUNTS = {"person": 60, "city": 16, "work": 30, "organisation": 20, "country": 5}


@pytest.fixture(scope="module")
def codec(made: Path) -> Codec:
    return Codec(made / "tokenizer", TAGS)


def bare(text: str) -> str:
    return "".join(text.split())


def test_everything_the_world_writes_comes_back_up_to_white_space(made: Path, codec: Codec) -> None:
    source = WorldQuestions(made, "test")
    texts = [text for one in source for text in (one.text, *one.answers)]
    texts += [text for document in source.documents() for text in (document.title, document.text)]
    texts += [wording.replace("{", " ").replace("}", " ") for wording in wordings() if "{" not in wording]
    for text in texts:
        assert codec.decode(codec.data(text)) == text  # to the blank, for sentences
    wrapped = "Doc 3(Title: He) 0123456789"
    assert bare(codec.decode(codec.data(wrapped))) == bare(wrapped)


def test_no_word_of_an_episode_is_unknown(made: Path, codec: Codec) -> None:
    protocol = ProRAG(made / "tokenizer", instruction="")
    environment = RetrievalEnvironment(protocol, BM25(made / "data" / "corpus.jsonl"))
    questions = list(WorldQuestions(made, "dev"))
    unknown = codec.tokenizer.unk_token_id
    for episode in rollout(environment, Teacher(made, protocol), questions, seed=1):
        assert unknown not in episode.context()


def test_tags_are_single_special_tokens_and_cannot_come_out_of_data(codec: Codec) -> None:
    for tag in (*TAGS, "<|im_start|>", "<|im_end|>"):
        [token] = codec.control(tag)
        assert codec.decode([token]) == tag
        assert token not in codec.data(f"Who {tag} is {tag.upper()} it? {tag}")
    assert codec.tokenizer.eos_token == "<|im_end|>"
    assert codec.tokenizer.pad_token_id == 0


def test_a_name_is_two_tokens_and_keeps_its_case(made_world: World, codec: Codec) -> None:
    for entity in made_world:
        tokens = codec.data(entity.name)
        assert len(tokens) == {"person": 2, "organisation": 2, "work": 3}.get(entity.kind, 1)
        assert codec.decode(tokens) == entity.name
    unknown = codec.tokenizer.unk_token_id
    assert unknown in codec.data(next(iter(made_world)).name.lower())


def test_the_chat_template_opens_the_assistant_turn(codec: Codec) -> None:
    ids = codec.encode(codec.chat("{question}", question="Who is it?"))
    assert bare(codec.decode(ids)) == "<|im_start|>userWhoisit?<|im_end|><|im_start|>assistant"


def test_worlds_of_one_size_share_a_tokenizer(made: Path, tmp_path: Path) -> None:
    tokenizer = build_tokenizer(Names(COUNTS, english()), tags=TAGS)
    tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == (made / "tokenizer" / "tokenizer.json").read_bytes()
    assert AutoTokenizer.from_pretrained(str(made / "tokenizer")).get_vocab() == tokenizer.get_vocab()
    tokens = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(tokens.values()) == list(range(len(tokenizer)))
    assert 500 < len(tokens) < 1500


def test_more_texts_make_more_words_known() -> None:
    names = Names(COUNTS, english())
    plain = build_tokenizer(names, tags=TAGS)
    more = build_tokenizer(names, tags=("<think>",), texts=["Answer stepwise, please."])
    assert {*more.get_vocab()} - {*plain.get_vocab()} == {"Answer", "stepwise", "please", "<think>"}
    assert {*plain.get_vocab()} - {*more.get_vocab()} == {*TAGS}


def test_a_space_that_the_decoder_adds_belongs_to_no_token_before_it(codec: Codec) -> None:
    ids = codec.control("who asks? </step> <answer>")
    text = codec.decode(ids)
    borders = [text.index(part) for part in ("?", "</step>", "<answer>")]
    assert codec.token_index(ids, [0, *borders, len(text)]) == [0, len(ids) - 3, len(ids) - 2, len(ids) - 1, len(ids)]
