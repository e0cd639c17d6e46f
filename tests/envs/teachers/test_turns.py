"""What a teacher writes is what a policy could have."""

from __future__ import annotations

from dataclasses import replace

from envs.protocols.prorag import ProRAG
from envs.requests import Request
from envs.teachers.turns import written_turn
from envs.types import Episode, Move
from tests.tiny import byte_tokenizer, question

PROTOCOL = ProRAG(byte_tokenizer(), instruction="")  # type: ignore[arg-type] (a loaded one will do)


def test_a_turn_is_cut_where_a_policy_s_would_be() -> None:
    asked = Request(Episode(question(), (1,)), (), (), max_tokens=500)
    moves = [Move("search", "Who wrote The Reed?", "I look for the author.")]
    whole = written_turn(PROTOCOL, asked, moves)
    assert (whole.finish, whole.text.endswith("</subquery>")) == ("stop", True)
    length = len(whole.action_ids)
    assert written_turn(PROTOCOL, replace(asked, max_tokens=length), moves).finish == "stop"
    cut = written_turn(PROTOCOL, replace(asked, max_tokens=length - 1), moves)
    assert (cut.finish, cut.action_ids, len(cut.action_logps)) == ("length", whole.action_ids[:-1], length - 1)
    assert cut.text == PROTOCOL.codec.decode(cut.action_ids)
