"""A service of another model: an HTTP server with scripted answers, which can go away and come back."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


def openai(text: str, tokens: tuple[int, int] = (10, 5)) -> bytes:
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}
    return json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage}).encode()


def anthropic(text: str, tokens: tuple[int, int] = (10, 5)) -> bytes:
    usage = {"input_tokens": tokens[0], "output_tokens": tokens[1]}
    return json.dumps({"content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "usage": usage}).encode()


@dataclass
class Asked:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float = field(default_factory=time.monotonic)

    @property
    def text(self) -> str:
        return str(self.body["messages"][-1]["content"])


@dataclass
class RawAnswer:
    body: bytes
    status: int = 200
    headers: str = ""
    cut: int = 0
    """The number of bytes at the end of the body that are never sent."""


@dataclass
class Service:
    """`says` gets each question and returns the answer: a text, which is sent in the dialect of OpenAI, or a whole
    response."""

    says: Callable[[Asked], str | RawAnswer]
    asked: list[Asked] = field(default_factory=list)
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    def __post_init__(self) -> None:
        # The port stays bound, so that no other program gets it while the service is away.
        self._port = _bound(0)
        self._address = self._port.getsockname()
        self.url = f"http://127.0.0.1:{self._address[1]}/v1"

    async def start(self) -> Service:
        self._server = await asyncio.start_server(self._answer, sock=_bound(self._address[1]))
        return self

    async def stop(self) -> None:
        """Stop at once and abort running requests."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        await self._server.wait_closed()
        self._server = None

    async def close(self) -> None:
        if self._server is not None:
            await self.stop()
        self._port.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await self._one(reader, writer)
        finally:
            self._open.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        asked = Asked(first.split()[1], headers, json.loads(body))
        self.asked.append(asked)
        said = self.says(asked)
        if isinstance(said, str):
            said = RawAnswer(openai(said))
        answer = f"HTTP/1.1 {said.status} X\r\nContent-Length: {len(said.body)}\r\n{said.headers}\r\n".encode()
        writer.write(answer + said.body[: len(said.body) - said.cut])
        await writer.drain()
        if said.cut:
            raise ConnectionResetError


def _bound(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    return made
