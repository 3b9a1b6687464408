"""SGLang's server behind a guard: a script for the Python of SGLang's own environment.

    python -P guarded_server.py TOKEN_FILE PARENT_PID [arguments of SGLang]

Invariants:
- requests without the run's token get no information, and the token is in no argument list, environment or log (SGLang
  writes its own `--api-key` into its log);
- while the guard is closed, calls to generate get 503, except those of the unit, which compares the canary;
- while weights are compared, answers of calls that began before are withheld; if the weights are refused, these calls
  fail, so none of their tokens leaves the server;
- a request to release memory reaches SGLang only when SGLang can carry it out, because otherwise SGLang dies of it;
- calls do not name an adapter: all of them use the adapter of the version, which changes only between calls;
- the server never outlives the process that started it.

This script imports nothing of agentrl: its dependencies are not in that environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hmac
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

OPEN, SHUT, HOLD, SPOIL = "/door/open", "/door/shut", "/door/hold", "/door/spoil"
PREPARE, SEND = "/door/prepare", "/door/send"
ADAPTER = "/door/adapter"
REFUSED = "The weights that this call began to use were refused; nothing of it counts."
MOST_BODY = 64 << 20
RELEASE, RESTORE = "/release_memory_occupation", "/resume_memory_occupation"
UNIT_HEADER = b"x-agentrl-unit"
BUSY = "Calls are under way; their cache cannot be released."
PR_SET_PDEATHSIG = 1
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Call:
    """A call to generate, whose answer may be withheld."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = self._ended = False
        self.spoiled = False

    async def answer(self, message: Message) -> None:
        if self.spoiled:
            await self._fail()
            return
        self._begun = True
        await self._send(message)

    async def _fail(self) -> None:
        if self._ended:
            return
        self._ended = True
        if not self._begun:
            await _answer(self._send, 503, REFUSED)
            return
        event = b'{"error": ' + json.dumps({"message": REFUSED}).encode() + b"}"
        await self._send({"type": "http.response.body", "body": b"data: " + event + b"\n\n"})


class Guard:
    """The ASGI middleware in front of SGLang. It is closed until the unit opens it."""

    def __init__(self, app: App, *, token_file: Path, gives_memory: bool) -> None:
        self._app = app
        self._token_file = token_file
        self._token_seen = (0, 0)
        self._wanted: list[bytes] = []
        self._open = False
        self._gives_memory = gives_memory
        self._has_memory = asyncio.Event()
        self._has_memory.set()
        self._one_at_a_time = asyncio.Lock()
        self._under_way: set[Call] = set()
        """Calls to generate, including those that have not reached the scheduler yet."""
        self._released = asyncio.Event()
        """Set while answers may leave the server."""
        self._released.set()
        self._sender: Any = None
        self._adapter = ""
        """The adapter that all calls use; empty: none."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if not self._accepts(headers.get(b"authorization", b"")):
            await _answer(send, 401, "This engine requires the token of its run.")
        elif scope["path"] in (OPEN, SHUT, HOLD, SPOIL):
            self._turn(scope["path"])
            await _answer(send, 200, "")
        elif scope["path"] in (PREPARE, SEND):
            await self._weights(scope, receive, send)
        elif scope["path"] == ADAPTER:
            await self._change_adapter(receive, send)
        elif scope["path"] == "/generate" and not self._open and UNIT_HEADER not in headers:
            await _answer(send, 503, "The engine loads weights and takes no calls.")
        elif scope["path"] in (RELEASE, RESTORE):
            act = self._release if scope["path"] == RELEASE else self._restore
            async with self._one_at_a_time:
                await act(scope, receive, send)
        elif scope["path"] == "/generate":
            await self._generate(scope, receive, send, withheld=UNIT_HEADER not in headers)
        else:
            await self._app(scope, receive, send)

    def _accepts(self, authorization: bytes) -> bool:
        """Whether a header has an accepted token. Each line of the file is a token; the file is read again when it has
        changed, because tokens are replaced."""
        with contextlib.suppress(OSError):
            now = os.stat(self._token_file)
            if (now.st_ino, now.st_mtime_ns) != self._token_seen:
                self._wanted = [b"Bearer " + token for token in self._token_file.read_bytes().split()]
                self._token_seen = (now.st_ino, now.st_mtime_ns)
        return any([hmac.compare_digest(authorization, wanted) for wanted in self._wanted])

    def _turn(self, path: str) -> None:
        self._open = path == OPEN
        if path == HOLD:
            self._released.clear()
        elif path != SHUT:
            for call in self._under_way if path == SPOIL else ():
                call.spoiled = True
            self._released.set()

    async def _weights(self, scope: Message, receive: Receive, send: Send) -> None:
        if self._sender is None:
            self._sender = _sender(_Poster(self._app, scope))
        # The request comes from the unit, which has the token.
        body = json.loads(await _body(receive))
        try:
            if scope["path"] == PREPARE:
                await self._sender.prepare(body["directory"], body["files"])
            else:
                await self._sender.send(body["version"], body["way"], body["ranks"], flush=body["flush"])
        except self._sender_error() as failed:
            await _answer(send, 400, str(failed))
        else:
            await _answer(send, 200, "")

    async def _change_adapter(self, receive: Receive, send: Send) -> None:
        name = json.loads(await _body(receive))["name"]
        if self._under_way:
            # Calls under way name the previous adapter, and would count as calls of this one.
            await _answer(send, 503, "Calls are under way; their adapter cannot be changed.")
            return
        self._adapter = name
        await _answer(send, 200, "")

    @staticmethod
    def _sender_error() -> type[Exception]:
        found: type[Exception] = sys.modules["weight_sender"].SendError
        return found

    async def _generate(self, scope: Message, receive: Receive, send: Send, *, withheld: bool) -> None:
        while not self._has_memory.is_set():
            await self._has_memory.wait()
        call = Call(send)
        self._under_way.add(call)

        async def answer(message: Message) -> None:
            while withheld and not self._released.is_set():
                await self._released.wait()
            # A caller that has its whole answer may send any request next.
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                self._under_way.discard(call)
            await call.answer(message)

        try:
            if self._adapter:
                scope, receive = await _with_adapter(scope, receive, self._adapter)
            await self._app(scope, receive, answer)
        finally:
            self._under_way.discard(call)

    async def _release(self, scope: Message, receive: Receive, send: Send) -> None:
        if not self._gives_memory:
            await _answer(send, 400, "This server cannot release memory: it was started without --enable-memory-saver.")
            return
        if not self._has_memory.is_set():
            await _answer(send, 200, "")
            return
        if self._under_way:
            await _answer(send, 503, BUSY)
            return
        self._has_memory.clear()
        released = False
        try:
            # If calls are under way, the scheduler merely refuses this request, while a release would make it die of an
            # assertion.
            if await _status_of(self._app, {**scope, "path": "/flush_cache", "raw_path": b"/flush_cache"}) != 200:
                await _answer(send, 503, BUSY)
                return
            released = await self._succeeds(scope, receive, send)
        finally:
            if not released:
                self._has_memory.set()

    async def _restore(self, scope: Message, receive: Receive, send: Send) -> None:
        if self._has_memory.is_set():
            await _answer(send, 200, "")
            return
        if await self._succeeds(scope, receive, send):
            self._has_memory.set()

    async def _succeeds(self, scope: Message, receive: Receive, send: Send) -> bool:
        """Forwards a request. Returns whether it succeeded, even if the caller has disconnected."""
        status = 500

        async def answer(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            with contextlib.suppress(OSError):
                await send(message)

        await self._app(scope, receive, answer)
        return status == 200


async def _status_of(app: App, scope: Message) -> int:
    """The status of the answer to a request without a body."""
    return (await _reply_of(app, scope, b""))[0]


async def _reply_of(app: App, scope: Message, body: bytes) -> tuple[int, bytes]:
    """The status and the body of the server's own answer."""
    status, answer = 500, b""
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            # The second call waits until the caller disconnects, and this caller never does.
            await asyncio.Event().wait()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, answer
        status = message.get("status", status)
        answer += message.get("body", b"")

    headers = [(name, value) for name, value in scope["headers"] if name not in (b"content-length", b"content-type")]
    if body:
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await app({**scope, "headers": headers}, receive, send)
    return status, answer


