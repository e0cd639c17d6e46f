"""Formats as plain text, and the reason of those that have none."""

from __future__ import annotations

import pytest

from envs.interfaces import AgentFormat
from envs.protocols.direct import Direct
from envs.protocols.prorag import ProRAG
from envs.types import Limits
from modules.export.plain_turns import NotPlain, plain_turns
from systems.hiprag.protocol import HiPRAG
from systems.reasonrag.protocol import ReasonRAG
from systems.search_r1.protocol import SearchR1
from tests.tiny import byte_tokenizer

TOKENIZER = byte_tokenizer()
HEAD, TAIL = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
STOPS = ["</subquery>", "</subanswer>", "</answer>"]


def described(protocol: type, turns: int = 3, **settings: object) -> dict:
    return plain_turns(protocol(TOKENIZER, **settings), Limits(turns=turns))


def test_prorag_as_text() -> None:
    found = described(ProRAG, instruction="Search.")
    assert found.pop("escape").startswith("(?i:<(?=")
    assert found == {
        "prompt": [f"{HEAD}Search.\n\nQuestion: ", TAIL],
        "turns": [{"opening": opening, "stop": STOPS} for opening in ("<step>\n", "\n<step>\n", "\n<step>\n")],
        "query": "(?s).*<subquery>(.*?)</subquery>",
        "answer": "(?s).*<answer>(.*?)</answer>",
        "passages": ["\n<retrieval>\n", "\n", "</retrieval>"],
        "otherwise": "",
        "eos_ends": True,
    }


def test_the_last_turn_of_search_r1_may_only_answer_and_turns_without_action_get_its_notice() -> None:
    found = described(SearchR1, turns=9, searches=2, notice="Again.")
    assert [turn["stop"] for turn in found["turns"]] == [["</search>", "</answer>"]] * 2 + [["</answer>"]]
    assert (found["otherwise"], found["eos_ends"]) == ("Again.", False)
    assert found["passages"] == ["\n\n<information>", "", "</information>\n\n"]


def test_hiprag_opens_the_first_turn_alone() -> None:
    found = described(HiPRAG, turns=9)
    assert [turn["opening"] for turn in found["turns"]] == ["<think><step><reasoning>", "", "", "", ""]
    assert found["passages"] == ["\n<context>", "\n", "</context>\n<conclusion>"]


@pytest.mark.parametrize(
    ("protocol", "reason"),
    [
        (ReasonRAG(TOKENIZER), "written anew"),
        (Direct(TOKENIZER, retrieve=False), "does not search"),
        (Direct(TOKENIZER, retrieve=True), "not plain text"),
    ],
)
def test_a_format_that_has_no_such_text_says_why(protocol: AgentFormat, reason: str) -> None:
    with pytest.raises(NotPlain, match=reason):
        plain_turns(protocol, Limits())
