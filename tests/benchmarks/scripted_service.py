"""An OpenAI-compatible service on loopback with scripted answers. It is the model and the judge of every peer.

Invariant: an answer depends only on the last message, so every library that plays an environment correctly gets the
same answers, in any order of calls.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWERS = (
    # Questions that quote other texts come first.
    (("Is this paragraph", "the moon"), "It is.\nVERDICT: 0.75"),
    (("Is this paragraph", "rust on iron"), "VERDICT: 0.25"),
    (("True or false?",), "<answer>false</answer>"),
    (("What is 3 + 4?",), "<answer>7</answer>"),
    (("What is 4 + 6?",), "<answer>11</answer>"),
    (("from 1 to 20",), 10),
    (("from 1 to 50",), 40),
    (("higher",), 12),
    (("lower",), "<answer>40</answer>"),
    (("right",), "<answer>12</answer>"),
)
"""Texts that the last message must contain, and the answer: a text, or a number for the tool that guesses."""
SCORES = {"quiz": (0.0, 1.0), "guess": (0.1 * 5 / 6, 1 + 0.1 * 4 / 6), "essay": (0.25, 0.75), "debate": (0.0, 1.0)}
"""The scores of the two episodes of each environment with these answers."""


class _Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = answer(body)
        if body.get("stream"):
            self._send("text/event-stream", _events(body["model"], message))
        else:
            document = _document(body["model"], "chat.completion", {"message": message}, message)
            self._send("application/json", json.dumps(document).encode())

    def _send(self, kind: str, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None: ...


def answer(body: dict[str, Any]) -> dict[str, Any]:
    """The message that answers a request. Without a list of tools a call is text, as models write it."""
    last = body["messages"][-1]["content"]
    asked = last if isinstance(last, str) else "".join(part["text"] for part in last)
    found = next(
        (said for words, said in ANSWERS if all(word in asked for word in words)), f"<answer>About {asked}</answer>"
    )
    if isinstance(found, str):
        return {"role": "assistant", "content": found}
    if not body.get("tools"):
        call = json.dumps({"name": "guess", "arguments": {"number": found}})
        return {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"}
    names = [tool["function"]["name"] for tool in body["tools"]]
    name = next(each for each in names if each.endswith("guess"))
    function = {"name": name, "arguments": json.dumps({"number": found})}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "one", "type": "function", "function": function}]}


def _document(model: str, kind: str, choice: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    ended = "tool_calls" if "tool_calls" in message else "stop"
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    choices = [{"index": 0, "finish_reason": ended, **choice}]
    return {"id": "one", "object": kind, "created": 1, "model": model, "choices": choices, "usage": usage}


def _events(model: str, message: dict[str, Any]) -> bytes:
    calls = [{"index": index, **call} for index, call in enumerate(message.get("tool_calls", ()))]
    delta = {**message, "tool_calls": calls} if calls else message
    document = _document(model, "chat.completion.chunk", {"delta": delta}, message)
    return f"data: {json.dumps(document)}\n\ndata: [DONE]\n\n".encode()


@contextlib.contextmanager
def scripted_service() -> Iterator[str]:
    """Runs the service and yields its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Service) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            serving.join()
