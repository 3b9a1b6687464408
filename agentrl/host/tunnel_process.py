"""The tunnel of this host and its file process. They are separate processes, so that their traffic never delays the
supervision.

Invariants:
- While the run needs them, a process that ended is started again, with the same path.
- The secrets and addresses by which units here reach services on other hosts are in files of mode 0600 on this host's
  own disk.
- The process ends with the agent, because its input ends.
- While it is needed, it is started again after it ended, and gets the last line of each kind again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from agentrl.config import outside_database
from agentrl.config.http_token import TOKEN_FILE
from agentrl.host import procfs
from agentrl.host.spawn_environment import Home
from agentrl.protocol.message_base import Message
from agentrl.protocol.messages import OpenTunnel, RunSecrets, TunnelOpened, TunnelPeers
from agentrl.transport.addresses import runtime_dir

log = logging.getLogger(__name__)
AGAIN_S = 1.0


class HelperProcess:
    """`on_line` gets each line of JSON that the process writes."""

    def __init__(self, run: str, module: str, log_file: Path, on_line: Callable[[dict[str, Any]], None]) -> None:
        self._run = run
        self._module = module
        self._log_file = log_file
        self._on_line = on_line
        self._process: subprocess.Popen[bytes] | None = None
        self._running: asyncio.Task[None] | None = None
        self._told: dict[str, dict[str, Any]] = {}

    @property
    def is_open(self) -> bool:
        return self._running is not None

    def open(self, arguments: Sequence[str]) -> None:
        """Start the process, and end one with other arguments."""
        self.close()
        self._running = asyncio.create_task(self._keep_running(tuple(arguments)), name=self._module)

    def tell(self, kind: str, line: dict[str, Any]) -> None:
        self._told[kind] = line
        self._write(line)

    def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            self._running = None
        if self._process is not None:
            self._end(self._process)

    async def closed(self) -> None:
        """Close, and return when everything is closed."""
        running = self._running
        self.close()
        if running is not None:
            await asyncio.gather(running, return_exceptions=True)

    async def _keep_running(self, arguments: tuple[str, ...]) -> None:
        while True:
            try:
                await self._run_once(arguments)
            except OSError as failed:
                log.error("%s cannot be started: %s.", self._module, failed)
            log.warning("%s has ended; it is started again.", self._module)
            await asyncio.sleep(AGAIN_S)

    async def _run_once(self, arguments: tuple[str, ...]) -> None:
        """Start the process once and handle its lines until it ends."""
        process = self._process = self._started(arguments)
        for told in self._told.values():
            self._write(told)
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        try:
            while line := await reader.readline():
                self._on_line(json.loads(line))
        finally:
            transport.close()
            self._end(process)

    def _started(self, arguments: tuple[str, ...]) -> subprocess.Popen[bytes]:
        """The started process. Raises OSError."""
        command = [sys.executable, "-m", self._module, *arguments]
        env = procfs.without_marks(os.environ) | {"AGENTRL_RUN": self._run}
        output = os.open(self._log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            pipe = subprocess.PIPE
            return subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=output, start_new_session=True)
        finally:
            os.close(output)

    def _write(self, line: dict[str, Any]) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(json.dumps(line).encode() + b"\n")
                self._process.stdin.flush()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End the process by closing its input."""
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        process.returncode = 0  # the agent reaps all its children
        if self._process is process:
            self._process = None


MONGO = "mongo"
_ANY = "0.0.0.0"


class TunnelProcess:
    def __init__(self, home: Home, send: Callable[[Message], bool]) -> None:
        self._home = home
        self._send = send
        self._wanted: OpenTunnel | None = None
        self._opened: TunnelOpened | None = None
        folder = home.state_dir / "hosts" / home.host
        self._tunnel = HelperProcess(home.run, "daemons.tunnel", folder / "tunnel.log", self._has_opened)
        self._files = HelperProcess(home.run, "daemons.files", folder / "files.log", lambda line: None)

    @property
    def entrance(self) -> Path | None:
        """The socket to which units connect; None if the run has no tunnels."""
        if self._wanted is None:
            return None
        return runtime_dir(self._home.run) / f"tunnel-{hashlib.sha256(self._home.host.encode()).hexdigest()[:8]}.sock"

    def open(self, wanted: OpenTunnel) -> None:
        if wanted == self._wanted and self._tunnel.is_open:
            if self._opened is not None:
                self._send(self._opened)
            return
        self._wanted, self._opened = wanted, None
        entrance, host = str(self.entrance), self._home.host
        bind = wanted.bind or _own_address(self._home.coordinator) or _ANY
        self._tunnel.open(["--host", host, "--entrance", entrance, "--bind", bind, "--port", str(wanted.port)])
        if not self._files.is_open:
            self._files.open(["--host", host, "--run-dir", str(self._home.run_dir), "--tunnel", entrance])
        if wanted.cache_bytes:
            self._files.tell("cache", {"cache": wanted.cache_bytes})

    def peers(self, message: TunnelPeers) -> None:
        here = _host_of(self._home.coordinator)
        peers = {name: f"{here}{at}" if at.startswith(":") else at for name, at in message.peers.items()}
        self._tunnel.tell("peers", {"certificate": message.certificate, "authority": message.authority, "peers": peers})
        self._files.tell("peers", {"peers": sorted(peers)})

    def secrets(self, message: RunSecrets) -> None:
        state = self._home.state_dir
        _write_private(state / TOKEN_FILE, message.http_token)
        self._files.tell("data_host", {"data_host": message.mongo_host})
        if message.outside_url:
            outside = outside_database.OutsideDatabase(message.outside_url, message.outside_files)
            url, files = outside_database.moved(outside, state / "mongo")
            for path, text in (files | {state / "mongo" / "url": url}).items():
                _write_private(path, text)
        if not message.mongo_url:
            return
        entrance = self.entrance
        assert entrance is not None, "a run whose units are on several hosts has tunnels"
        parts = urlsplit(message.mongo_url)
        socket_path = quote(str(entrance.with_name(f"{entrance.stem}-{MONGO}.sock")), safe="")
        who = parts.netloc.rpartition("@")[0]
        # The server reports its loopback address to clients, which is useless from here, so clients must connect
        # directly.
        _write_private(
            state / "mongo" / "url", f"mongodb://{who}@{socket_path}/?authSource=admin&directConnection=true"
        )
        self._tunnel.tell("forward", {"forward": MONGO, "host": message.mongo_host, "port": parts.port})

    async def closed(self) -> None:
        """Close both processes, and return when everything is closed."""
        await self._files.closed()
        await self._tunnel.closed()

    def _has_opened(self, line: dict[str, Any]) -> None:
        address = _own_address(self._home.coordinator)
        self._opened = TunnelOpened(request=line["request"], port=line["port"], address=address)
        self._send(self._opened)


def _own_address(coordinator: str) -> str:
    """The address by which this machine reaches the coordinator; empty if the coordinator is on this machine."""
    if not coordinator.startswith("tcp://"):
        return ""
    host, _, port = coordinator.removeprefix("tcp://").rpartition(":")
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as probe:
                probe.connect(address)  # sends nothing
                return str(probe.getsockname()[0])
    return ""


def _host_of(coordinator: str) -> str:
    return coordinator.removeprefix("tcp://").rpartition(":")[0] if coordinator.startswith("tcp://") else "127.0.0.1"


def _write_private(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)
    fresh.replace(path)
