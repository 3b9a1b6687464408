"""An MCP server over stdio that shows every fault of a tool server on request.

It is written by hand, because it starts 20 times faster than a server with the SDK, and can write text that no SDK
writes.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

Result = str | dict[str, Any]
counts: Counter[str] = Counter()
running: dict[Any, asyncio.Task[None]] = {}


class Refusal(Exception):
    """A failure of the tool."""


class Breakage(Exception):
    """A failure of the server."""


METADATA: ContextVar[dict[str, Any]] = ContextVar("metadata")
"""Of the present call."""


class Tools:
    """One method per tool; `session` is the key in the call's metadata."""

    async def echo(self, session: str, text: str) -> Result:
        return text

    async def trace(self, session: str) -> Result:
        """Where its call belongs, by its metadata and by the environment."""
        return f"{METADATA.get().get('traceparent')} {os.environ.get('TRACEPARENT')}"

    async def count(self, session: str) -> Result:
        """Pid, the session's key, and the number of calls with this key."""
        counts[session] += 1
        return f"{os.getpid()} {session} {counts[session]}"

    async def tick(self, session: str) -> Result:
        """How often this session has called it."""
        counts[f"ticks of {session}"] += 1
        return f"tick {counts[f'ticks of {session}']}"

    async def note(self, session: str, path: str, seconds: float = 0.0, until: str = "") -> Result:
        """Write lines to a file, which show how often this ran. It takes `seconds`, and then waits for the file
        `until`.
        """
        _append(path, "begun")
        try:
            await asyncio.sleep(seconds)
            while until and not Path(until).exists():  # noqa: ASYNC240 - one look
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            _append(path, "cancelled")
            raise
        _append(path, "ended")
        return "noted"

    async def hang(self, session: str) -> Result:
        """The server answers no other request meanwhile."""
        time.sleep(600)  # noqa: ASYNC251 - that is the point
        return "never"

    async def die(self, session: str, words: str = "") -> Result:
        print(words, file=sys.stderr, flush=True)
        os._exit(3)

    async def big(self, session: str, chars: int) -> Result:
        return "<" + "x" * (chars - 2) + ">"

    async def environment(self, session: str) -> Result:
        return json.dumps(dict(os.environ))

    async def python(self, session: str, code: str) -> Result:
        """Run code, as a model could write it, and return its variable `found`."""
        names: dict[str, Any] = {}
        try:
            exec(code, names)
        except (OSError, MemoryError) as failed:
            return f"{type(failed).__name__}: {failed}"
        return str(names.get("found"))

    async def refuse(self, session: str, text: str) -> Result:
        raise Refusal(text)

    async def fail(self, session: str) -> Result:
        raise Breakage("the line is down")

    async def search(self, session: str, while_down: str, at_most: str = "") -> Result:
        """Fails while the file exists. While the file `at_most` exists, only as many searches end as it says."""
        if Path(while_down).exists():  # noqa: ASYNC240 - one look
            raise Breakage("the line is down")
        counts["searches"] += 1
        number = counts["searches"]
        while at_most and Path(at_most).exists() and number > int(Path(at_most).read_text()):  # noqa: ASYNC240
            await asyncio.sleep(0.01)
        return "found"

    async def stumble(self, session: str, path: str, then_s: float = 0.0) -> Result:
        """Fails at the first call with this file; later calls take `seconds`."""
        first = not Path(path).exists()  # noqa: ASYNC240 - one look
        _append(path, session)
        if first:
            raise Breakage("the line is down")
        await asyncio.sleep(then_s)
        return "found"

    async def excuse(self, session: str) -> Result:
        """A failure that names its own classification."""
        return {**_content("upstream is down"), "isError": True, "_meta": {"agentrl/fault": "infrastructure"}}

    async def nonsense(self, session: str) -> Result:
        """An answer that is not a result of a tool."""
        return {"content": "nothing of the kind"}

    async def rubbish(self, session: str) -> Result:
        """An answer that is not valid JSON."""
        print(f'{{"jsonrpc":"2.0","id":{_id()},"result":{{"content":[{{"type":"text","text":"', flush=True)
        return "and then a second answer"

    async def raw(self, session: str, inside: str) -> Result:
        """An answer with exactly these bytes (in hexadecimal) as its text."""
        line = f'{{"jsonrpc":"2.0","id":{_id()},"result":{{"content":[{{"type":"text","text":"~"}}]}}}}\n'
        sys.stdout.buffer.write(line.encode().replace(b"~", bytes.fromhex(inside)))
        sys.stdout.buffer.flush()
        return "and then a second answer"

    async def block(self, session: str, seconds: float, kind: str) -> Result:
        """The server answers nothing meanwhile: it computes, writes to its log, or does nothing."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if kind == "log":
                print("still at work", file=sys.stderr, flush=True)
            if kind != "compute":
                time.sleep(0.05)  # noqa: ASYNC251 - that is the point
        return "done"

    async def change_tools(self, session: str) -> Result:
        """Offer one more tool, and notify the client."""
        TOOLS["added"] = _added
        _write({"method": "notifications/tools/list_changed"})
        return "changed"

    async def babble(self, session: str) -> Result:
        """Text that servers write to their output by mistake."""
        print('this is no message\n\n{"jsonrpc": "2.0"}', flush=True)
        print("x" * 100_000, file=sys.stderr, flush=True)
        return "said"

    async def bear(self, session: str) -> Result:
        """Start a child that outlives the end of input and holds the pipes open."""
        return str(subprocess.Popen(["sleep", "600"]).pid)  # noqa: ASYNC220


async def _added(session: str) -> Result:
    return "it is new"


def _id() -> Any:
    """The id of the call under way."""
    (id,) = (id for id, task in running.items() if task is asyncio.current_task())
    return id


def _append(path: str, line: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{line}\n")


def _content(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def _offered(name: str, tool: Callable[..., Awaitable[Result]]) -> dict[str, Any]:
    arguments = [name for name in inspect.signature(tool).parameters if name != "session"]
    return {"name": name, "inputSchema": {"type": "object", "properties": {name: {} for name in arguments}}}


TOOLS = {name: getattr(Tools(), name) for name in vars(Tools) if not name.startswith("_")}


def _write(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def _answer(id: Any, result: dict[str, Any]) -> None:
    _write({"id": id, "result": result})


def _fail(id: Any, code: int, text: str) -> None:
    _write({"id": id, "error": {"code": code, "message": text}})


async def _call(id: Any, params: dict[str, Any]) -> None:
    tool = TOOLS.get(params["name"])
    meta = params.get("_meta") or {}
    session = meta.get("agentrl/session", "")
    METADATA.set(meta)
    try:
        if tool is None:
            raise Refusal("no such tool")
        result = await tool(session, **params.get("arguments", {}))
        _answer(id, result if isinstance(result, dict) else _content(result))
    except (Refusal, TypeError) as refusal:
        _answer(id, {**_content(str(refusal)), "isError": True})
    except Breakage as breakage:
        _fail(id, -32603, str(breakage))


def _handle(message: dict[str, Any]) -> None:
    id, params = message.get("id"), message.get("params") or {}
    match message.get("method"):
        case "initialize":
            info = {"name": "faulty", "version": "1"}
            version = params["protocolVersion"]
            _answer(id, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
        case "tools/list":
            _answer(id, {"tools": [_offered(name, tool) for name, tool in TOOLS.items()]})
        case "tools/call":
            running[id] = asyncio.create_task(_call(id, params), name=str(id))
            running[id].add_done_callback(lambda _: running.pop(id, None))
        case "notifications/cancelled" if params["requestId"] in running:
            running[params["requestId"]].cancel()
        case method if id is not None:
            _fail(id, -32601, f"no method {method}")


async def main() -> None:
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        _handle(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
