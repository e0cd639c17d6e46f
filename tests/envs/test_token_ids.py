"""Whose token ids: what makes two tokenizers one, and which episodes a model reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from common.errors import ConfigError, DataError
from envs.protocols.prorag import TAGS, ProRAG
from envs.retrieval import RetrievalEnvironment
from envs.token_ids import fingerprint, require_ids_of, require_readable, require_same
from envs.types import Episode, Turn
from tests.tiny import THINKING_TEMPLATE, byte_tokenizer, question

TOKENIZER = byte_tokenizer()


def words(*order: str, lowercase: bool = False) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(order)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def test_how_a_tokenizer_is_saved_and_what_stands_around_a_text_do_not_count(tmp_path: Path) -> None:
    other = byte_tokenizer()
    other.chat_template = THINKING_TEMPLATE
    other.padding_side = "left"
    other.model_max_length = 7
    other.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", other.convert_tokens_to_ids("<|im_start|>"))]
    )
    for number in range(3):
        other.save_pretrained(str(tmp_path / str(number)))
        other = AutoTokenizer.from_pretrained(str(tmp_path / str(number)))
        assert fingerprint(other) == fingerprint(TOKENIZER)
    (tmp_path / "2" / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    assert fingerprint(AutoTokenizer.from_pretrained(str(tmp_path / "2"))) == fingerprint(TOKENIZER)


@pytest.mark.parametrize(
    "other",
    [
        byte_tokenizer(tags=TAGS[::-1]),
        byte_tokenizer(tags=[*TAGS[:-1], "<other>"]),
        byte_tokenizer(tags=()),
        byte_tokenizer(merges=[("a", "b")]),
        byte_tokenizer(tags=[*TAGS, "<more>"]),
    ],
    ids=["other ids", "another tag", "no tags", "a merge", "more tags"],
)
def test_another_vocabulary_is_another_tokenizer(other: PreTrainedTokenizerFast) -> None:
    assert fingerprint(other) != fingerprint(TOKENIZER)


def test_as_many_words_under_other_ids_or_read_otherwise_are_another_tokenizer() -> None:
    assert fingerprint(words("<unk>", "the", "The")) == fingerprint(words("<unk>", "the", "The"))
    assert fingerprint(words("<unk>", "the", "The")) != fingerprint(words("<unk>", "The", "the"))
    assert fingerprint(words("<unk>", "the", "The")) != fingerprint(words("<unk>", "the", "The", lowercase=True))


def test_a_tokenizer_that_gains_a_token_is_another() -> None:
    tokenizer = byte_tokenizer()
    before = fingerprint(tokenizer)
    tokenizer.add_tokens([AddedToken("<new>")])
    assert fingerprint(tokenizer) != before


def test_an_environment_s_episodes_say_whose_ids_they_are() -> None:
    protocol: Any = ProRAG(TOKENIZER)  # pyright: ignore[reportArgumentType]
    assert RetrievalEnvironment(protocol).start(question()).tokenizer == fingerprint(TOKENIZER)


OTHER = byte_tokenizer(tags=TAGS[::-1])
SAID = TOKENIZER("<step> é", add_special_tokens=False).input_ids


def episode(tokenizer: str = "", **own: Any) -> Episode:
    ids = own.get("action_ids", tuple(SAID))
    turn = Turn("policy", (), ids, (0.0,) * len(ids), "stop", "u", "<step> é")
    return Episode(question(), (1, 2), [replace(turn, **own)], tokenizer=tokenizer)


@pytest.mark.parametrize(
    "own",
    [
        {"tokenizer": fingerprint(TOKENIZER)},
        {},
        {"text": ""},
        {"text": "a reason", "finish": "error"},
    ],
    ids=["its own", "from before", "without text", "failed"],
)
def test_a_model_reads_what_its_tokenizer_made(own: dict[str, Any]) -> None:
    require_readable(TOKENIZER, len(TOKENIZER), episode(**own), "here")


@pytest.mark.parametrize("made_by", [fingerprint(TOKENIZER), ""], ids=["says whose it is", "from before"])
def test_a_model_with_another_tokenizer_does_not_read_it(made_by: str) -> None:
    with pytest.raises(DataError, match=r"here: its token ids are those of another tokenizer than \(no name\): make"):
        require_readable(OTHER, len(OTHER), episode(tokenizer=made_by), "here")


@pytest.mark.parametrize("name", ["opening_ids", "observation_ids", "context_ids", "prompt_ids"])
@pytest.mark.parametrize("strange", [-1, 10**6, len(TOKENIZER)])
def test_an_id_without_a_row_is_named_wherever_it_is(name: str, strange: int) -> None:
    bad = episode() if name == "prompt_ids" else episode(**{name: (3, strange)})
    bad = replace(bad, prompt_ids=(strange,)) if name == "prompt_ids" else bad
    rows = len(TOKENIZER)
    with pytest.raises(DataError, match=rf"here: token id {strange} is none of the model's, which are 0 to {rows - 1}"):
        require_readable(TOKENIZER, rows, bad, "here")
    if strange == rows:
        require_readable(TOKENIZER, rows + 1, bad, "here")  # a table may have more rows than there are tokens


def test_ids_of_an_unknown_tokenizer_pass_where_no_model_reads_them() -> None:
    require_ids_of(TOKENIZER, "", "here")
    require_ids_of(TOKENIZER, fingerprint(byte_tokenizer()), "here")
    with pytest.raises(DataError, match="here: its token ids"):
        require_ids_of(TOKENIZER, fingerprint(OTHER), "here")


def test_two_models_that_read_the_same_ids_have_the_same_tokenizer() -> None:
    require_same(TOKENIZER, byte_tokenizer(), "a and b")
    for other in (OTHER, byte_tokenizer(tags=[*TAGS, "<more>"])):
        with pytest.raises(ConfigError, match=r"^a and b have different tokenizers \( and \), and one reads"):
            require_same(TOKENIZER, other, "a and b")
