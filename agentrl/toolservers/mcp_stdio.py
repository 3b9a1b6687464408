"""Serves tools by the Model Context Protocol over stdin and stdout.

The official SDK takes half a second to import; a session of a sandboxed server starts with each episode. These servers
only list and call tools, so they need few of its messages.

Invariants:
- Only messages are written to the stdout of the protocol: whatever a tool prints goes to stderr.
- Each request gets one answer, except a cancelled one, which gets none.
- A failed call is a result with `isError`, which the model reads; it never ends the server.
- A result has at most `MOST_RESULT_CHARS` characters, and a request at most `MOST_LINE_BYTES` bytes.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from agentrl.toolservers.shortening import both_ends
from agentrl.toolservers.user_names import DEFAULT_EFFECT, Effect, ToolError

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Versions of the protocol, the newest first."""
EFFECT_KEY = "agentrl/effect"
"""Key in the metadata of a listed tool: what its calls change."""
EXAMPLE_KEY = "agentrl/example"
"""Key in the metadata of a listed tool: arguments with which it can be tried."""
SESSION_KEY = "agentrl/session"
"""Key in the metadata of a call: its session, for a server that keeps several."""
TRACE_KEY = "traceparent"
"""Key in the metadata of a call, as MCP and W3C Trace Context define it."""
MOST_LINE_BYTES = 64 << 20
MOST_RESULT_CHARS = 1 << 20
LAST_CALLS_WITHIN_S = 0.5
_LOOK_EVERY_S = 0.01
_PARSE_ERROR, _INVALID_REQUEST, _UNKNOWN_METHOD, _INVALID_PARAMS = -32700, -32600, -32601, -32602
_HALF_CHARACTERS = re.compile("[\ud800-\udfff]")
_PYTHON_FRAMES = 3
"""The most frames of a traceback in the log."""


Result = str | list[str | bytes]
"""A text, or texts and images."""
_KINDS = {b"\x89PNG": "png", b"\xff\xd8": "jpeg", b"GIF8": "gif", b"RIFF": "webp", b"BM": "bmp"}
"""Types of images by the first bytes of their files."""


class Call:
    """One call under way."""

    def __init__(self, session: str, trace: str = "") -> None:
        self.session = session
        self.trace = trace
        """Its `traceparent`, if the caller sent one."""
        self.cancelled = threading.Event()
        self._on_cancel: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def on_cancel(self, act: Callable[[], object]) -> None:
        """Calls `act` when the caller gives up, or at once if it already has."""
        with self._lock:
            self._on_cancel.append(act)
            given_up = self.cancelled.is_set()
        if given_up:
            act()

    def cancel(self) -> None:
        with self._lock:
            self.cancelled.set()
            acts = list(self._on_cancel)
        for act in acts:
            act()


@dataclass(frozen=True)
class Tool:
    """A tool with the function that runs a call. It raises ToolError for the model to read."""

    name: str
    description: str
    schema: Mapping[str, Any]
    run: Callable[[dict[str, Any], Call], Result]
    effect: Effect = DEFAULT_EFFECT
    example: Mapping[str, Any] | None = None
    """Arguments with which it can be tried."""

    def listed(self) -> dict[str, Any]:
        hints = {"readOnlyHint": self.effect == "pure", "openWorldHint": self.effect == "outside"}
        if self.effect == "pure":
            hints["idempotentHint"] = True
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": dict(self.schema),
            "annotations": hints,
            "_meta": {EFFECT_KEY: self.effect} | ({} if self.example is None else {EXAMPLE_KEY: dict(self.example)}),
        }


