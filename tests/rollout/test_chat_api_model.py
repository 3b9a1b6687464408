"""A model behind an address: what a service repeats of the key is in no error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agentrl.chat.template import Template
from agentrl.engines.embedded.tiny_words import build_words
from agentrl.engines.interface import (
    CallRefusedError,
    EngineBusyError,
    EngineCall,
    EngineError,
    EngineGoneError,
    EngineRubbishError,
    Sampling,
)
from agentrl.engines.openai_calls import OpenAiCalls
from agentrl.other_models import service_health
from agentrl.rollout.chat_api_model import ChatApiModel
from agentrl.tokens import image_ids
from tests.other_models.services import RawAnswer, Service
from tests.waiting import PATIENCE_S

KEY = "sk-0123456789"


class _Repeating(BaseHTTPRequestHandler):
    """Refuses with the key that it got; the path says by which status."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = f"Incorrect API key provided: {self.headers['Authorization']}".encode()
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None: ...


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Repeating) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("path", "kind", "sentence"),
    [
        ("/401", CallRefusedError, "refuses the call: status 401: Incorrect API key provided: Bearer …"),
        ("/500", EngineError, "fails: status 500: Incorrect API key provided: Bearer …"),
        ("/200", EngineRubbishError, "its answer cannot be read"),
    ],
)
async def test_a_refusal_is_shown_without_the_key(
    tmp_path: Path, address: str, path: str, kind: type[Exception], sentence: str
) -> None:
    build_words(tmp_path, ["one two"])
    template = Template.of(tmp_path)
    model = ChatApiModel(template, address + path, "large", KEY, 0, max_tokens=8)
    try:
        with pytest.raises(kind, match=sentence) as refused:
            await model.generate(
                EngineCall("a/0", template.first("", (), "one"), Sampling(max_new_tokens=8), deadline_s=10)
            )
    finally:
        await model.close()
    assert KEY not in str(refused.value)


async def test_an_address_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    build_words(tmp_path, ["one two"])
    template = Template.of(tmp_path)
    model = ChatApiModel(template, "http://me:secret@127.0.0.1:port", "large", "", 0, max_tokens=8)
    try:
        with pytest.raises(EngineGoneError, match="does not answer: its address is invalid") as failed:
            await model.generate(
                EngineCall("a/0", template.first("", (), "one"), Sampling(max_new_tokens=8), deadline_s=10)
            )
    finally:
        await model.close()
    assert "secret" not in str(failed.value)


async def test_a_prompt_with_images_is_refused_instead_of_sent_without_them(tmp_path: Path) -> None:
    build_words(tmp_path, ["one two"])
    template = Template.of(tmp_path)
    service = await Service(lambda asked: "I see no image.").start()
    model = ChatApiModel(template, service.url, "large", KEY, 0, max_tokens=8)
    prompt = [*template.first("", (), "one"), image_ids.id_of(7)]
    try:
        with pytest.raises(CallRefusedError, match="gets no images"):
            await model.generate(
                EngineCall("a/0", prompt, Sampling(max_new_tokens=8), deadline_s=10, images={7: b"png"})
            )
        assert not service.asked
    finally:
        await model.close()
        await service.close()


async def test_a_service_that_asks_to_be_left_alone_is_asked_again_within_the_time_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service_health, "FIRST_S", 0.01)
    waits = ["0", "0.01"]
    service = await Service(
        lambda asked: RawAnswer(b"slow down", 429, f"Retry-After: {waits.pop(0)}\r\n") if waits else "yes"
    ).start()
    calls = OpenAiCalls(service.url, KEY)
    try:
        assert (await calls.answer({"messages": []}, within_s=PATIENCE_S)).text == "yes"
        assert len(service.asked) == 3
        waits.append("60")
        with pytest.raises(EngineBusyError, match="is busy: status 429: slow down"):
            await calls.answer({"messages": []}, within_s=5)
        assert len(service.asked) == 4
    finally:
        await calls.close()
        await service.close()
