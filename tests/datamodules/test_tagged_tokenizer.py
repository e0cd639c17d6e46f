from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from common.errors import ConfigError, DataError
from datamodules.tagged_tokenizer import TaggedTokenizer
from envs.protocols.prorag import TAGS, ProRAG
from envs.text import load_tokenizer
from envs.token_ids import fingerprint, require_ids_of
from envs.types import Episode, Move
from modules.policy import load_policy
from tests.tiny import byte_tokenizer, question, tiny_policy
from tests.toy_protocols import TAGS as TOY_TAGS
from tests.toy_protocols import Spanning


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A model that knows no tags, with its tokenizer."""
    tiny_policy(byte_tokenizer(tags=())).save(tmp_path / "plain")
    return tmp_path / "plain"


def taught(plain: Path, folder: Path, **settings) -> dict[str, float]:
    maker = TaggedTokenizer(str(plain), **settings)
    for rank in range(2):
        maker.make(folder, seed=0, rank=rank, world_size=2)
    return maker.merge(folder, seed=0, world_size=2)


def test_every_tag_becomes_one_token_and_the_others_keep_their_numbers(plain: Path, tmp_path: Path) -> None:
    before = load_tokenizer(plain).get_vocab()
    assert taught(plain, tmp_path) == {"vocabulary": len(before) + 10.0, "tags": 10.0, "words": 0.0}
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    assert {token: tokenizer.get_vocab()[token] for token in before} == before
    assert set(TAGS) <= set(tokenizer.all_special_tokens)
    assert "<|im_start|>" in tokenizer.all_special_tokens  # what was special stays special
    codec = ProRAG(tmp_path / "tokenizer").codec
    assert len(codec.control("<step></subanswer>")) == 2
    require_ids_of(tokenizer, fingerprint(load_tokenizer(plain)), "what the model sampled before it had the tags")
    with pytest.raises(DataError, match="another tokenizer"):
        require_ids_of(load_tokenizer(plain), fingerprint(tokenizer), "an episode with tags")
    assert not set(codec.data("<step></answer>")) & {tokenizer.get_vocab()[tag] for tag in TAGS}


def test_a_policy_gets_rows_for_the_tags(plain: Path, tmp_path: Path) -> None:
    taught(plain, tmp_path)
    protocol = ProRAG(tmp_path / "tokenizer")
    policy = load_policy(str(plain), tokenizer=tmp_path / "tokenizer", device="cpu")
    assert policy.tokenizer.get_vocab() == protocol.codec.tokenizer.get_vocab()
    text = protocol.say(Episode(question(), ()), [Move("search", "Who?", "I ask.")])
    assert protocol.codec.decode(protocol.codec.control(text)) == text
    assert max(protocol.codec.control(text)) < policy.model.get_input_embeddings().weight.shape[0]  # type: ignore[union-attr]


WORLD_BASE = Path(__file__).parents[2] / "assets" / "world_base"
WORDS = ("Wait", "Conclude: is it so?")


def test_another_format_s_tags_and_words_leave_every_token_of_the_world_in_its_place(tmp_path: Path) -> None:
    headline = taught(WORLD_BASE, tmp_path, tags=TOY_TAGS, words=WORDS)
    before, tokenizer = load_tokenizer(WORLD_BASE).get_vocab(), load_tokenizer(tmp_path / "tokenizer")
    after = tokenizer.get_vocab()
    assert {token: after[token] for token in before} == before
    new = {token for token in after if token not in before}
    assert {*TOY_TAGS} - {*before} <= new
    assert headline == {"vocabulary": len(after), "tags": len({*TOY_TAGS} - {*before}), "words": 2.0}
    assert new - {*TOY_TAGS} == {"Conclude", "Wait"}
    assert "is" in before  # what is known is not added again

    codec = Spanning(tokenizer).codec
    text = "<note> Wait, I Conclude: the answer </note>"
    ids = codec.control(text)
    assert codec.decode(ids) == text
    assert [codec.decode([token]) for token in ids][1:4] == ["Wait", ",", "I"]
    assert after["Conclude"] not in codec.control("Concluded Waiter")
    assert not {after[tag] for tag in TOY_TAGS} & set(codec.data("<note> Wait </find>"))

    policy = load_policy(str(WORLD_BASE), tokenizer=tmp_path / "tokenizer", device="cpu")
    old = load_policy(str(WORLD_BASE), device="cpu").model.get_input_embeddings().weight  # type: ignore[union-attr]
    rows = policy.model.get_input_embeddings().weight  # type: ignore[union-attr]
    assert len(rows) >= len(after)
    assert bool((rows[: len(before)] == old[: len(before)]).all())


def test_new_tokens_may_begin_as_words_that_the_model_knows(tmp_path: Path) -> None:
    """Its own spelling makes one unknown word of all that a model of whole words does not know."""
    tags = ["<weigh>", "<judge>"]
    taught(WORLD_BASE, tmp_path, tags=tags, words=("Wait Conclude",))
    new = load_tokenizer(tmp_path / "tokenizer").get_vocab()

    def rows(**settings: Any) -> torch.Tensor:
        policy = load_policy(str(WORLD_BASE), tokenizer=tmp_path / "tokenizer", device="cpu", **settings)
        return policy.model.get_input_embeddings().weight.detach()  # type: ignore[union-attr]

    alike = rows()
    assert torch.equal(alike[new["Wait"]], alike[new["Conclude"]])
    assert torch.equal(alike[new["<weigh>"]], alike[new["<judge>"]])
    told = rows(begin_as={"Conclude": "so", "<judge>": "to tell"})
    assert torch.equal(told[new["Conclude"]], alike[new["so"]])
    assert torch.allclose(told[new["<judge>"]], (alike[new["to"]] + alike[new["tell"]]) / 2)
    for token in (*tags[:1], "Wait", "so"):
        assert torch.equal(told[new[token]], alike[new[token]]), "the others begin as before"
    with pytest.raises(ConfigError, match="begin_as names 'so', which is no new token"):
        rows(begin_as={"so": "tell"})
    with pytest.raises(ConfigError, match="begin_as is for the new tokens of `tokenizer`"):
        load_policy(str(WORLD_BASE), device="cpu", begin_as={"Wait": "so"})


def test_teaching_twice_adds_nothing(plain: Path, tmp_path: Path) -> None:
    taught(plain, tmp_path / "once")
    assert taught(tmp_path / "once" / "tokenizer", tmp_path / "twice")["tags"] == 0
    once, twice = (load_tokenizer(tmp_path / name / "tokenizer").get_vocab() for name in ("once", "twice"))
    assert once == twice


def test_a_killed_run_begins_anew(plain: Path, tmp_path: Path) -> None:
    (tmp_path / ".tokenizer.tmp").mkdir()
    (tmp_path / ".tokenizer.tmp" / "tokenizer.json").write_text("{")
    assert taught(plain, tmp_path)["tags"] == 10


def test_what_is_no_tokenizer_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer .*nowhere: no such folder"):
        taught(tmp_path / "nowhere", tmp_path)


@pytest.mark.skipif(not Path("models/SmolLM2-135M-Instruct").is_dir(), reason="no SmolLM2 here: make models")
def test_a_real_tokenizer_learns_the_tags(tmp_path: Path) -> None:
    assert taught(Path("models/SmolLM2-135M-Instruct"), tmp_path) == {"vocabulary": 49162.0, "tags": 10.0, "words": 0.0}
    protocol = ProRAG(tmp_path / "tokenizer")
    text = protocol.say(
        Episode(question(), ()), [Move("search", "Who wrote Emma?", "I do not know this yet, so I search.")]
    )
    assert protocol.codec.decode(protocol.codec.control(text)) == text
