"""The process of an SGLang server, and the requests of its unit that other servers do not have."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl.config.http_token import RunToken
from agentrl.engines.http_engine import UPDATE_WITHIN_S, HttpEngine
from agentrl.engines.interface import (
    CallRefusedError,
    EngineBusyError,
    EngineError,
    WeightsRefusedError,
)
from agentrl.engines.server_process import ServerProcess, started
from agentrl.engines.sglang import guarded_server
from agentrl.files.pieces import Content, piece_bytes

END_EVERY_S = 0.05
HOST = "127.0.0.1"


class SglangServer(ServerProcess):
    """One server. Requests of `client` pass its guard even while it is closed."""

    NAME = "SGLang"
    TERM_WITHIN_S = 5.0

    def __init__(self, process: asyncio.subprocess.Process, url: str, token: str | RunToken) -> None:
        super().__init__(process)
        self.url = url
        self._client = HttpEngine(url, token, headers={guarded_server.UNIT_HEADER.decode(): "1"})
        self._adapter = ""
        """The adapter that calls use now."""
        self._adapters = itertools.count(1)

    @classmethod
    async def start(
        cls,
        python: str,
        arguments: Sequence[str],
        *,
        port: int,
        token: str | RunToken,
        token_file: Path,
        environment: Mapping[str, str],
    ) -> SglangServer:
        """Starts it without waiting. It reads the token from the file."""
        command = [python, "-P", guarded_server.__file__, str(token_file), str(os.getpid())]
        process = await started([*command, "--host", HOST, "--port", str(port), *arguments], environment)
        return cls(process, url_of(port), token)

    @property
    def client(self) -> HttpEngine:
        return self._client

    async def answers(self) -> bool:
        with contextlib.suppress(EngineError):
            await self.client.load()
            return True
        return False

    async def open(self) -> None:
        await self.client.order(guarded_server.OPEN)

    async def shut(self) -> None:
        await self.client.order(guarded_server.SHUT)

    async def hold(self) -> None:
        """Withholds answers of calls under way until `open` or `spoil`."""
        await self.client.order(guarded_server.HOLD)

    async def spoil(self) -> None:
        """Makes calls under way fail, because they used weights that are refused."""
        await self.client.order(guarded_server.SPOIL)

    async def prepare(self, directory: Path, files: Mapping[str, Content]) -> None:
        """Reads and checks files in the server's process. Raises WeightsRefusedError."""
        entries = {
            name: {"bytes": one.bytes, "piece_bytes": piece_bytes(one.bytes), "pieces": one.pieces}
            for name, one in files.items()
        }
        body = {"directory": str(directory), "files": entries}
        try:
            await self.client.order(guarded_server.PREPARE, body, within_s=UPDATE_WITHIN_S)
        except CallRefusedError as wrong:
            raise WeightsRefusedError(wrong.message) from wrong

    async def send(self, version: int, way: str, *, ranks: int, flush: bool) -> None:
        """Sends the prepared weights to the ranks of the server. Raises EngineError."""
        body = {"version": str(version), "way": way, "ranks": ranks, "flush": flush}
        await self.client.order(guarded_server.SEND, body, within_s=UPDATE_WITHIN_S)

    async def adopt(self, directory: Path, version: int) -> None:
        """Makes calls use the adapters in a directory from now on; calls under way end with the tokens that they have.
        The server must be closed. Raises WeightsRefusedError."""
        name = f"v{version}.{next(self._adapters)}"
        adapter = {"lora_name": name, "lora_path": str(directory)}
        try:
            await self.client.order("/load_lora_adapter", adapter, within_s=UPDATE_WITHIN_S)
        except CallRefusedError as wrong:
            raise WeightsRefusedError(f"SGLang does not load the adapters: {wrong.message}") from wrong
        await self._between_calls(name)
        former, self._adapter = self._adapter, name
        await self.client.order("/update_weight_version", {"new_version": str(version)})
        if former:
            await self.client.order("/unload_lora_adapter", {"lora_name": former}, within_s=UPDATE_WITHIN_S)

    async def _between_calls(self, name: str) -> None:
        """Changes the adapter once no call is under way."""
        end = time.monotonic() + UPDATE_WITHIN_S
        while True:
            await self.client.abort("")
            try:
                return await self.client.order(guarded_server.ADAPTER, {"name": name})
            except EngineBusyError:
                if time.monotonic() > end:
                    raise
            await asyncio.sleep(END_EVERY_S)


def url_of(port: int) -> str:
    return f"http://{HOST}:{port}"
