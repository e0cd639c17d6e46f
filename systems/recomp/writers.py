"""Models that write summaries, greedily: an encoder-decoder such as T5, or a causal model."""

from __future__ import annotations

import typing
from collections import Counter

import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerBase

from common.costs import counted, read_by, tokens_of
from common.errors import ConfigError
from common.gpu import prepare_gpu
from common.precision import Dtype
from envs.requests import Request
from envs.sampling import take_turns
from envs.text import load_tokenizer, require_present
from envs.types import Episode, Question
from modules.policy import Policy
from modules.samplers.in_process import InProcessSampler

AGENT = "compressor"


class Writer(typing.Protocol):
    """Writes a text after a prompt of token ids."""

    tokenizer: PreTrainedTokenizerBase

    def write(self, prompt_ids: tuple[int, ...], max_tokens: int) -> str:
        """The most probable text, one token after the other."""
        ...


class Seq2SeqWriter:
    """An encoder-decoder from a folder or the hub, such as `fangyuan/nq_abstractive_compressor`.

    `counts` has the tokens that it read and wrote, as those of the agent `compressor`.

    Raises:
        ConfigError: there is no such model.
    """

    def __init__(
        self, model: str, *, dtype: Dtype = "float32", device: str = "auto", revision: str | None = None
    ) -> None:
        require_present(model, "compressor")
        prepare_gpu()
        try:
            network = AutoModelForSeq2SeqLM.from_pretrained(model, revision=revision, dtype=getattr(torch, dtype))
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"compressor {model}: no encoder-decoder that can be loaded: {reason}") from error
        self.tokenizer = load_tokenizer(model, revision=revision)
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = network.eval().to(device)
        self.counts: Counter[str] = Counter()

    @torch.inference_mode()
    def write(self, prompt_ids: tuple[int, ...], max_tokens: int) -> str:
        ids_1T = torch.tensor([[*prompt_ids, self.tokenizer.eos_token_id]], device=self._model.device)
        settings = {"max_new_tokens": max_tokens, "do_sample": False, "num_beams": 1}
        written_1T = self._model.generate(input_ids=ids_1T, attention_mask=torch.ones_like(ids_1T), **settings)
        self.counts[read_by(AGENT)] += ids_1T.shape[1]
        self.counts[tokens_of(AGENT)] += written_1T.shape[1] - 1  # the first begins the decoder
        return str(self.tokenizer.decode(written_1T[0], skip_special_tokens=True)).strip()


class CausalWriter:
    """A causal model, through a sampler of its own in this process; a line break ends what it writes."""

    def __init__(self, policy: Policy) -> None:
        # Not one that others use: it would collect their turns, and they its own.
        self.sampler, self.tokenizer = InProcessSampler(policy, batch_size=1), policy.tokenizer

    @property
    def counts(self) -> Counter[str]:
        """The tokens that it read and wrote, as those of the agent `compressor`."""
        return counted(self.sampler)

    def write(self, prompt_ids: tuple[int, ...], max_tokens: int) -> str:
        episode = Episode(Question("", "", ()), prompt_ids)
        asked = Request(episode, (), ("\n",), agent=AGENT, max_tokens=max_tokens, greedy=True)
        [turn] = take_turns(self.sampler, [asked])
        self.sampler.counts[read_by(AGENT)] += len(prompt_ids)
        self.sampler.release([episode])
        written = self.tokenizer.decode(list(turn.action_ids), skip_special_tokens=True)
        return str(written).strip()
