"""The file process of a host: `python -m daemons.files --host NAME --run-dir PATH --tunnel PATH`.

The host agent starts it beside the tunnel. It reads lines of JSON: the hosts of the run (`peers`), the host of the
coordinator (`data_host`) and the limit of the cache (`cache`). It ends with its input.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from agentrl.errors import ExitCode
from agentrl.files.cache import Cache
from agentrl.files.file_service import FileService
from agentrl.files.peers import Peers
from agentrl.files.unit_files import socket_for_hosts, socket_for_units
from agentrl.http.run_hosts import Way
from agentrl.tracing import log_format
from agentrl.unit.runner import loop_factory

log = logging.getLogger("files")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class FilesDaemon:
    def __init__(self, host: str, run_dir: Path, tunnel: Path) -> None:
        self._host = host
        self._tunnel = tunnel
        self._others: frozenset[str] = frozenset()
        self._cache = Cache(run_dir, host)
        peers = Peers(Way(tunnel, host), lambda: self._others)
        self._service = FileService(host, os.environ.get("AGENTRL_RUN", ""), run_dir, self._cache, peers)
        self._serving: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Runs until the input ends."""
        lines = asyncio.StreamReader(limit=1 << 24)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        sockets = {
            socket_for_hosts(self._tunnel): self._service.serve_host,
            socket_for_units(self._tunnel): self._service.serve_unit,
        }
        servers = [await self._listen(path, serve) for path, serve in sockets.items()]
        try:
            while line := await lines.readline():
                told = json.loads(line)
                if "peers" in told:
                    self._others = frozenset(told["peers"]) - {self._host}
                self._service.data_host = told.get("data_host", self._service.data_host)
                self._cache.limit_bytes = told.get("cache", self._cache.limit_bytes)
        finally:
            for server in servers:
                server.close()
            for task in tuple(self._serving):
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)
            await self._service.close()
            for path in sockets:
                path.unlink(missing_ok=True)

    async def _listen(self, path: Path, serve: Serve) -> asyncio.Server:
        """Only the user of this process may connect to the socket."""

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._to_its_end(serve, reader, writer), name="connection")
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        before = os.umask(0o177)
        try:
            return await asyncio.start_unix_server(begin, path, backlog=512)
        finally:
            os.umask(before)

    async def _to_its_end(self, serve: Serve, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the other side left
        except msgspec.MsgspecError as broken:
            log.warning("a connection is closed: %s", broken)
        except Exception:
            # The boundary of a request: a bad request of one host must not affect the others.
            log.exception("a connection failed")
        finally:
            writer.transport.abort()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--tunnel", type=Path, required=True, help="the socket of the tunnel of this host")
    args = parser.parse_args()
    log_format.set_up("files")
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(FilesDaemon(args.host, args.run_dir, args.tunnel).run())
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
