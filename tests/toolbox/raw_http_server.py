"""An MCP server over HTTP whose answers are written by hand: `tests.toolbox.raw_http_server PORT`.

Each tool answers in its own form with exactly the bytes that the call names, which no SDK would write.
"""

from __future__ import annotations

import gzip
import json
import sys
from typing import Any

import uvicorn

SIZE = 7
"""Bytes of a piece of an answer: characters and escapes are cut."""


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    body = b""
    while (part := await receive()).get("more_body"):
        body += part["body"]
    request = json.loads(body + part.get("body", b"") or b"{}")
    if "id" not in request:
        await _send(send, 405 if scope["method"] == "GET" else 202, {}, [b""])
        return
    tool, text = "whole", b""
    if request["method"] == "tools/call":
        tool, text = request["params"]["name"], bytes.fromhex(request["params"]["arguments"]["inside"])
    answer = _answer(request).replace(b"~", text)
    headers = {"content-type": "application/json"}
    if tool == "events":
        headers, answer = {"content-type": "text/event-stream"}, b"event: message\ndata: " + answer + b"\n\n"
    if tool == "compressed":
        headers, answer = headers | {"content-encoding": "gzip"}, gzip.compress(answer)
    await _send(send, 200, headers, [answer[at : at + SIZE] for at in range(0, len(answer), SIZE)])


def _answer(request: dict[str, Any]) -> bytes:
    kept: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
    match request["method"]:
        case "initialize":
            info = {"serverInfo": {"name": "raw", "version": "1"}, "capabilities": {"tools": {}}}
            kept["result"] = info | {"protocolVersion": request["params"]["protocolVersion"]}
        case "tools/list":
            names = ("whole", "events", "compressed")
            kept["result"] = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
        case "tools/call":
            kept["result"] = {"content": [{"type": "text", "text": "~"}]}
        case _:
            kept["error"] = {"code": -32601, "message": "There is no such method."}
    return json.dumps(kept).encode()


async def _send(send: Any, status: int, headers: dict[str, str], pieces: list[bytes]) -> None:
    written = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": written})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
