"""A small server with vLLM's routes over a real tiny model, well or in all the ways a server can fail.

It holds the weights that it was given in files, samples with the seeds of the requests and tells the log-probs of its
own forward passes: what a sampler gets from it can be held against the policy that is trained.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import torch
from peft import PeftModel

from modules.functional.logprobs import token_logprobs
from modules.policy import Policy, load_policy

Fault = int | str | Callable[[dict[str, Any]], None]


class VLLMServer(ThreadingHTTPServer):
    """Answers on any port. Before that, each turn takes a fault from `faults`, while there are any.

    A fault is a status, "hangs up", "late" (longer than a test waits), "held" until the client gives up, None for no
    fault, or a change of the answer's choice. A request to a path of `faults_by_path`, fixed prompts are "proof", takes
    one from there. An update that is broken off stays as it is, like vLLM's: where the server hangs up it has done what
    it was asked to. It samples from the last adapter alone, and like vLLM's its cache of what was read lasts until a
    pause and goes by the adapters' names. `calls` holds the paths and bodies of all requests in order.
    """

    daemon_threads = True
    request_queue_size = 64  # connections that come at once must not be refused
    block_on_close = False

    def __init__(self, port: int = 0, folder: Path | None = None) -> None:
        super().__init__(("127.0.0.1", port), _Reply)
        self.faults: list[Fault | None] = []
        self.faults_by_path: dict[str, list[Fault | None]] = {}
        self.holds, self.given_up = Event(), Event()  # a turn; the client gave it up
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.policy: Policy | None = None if folder is None else load_policy(str(folder), device="cpu")
        self.adapter: tuple[str, Policy] | None = None
        self.known: list[str] = []  # adapters by name: all that were loaded and not unloaded
        self.cache: dict[tuple[str, tuple[int, ...]], torch.Tensor] = {}
        self.weights = "default"
        self.paused = self.updating = self.asleep = False
        self.context = 4096
        self.delay: Callable[[dict[str, Any]], float] = lambda sampling: 0.0
        self.ignores_updates = False
        self.raw_logprobs = False  # as without `--logprobs-mode processed_logprobs`
        self.lock = Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def turns(self) -> list[dict[str, Any]]:
        """The sampling parameters of all turns that were asked for, the fixed prompts left out."""
        asked = [body for path, body in self.calls if path == "/inference/v1/generate"]
        return [body["sampling_params"] for body in asked if not body["sampling_params"].get("ignore_eos")]

    def control(self) -> list[str]:
        """The routes of weight updates that were called."""
        return [path for path, _ in self.calls if path != "/inference/v1/generate"]

    def change(self, path: str, body: dict[str, Any]) -> str | None:
        """Move through a weight update or fall asleep; why vLLM refuses to, or None."""
        assert not self.asleep or path == "/wake_up", f"{path} while it is asleep"
        if path in ("/sleep?level=1&mode=wait", "/wake_up"):
            self.paused = self.asleep = path != "/wake_up"
            self.cache.clear()
        if path == "/start_weight_update" and self.updating:
            return "start_weight_update called while a weight update is already active"
        if path in ("/update_weights", "/finish_weight_update") and not self.updating:
            return f"{path} without start_weight_update"
        if path in ("/start_weight_update", "/update_weights", "/finish_weight_update"):
            assert self.paused, f"{path} while turns are sampled"
            self.updating = path != "/finish_weight_update"
        if path in ("/pause?mode=wait", "/resume"):
            assert not self.updating or path != "/resume", "sampling from half of the weights"
            self.paused = path != "/resume"
            self.cache.clear()
        if path == "/v1/load_lora_adapter":
            assert self.paused, f"{path} while turns are sampled"
            if self.adapter and self.adapter[0] == body["lora_name"]:
                return "The lora adapter has already been loaded."
            self.load_adapter(body["lora_name"], body["lora_path"])
            self.known.append(body["lora_name"])
        if path == "/v1/unload_lora_adapter":
            if body["lora_name"] not in self.known:
                return "The lora adapter cannot be found."
            self.known.remove(body["lora_name"])
        if path == "/update_weights" and not self.ignores_updates:
            self.policy = load_policy(body["update_info"]["folder"], device="cpu")
        self.weights = body.get("weight_version") or body.get("new_version") or self.weights
        return None

    def load_adapter(self, name: str, folder: str) -> None:
        """Put an adapter on a copy of the model; one that ignores updates gives the earlier adapter the new name."""
        assert self.policy is not None
        adapted = copy.deepcopy(self.policy)
        PeftModel.from_pretrained(adapted.model, folder)
        self.adapter = name, self.adapter[1] if self.adapter and self.ignores_updates else adapted

    def sampling(self, name: str | None) -> Policy | None:
        """The policy that a turn asks for by the name of an adapter, if there is one."""
        if name is None:
            return self.policy
        return self.adapter[1] if self.adapter and self.adapter[0] == name else None

    def logits(self, policy: Policy, name: str | None, ids: list[int]) -> torch.Tensor:
        """Of the next token, `[1, 1, V]`, from the cache where these ids were read already."""
        if (key := (name or "", tuple(ids))) not in self.cache:
            with torch.no_grad():
                self.cache[key] = policy.model(torch.tensor([ids])).logits[:, -1:].float()
        return self.cache[key]

    def read(self, policy: Policy, ids: list[int]) -> list[Any]:
        """vLLM's log-probs of a prompt: of the given tokens alone, none of the first."""
        ids_1T = torch.tensor([ids])
        with torch.no_grad():
            logps_1T = token_logprobs(policy.model(ids_1T).logits[:, :-1].float(), ids_1T[:, 1:])
        known = zip(ids[1:], logps_1T[0].tolist(), strict=True)
        return [None, *({str(token): {"logprob": logp, "rank": 1}} for token, logp in known)]

    def sample(self, body: dict[str, Any]) -> dict[str, Any]:
        """vLLM's answer: sampled ids and their log-probs at the temperature."""
        policy = self.sampling(name := body.get("model"))
        assert policy is not None
        assert not self.paused
        wanted, ids = body["sampling_params"], list(body["token_ids"])
        temperature, eos = wanted["temperature"], set(wanted.get("stop_token_ids", ()))
        generator = torch.Generator().manual_seed(wanted.get("seed", 0) % 2**63)
        logps: list[float] = []
        finish, stop = "length", None
        while len(logps) < wanted["max_tokens"]:
            logits = self.logits(policy, name, ids)
            own = (logits[0, 0] / (temperature or 1.0)).softmax(-1)
            token = int(own.argmax()) if not temperature else int(torch.multinomial(own, 1, generator=generator))
            alone = wanted.get("top_k") == 1 and not self.raw_logprobs
            asked = 1.0 if self.raw_logprobs else temperature or 1.0
            logps.append(0.0 if alone else float(token_logprobs(logits, torch.tensor([[token]]), asked)))
            ids.append(token)
            said = policy.tokenizer.decode(ids[-len(logps) :], skip_special_tokens=False)
            stop = next((tag for tag in wanted.get("stop", ()) if tag in str(said)), None)
            if token in eos or stop is not None:
                finish, stop = "stop", token if stop is None else stop
                break
        spans = [{"version": self.weights, "start": 0, "end": len(logps)}]
        content = [{"token_id": token, "logprob": logp} for token, logp in zip(ids[-len(logps) :], logps, strict=True)]
        return {
            "token_ids": ids[-len(logps) :],
            "logprobs": {"content": content},
            "finish_reason": finish,
            "stop_reason": stop,
            "weight_versions": spans,
            "prompt_logprobs": self.read(policy, body["token_ids"]) if "prompt_logprobs" in wanted else None,
        }