class _RefusedError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Server:
    """Tools that are served until stdin ends."""

    name: str
    version: str
    tools: Iterable[Tool]
    at_end: Callable[[], object] = lambda: None
    """Called once before the process ends."""
    _calls: dict[str, Call] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self) -> None:
        """Answer requests. Ends the process when stdin ends or SIGTERM arrives, whatever the tools are doing."""
        incoming, self._out = _own_pipes()
        self._by_name = {tool.name: tool for tool in self.tools}
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        while line := incoming.readline(MOST_LINE_BYTES):
            if not line.endswith(b"\n") and len(line) == MOST_LINE_BYTES:
                _skip_line(incoming)
                self._refuse(None, _INVALID_REQUEST, f"a request may have {MOST_LINE_BYTES} bytes")
            elif line.strip():
                self._take(line)
        # A client may close stdin right after its last request.
        until = time.monotonic() + LAST_CALLS_WITHIN_S
        while self._calls and time.monotonic() < until:
            time.sleep(_LOOK_EVERY_S)
        self._end()

    def _end(self) -> None:
        try:
            self.at_end()
        finally:
            os._exit(0)  # Calls that still run must not keep the process alive.

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            self._refuse(None, _PARSE_ERROR, "this is not JSON")
            return
        if not isinstance(message, dict) or not isinstance(message.get("method"), str):
            # Answers have no method, and this server asks its client for nothing.
            if not isinstance(message, dict) or not message.keys() & {"result", "error"}:
                self._refuse(None, _INVALID_REQUEST, "this is not a request")
            return
        id, method = message.get("id"), message["method"]
        params = message.get("params") or {}
        if not isinstance(params, dict):
            self._refuse(id, _INVALID_PARAMS, "params must be an object")
        elif id is None:
            if method == "notifications/cancelled":
                self._cancel(params.get("requestId"))
        else:
            try:
                self._answer(id, method, params)
            except _RefusedError as refused:
                self._refuse(id, refused.code, str(refused))

    def _answer(self, id: object, method: str, params: dict[str, Any]) -> None:
        match method:
            case "initialize":
                wanted = params.get("protocolVersion")
                version = wanted if wanted in VERSIONS else VERSIONS[0]
                info = {"name": self.name, "version": self.version}
                self._send(id, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
            case "ping":
                self._send(id, {})
            case "tools/list":
                self._send(id, {"tools": [tool.listed() for tool in self._by_name.values()]})
            case "tools/call":
                self._begin(id, params)
            case _:
                raise _RefusedError(_UNKNOWN_METHOD, f"there is no method {method}")

    # ---- calls ----

    def _begin(self, id: object, params: dict[str, Any]) -> None:
        tool = self._by_name.get(str(params.get("name")))
        if tool is None:
            raise _RefusedError(_INVALID_PARAMS, f"there is no tool {params.get('name')!r}")
        arguments = params.get("arguments") or {}
        meta = params.get("_meta") or {}
        if not isinstance(arguments, dict) or not isinstance(meta, dict):
            raise _RefusedError(_INVALID_PARAMS, "arguments must be an object")
        call = Call(str(meta.get(SESSION_KEY, "")), str(meta.get(TRACE_KEY, "")))
        with self._lock:
            self._calls[json.dumps(id)] = call
        try:
            threading.Thread(target=self._run, args=(id, tool, arguments, call), daemon=True).start()
        except RuntimeError:
            self._finish(id, call, "This server cannot begin another call: it has too many threads.", failed=True)

    def _run(self, id: object, tool: Tool, arguments: dict[str, Any], call: Call) -> None:
        result, failed = outcome_of(tool, arguments, call)
        self._finish(id, call, result, failed=failed)

    def _finish(self, id: object, call: Call, result: Result, *, failed: bool) -> None:
        if not call.cancelled.is_set():
            parts = [result] if isinstance(result, str) else result
            self._send(id, {"content": list(map(_block, parts)), "isError": failed})
        with self._lock:
            self._calls.pop(json.dumps(id), None)

    def _cancel(self, id: object) -> None:
        with self._lock:
            call = self._calls.get(json.dumps(id))
        if call is not None:
            call.cancel()

    # ---- output ----

    def _refuse(self, id: object, code: int, message: str) -> None:
        self._write({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})

    def _send(self, id: object, result: dict[str, Any]) -> None:
        self._write({"jsonrpc": "2.0", "id": id, "result": result})

    def _write(self, message: dict[str, Any]) -> None:
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
        line = _HALF_CHARACTERS.sub("\ufffd", text).encode() + b"\n"
        with self._lock:
            try:
                self._out.write(line)
                self._out.flush()
            except OSError:
                os._exit(0)  # The client is gone.


def _block(part: str | bytes) -> dict[str, str]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = next((kind for begin, kind in _KINDS.items() if part.startswith(begin)), "octet-stream")
    return {"type": "image", "data": base64.b64encode(part).decode(), "mimeType": f"image/{kind}"}


def outcome_of(tool: Tool, arguments: dict[str, Any], call: Call) -> tuple[Result, bool]:
    """The result of a call, and whether it failed."""
    try:
        result = tool.run(arguments, call)
        if isinstance(result, str):
            return both_ends(result, MOST_RESULT_CHARS), False
        return [both_ends(part, MOST_RESULT_CHARS) if isinstance(part, str) else part for part in result], False
    except ToolError as refused:
        return both_ends(str(refused), MOST_RESULT_CHARS), True
    except BaseException as broken:  # noqa: BLE001 - the code of a user may raise anything, SystemExit too
        frames = traceback.extract_tb(broken.__traceback__)[-_PYTHON_FRAMES:]
        head = f"{tool.name} failed in the trace {call.trace}:\n" if call.trace else ""
        print(head + "".join(traceback.format_list(frames)), end="", file=sys.stderr, flush=True)
        return both_ends(_last_line(broken), MOST_RESULT_CHARS), True


def _last_line(broken: BaseException) -> str:
    """The type and the message of an exception."""
    return "".join(traceback.format_exception_only(broken)).strip()


def _own_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes of the protocol, separated from the stdin and stdout that the code of tools sees."""
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(incoming, "rb"), os.fdopen(outgoing, "wb")


def _skip_line(incoming: BinaryIO) -> None:
    while (part := incoming.readline(1 << 20)) and not part.endswith(b"\n"):
        pass