class _Poster:
    """Posts requests to the server within its process."""

    def __init__(self, app: App, scope: Message) -> None:
        self._app, self._scope = app, scope

    async def __call__(self, path: str, body: dict[str, Any]) -> str:
        scope = {**self._scope, "path": path, "raw_path": path.encode(), "query_string": b""}
        status, answer = await _reply_of(self._app, scope, json.dumps(body).encode())
        return "" if status == 200 else f"{path} answers with {status}: {answer[:500].decode(errors='replace')}"


async def _body(receive: Receive) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body", False) or len(body) > MOST_BODY:
            return body


async def _with_adapter(scope: Message, receive: Receive, adapter: str) -> tuple[Message, Receive]:
    """The same call with this adapter."""
    try:
        call = json.loads(await _body(receive))
    except (ValueError, RecursionError):
        call = None
    body = json.dumps({**call, "lora_path": adapter} if isinstance(call, dict) else call).encode()
    given = False

    async def receive_again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
    return {**scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}, receive_again


def _sender(post: _Poster) -> Any:
    """Loads the sender from the file beside this one, because an isolated Python does not have a script's directory in
    its path."""
    if "weight_sender" not in sys.modules:
        spec = importlib.util.spec_from_file_location("weight_sender", Path(__file__).with_name("weight_sender.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules["weight_sender"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["weight_sender"].Sender(post)


async def _answer(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"error": {"message": sentence}} if sentence else {}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _die_with(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("The process that started this server is gone.")


def _pin_no_memory() -> None:
    """Stops SGLang from pinning the memory of adapters, which torch refuses on a host without a GPU."""
    import torch

    def without(make: Any) -> Any:
        return lambda *values, pin_memory=False, **options: make(*values, **options)

    for name in ("tensor", "empty", "zeros", "arange"):
        setattr(torch, name, without(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[method-assign]


def _read_images() -> None:
    """Makes SGLang read images by our own processor, and without its cache of the vision tower's output, which SGLang
    keeps even when weights are replaced."""
    sys.path.append(str(Path(__file__).parent))
    os.environ["SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE"] = "image_processors"
    os.environ["SGLANG_VLM_CACHE_SIZE_MB"] = "0"


def main(token_file: str, parent: str, *arguments: str) -> None:
    _die_with(int(parent))
    # Otherwise /health generates a token and reports a paused engine as unhealthy.
    os.environ.setdefault("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "0")
    # gloo listens without a key, so no other host may reach it.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    _read_images()
    from sglang.launch_server import run_server
    from sglang.srt.entrypoints.http_server import app
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    app.add_middleware(Guard, token_file=Path(token_file), gives_memory="--enable-memory-saver" in arguments)
    try:
        run_server(prepare_server_args(list(arguments)))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
elif __name__ == "__mp_main__" and "--enable-lora" in sys.argv and "cpu" in sys.argv:
    # A spawned process of the server runs this script too, under another name and with the same arguments.
    _pin_no_memory()
