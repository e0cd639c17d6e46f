"""Log-probabilities of given tokens from a vLLM server: it reads each sequence as a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from common.cancellable_request import CancellableRequest
from modules.samplers.given_tokens import Given
from modules.samplers.vllm.client import NoAnswer
from modules.samplers.vllm.engine import VLLMEngine

# 0: the log-prob of the prompt's own token alone, so no limit on top-k applies. vLLM has to sample one token more.
_SAMPLING = {"temperature": 1.0, "max_tokens": 1, "ignore_eos": True, "prompt_logprobs": 0}


def forced_logps(engine: VLLMEngine, given: Sequence[Given]) -> list[tuple[float, ...]]:
    """Log-probs of every sequence's tokens at temperature 1; those without an answer are asked again.

    Raises:
        EngineError: the server rejects a sequence, or cannot be made to work.
    """
    logps: dict[int, tuple[float, ...]] = {}
    while left := [number for number in range(len(given)) if number not in logps]:
        engine.make_ready()
        life = engine.life
        with ThreadPoolExecutor(engine.rows) as threads:
            asked = {number: threads.submit(_ask, engine, given[number]) for number in left}
        answers = {number: one.result() for number, one in asked.items()}
        logps |= {number: one for number, one in answers.items() if not isinstance(one, NoAnswer)}
        if lost := [one for one in answers.values() if isinstance(one, NoAnswer)]:
            engine.recover(life, str(lost[0]))
    return [logps[number] for number in range(len(given))]


def _ask(engine: VLLMEngine, one: Given) -> tuple[float, ...] | NoAnswer:
    try:
        said = engine.generate(one.prefix + one.ids, _SAMPLING, CancellableRequest())
    except NoAnswer as error:
        return error
    return said.prompt_logps[-len(one.ids) :]