class _Reply(BaseHTTPRequestHandler):
    server: VLLMServer

    def do_GET(self) -> None:
        models = {"data": [{"max_model_len": self.server.context}]}
        self.send(200, {"/version": {"version": "0.0.0"}, "/v1/models": models}.get(self.path, {}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        with self.server.lock:
            self.server.calls.append((self.path, body))
            is_turn = self.path == "/inference/v1/generate" and not body["sampling_params"].get("ignore_eos")
            is_proof = self.path == "/inference/v1/generate" and not is_turn
            of_path = self.server.faults_by_path.get("proof" if is_proof else self.path, [])
            faults = of_path or (self.server.faults if is_turn else [])
            fault = faults.pop(0) if faults else None
        if isinstance(fault, int):
            self.server.updating &= self.path != "/update_weights"  # which ends an update as it fails
            self.send(fault, {"error": {"message": f"fault {fault}"}})
        elif self.path != "/inference/v1/generate":
            with self.server.lock:
                refused = self.server.change(self.path, body)
            if fault == "hangs up":
                self.hang_up()
            else:
                done = "Success" if self.path.endswith("lora_adapter") else {}  # no object
                self.send(500 if refused else 200, {"error": {"message": refused}} if refused else done)
        elif fault == "hangs up":
            self.hang_up()
        elif fault == "held":
            self.close_connection = True
            self.server.holds.set()
            if not self.connection.recv(1):
                self.server.given_up.set()
        else:
            time.sleep(30 if fault == "late" else self.server.delay(body["sampling_params"]))
            with self.server.lock:
                unknown = self.server.sampling(body.get("model")) is None
                choice = {} if unknown else self.server.sample(body)
            if callable(fault):
                fault(choice)
            said = {"choices": [choice], "model": body.get("model", "base")}
            said["prompt_logprobs"] = choice.pop("prompt_logprobs", None)
            self.send(404 if unknown else 200, {"error": {"message": "no such model"}} if unknown else said)

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def send(self, status: int, payload: object) -> None:
        raw = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        with suppress(OSError):  # the client may have gone
            self.wfile.write(raw)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def vllm_server() -> Iterator[VLLMServer]:
    """A running server without weights, as one at `urls` that others have started."""
    server = VLLMServer()
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
