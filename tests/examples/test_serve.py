"""The served agent: OpenAI's client, many at once, streams, nonsense, failures, and the page in a browser."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from examples.chat_api import create_app
from examples.serve import main
from tests.asked import MARKUP, Passages, agent
from tests.conftest import CHROMIUM
from tests.served import serving, wait_until


class Place:
    """A served agent, its passages, and a client of it."""

    def __init__(self, url: str, passages: Passages) -> None:
        self.url, self.passages = url, passages
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20)

    def ask(self, text: str, **settings: Any) -> Any:
        return self.client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": text}], **settings
        )


@pytest.fixture
def place() -> Iterator[Place]:
    passages = Passages()
    with serving() as start:
        yield Place(start(create_app(agent(passages), queue=8)).url, passages)
        passages.open.set()


def test_an_answer_has_its_sources_and_counts(place: Place) -> None:
    reply = place.ask("Who wrote it")
    [choice] = reply.choices
    assert (choice.message.content, choice.finish_reason, choice.message.status) == ("it!", "stop", "answered")
    assert choice.message.sources == [{"id": "doc-it", "title": "About it", "text": f"{MARKUP} it\\u202e"}]
    assert choice.message.reasoning_content.splitlines() == ["query: it (1 passages)", "subanswer: it", "answer: it!"]
    said = len("I need it. \n\nit ") + len("I see. \n\nit ") + len("So. \n\nit! ") + 3 * 3
    assert reply.usage.completion_tokens == said
    assert reply.usage.total_tokens == said + reply.usage.prompt_tokens
    assert [model.id for model in place.client.models.list()] == ["scripted"]


def test_eight_at_once_get_each_their_own_answer(place: Place) -> None:
    place.passages.open.clear()
    with ThreadPoolExecutor(8) as threads:
        replies = [threads.submit(place.ask, f"What is n{number}") for number in range(8)]
        wait_until(lambda: place.passages.batches)
        assert [model.id for model in place.client.models.list()] == ["scripted"], "nothing is held meanwhile"
        place.passages.open.set()
        answers = [reply.result().choices[0].message for reply in replies]
    assert [message.content for message in answers] == [f"n{number}!" for number in range(8)]
    assert [message.sources[0]["id"] for message in answers] == [f"doc-n{number}" for number in range(8)]


def test_a_stream_has_a_chunk_a_step_as_it_is_made_and_the_same_answer(place: Place) -> None:
    place.passages.open.clear()
    chunks = iter(place.ask("Who wrote it", stream=True))
    assert next(chunks).choices[0].delta.role == "assistant"
    place.passages.open.set()
    deltas = [(chunk.choices[0].delta, chunk.choices[0].finish_reason) for chunk in chunks]
    steps = [delta.step for delta, _ in deltas if hasattr(delta, "step")]
    assert [(step["number"], step["kind"], step["text"]) for step in steps] == [
        (1, "query", "it"),
        (2, "subanswer", "it"),
        (3, "answer", "it!"),
    ]
    assert steps[0]["hits"][0]["title"] == "About it"
    assert "".join(delta.content or "" for delta, _ in deltas) == "it!"
    assert [delta.sources[0]["id"] for delta, _ in deltas if hasattr(delta, "sources")] == ["doc-it"]
    assert [finish for _, finish in deltas if finish] == ["stop"]


def test_no_answer_within_the_budget_is_told_as_openai_does(place: Place) -> None:
    [choice] = place.ask("Say nothing").choices
    assert (choice.message.content, choice.finish_reason, choice.message.status) == ("", "length", "step_budget")


ASKED = {"messages": [{"role": "user", "content": "Who wrote it"}]}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"nonsense", 400, "body: Invalid JSON"),
        ({}, 400, "messages: Field required"),
        ({"messages": []}, 400, "messages: List should have at least 1 item"),
        ({"messages": [{"role": "user", "content": " \n"}]}, 400, "messages[0].content: the question is empty"),
        ({"messages": [{"role": "king", "content": "x"}]}, 400, "messages[0].role: Input should be 'system'"),
        ({"messages": [{"role": "user", "content": 7}]}, 400, "messages[0].content: Input should be a valid string"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "only parts of type text"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "messages[0].role: the last message must be"),
        ({"messages": [{"role": "user", "content": "x" * 8193}]}, 400, "8193 characters; at most 8192"),
        (ASKED | {"model": "gpt\n\x1b"}, 404, "there is no 'gpt \\\\x1b' here, only 'scripted'"),
        (ASKED | {"n": 2}, 400, "n: Input should be less than or equal to 1"),
        (ASKED | {"tools": [{}]}, 400, "tools: List should have at most 0 items"),
        (ASKED | {"stream": "yes"}, 400, "stream: Input should be a valid boolean"),
        (b" " * (2**20 + 1), 413, "body: longer than 1048576 bytes"),
    ],
)
def test_nonsense_is_4xx_with_one_line(place: Place, body: Any, status: int, message: str) -> None:
    payload = {"content": body} if isinstance(body, bytes) else {"json": body}
    reply = httpx.post(f"{place.url}/v1/chat/completions", **payload)
    assert reply.status_code == status
    error = reply.json()["error"]
    assert message in error["message"]
    assert "\n" not in error["message"]
    assert error["type"] == "invalid_request_error"


def test_what_clients_send_besides_is_read_or_ignored(place: Place) -> None:
    parts = [{"type": "text", "text": "Who "}, {"type": "text", "text": "wrote that"}]
    talk = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "x"}]
    talk += [{"role": "assistant", "content": None}, {"role": "user", "content": parts}]
    reply = place.client.chat.completions.create(
        model="scripted", messages=talk, temperature=0.7, max_tokens=5, n=None, user="ada"
    )
    assert reply.choices[0].message.content == "that!"
    for path in ("/v1/nothing", "/v1/chat/completions"):
        assert httpx.get(place.url + path).json()["error"]["type"] == "invalid_request_error"


def test_a_failed_question_fails_alone_in_one_line(place: Place) -> None:
    for word, status, line in [("down", 503, "the retriever is down"), ("bug", 500, "RuntimeError in the server")]:
        with pytest.raises(openai.APIStatusError) as caught:
            place.ask(f"Is it {word}")
        assert caught.value.status_code == status
        assert line in caught.value.body["message"]
        with pytest.raises(openai.APIError, match=line):
            list(place.ask(f"Is it {word}", stream=True))
    place.passages.open.clear()
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(place.ask, "Who is first")
        wait_until(lambda: place.passages.batches[-1:] == [1])
        bad, good = threads.submit(place.ask, "Is it bug"), threads.submit(place.ask, "Who wrote it")
        place.passages.open.set()
        assert isinstance(bad.exception(), openai.InternalServerError)
        assert [each.result().choices[0].message.content for each in (first, good)] == ["first!", "it!"]


def test_more_than_may_wait_is_503(place: Place) -> None:
    place.passages.open.clear()
    with ThreadPoolExecutor(9) as threads:
        replies = [threads.submit(place.ask, "Who wrote it")]
        wait_until(lambda: place.passages.batches)
        replies += [threads.submit(place.ask, f"Who wrote n{number}") for number in range(8)]

        def refused() -> bool:
            reply = httpx.post(f"{place.url}/v1/chat/completions", json=ASKED, timeout=0.3)
            return reply.status_code == 503 and reply.headers["retry-after"] == "1"

        def full() -> bool:
            try:
                return refused()
            except httpx.TimeoutException:
                return False

        wait_until(full)
        place.passages.open.set()
        assert sum(reply.exception() is None for reply in replies) >= 8


def test_a_site_that_names_another_host_is_refused(place: Place) -> None:
    assert httpx.get(f"{place.url}/v1/models", headers={"host": "evil.example"}).status_code == 400
    assert httpx.get(f"{place.url}/v1/models", headers={"host": "localhost:8000"}).status_code == 200


def test_a_port_in_use_is_one_line_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--agent", "nowhere", "--port", str(port)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"error: cannot serve at 127.0.0.1:{port}: ")
    assert shown.count("\n") == 1
    assert main(["--agent", "nowhere", "--port", "0"]) == 2
    assert "nowhere/agent.yaml is missing" in capsys.readouterr().err


@pytest.mark.browser
def test_the_page_shows_steps_answer_and_sources_as_text_alone(place: Place) -> None:
    from playwright.sync_api import expect, sync_playwright

    told: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("console", lambda message: told.append(message.text))
        page.on("dialog", lambda dialog: told.append("dialog"))
        page.goto(place.url)
        expect(page.locator("h1")).to_have_text("scripted")
        place.passages.open.clear()
        page.fill("#question", f"{MARKUP} Who wrote it")
        page.keyboard.press("Enter")
        expect(page.locator(".question")).to_have_text(f"{MARKUP} Who wrote it")
        expect(page.locator(".answer")).to_have_text("…")
        place.passages.open.set()
        expect(page.locator(".answer")).to_have_text("it!")
        assert page.locator(".step .kind").all_text_contents() == ["query", "subanswer", "answer"]
        [source] = page.locator("article > details").all()
        assert source.locator("p").first.is_hidden()
        source.locator("summary").click()
        assert source.locator("p").first.text_content() == f"{MARKUP} it\\u202e"
        assert page.locator("img").count() == 0
        page.fill("#question", "Is it down")
        page.click("button")
        expect(page.locator(".error")).to_have_text("the retriever is down")
        browser.close()
    assert told == []


def test_the_page_is_whole_in_itself_and_nothing_else_may_run_in_it(place: Place) -> None:
    reply = httpx.get(place.url)
    assert "http" not in reply.text
    assert "innerHTML" not in reply.text
    policy = reply.headers["content-security-policy"]
    assert {"default-src 'none'", "connect-src 'self'"} <= {*policy.split("; ")}
    assert policy.count("'sha256-") == 2
