"""The tunnel of this host: a process of its own, so that what passes through it never delays the supervision.

Invariants:
- The process ends with the agent: its input ends.
- While the run needs it, a tunnel that ended is started again, under the same path.
- What units here need to know of services elsewhere is in files of mode 0600 on this host's own disk.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from agentrl.config.http_token import TOKEN_FILE
from agentrl.host import procfs
from agentrl.host.spawn_environment import Home
from agentrl.protocol.message_base import Message
from agentrl.protocol.messages import OpenTunnel, RunSecrets, TunnelOpened, TunnelPeers
from agentrl.transport.addresses import runtime_dir

log = logging.getLogger(__name__)
AGAIN_S = 1.0
MONGO = "mongo"
_ANY = "0.0.0.0"


class TunnelProcess:
    def __init__(self, home: Home, send: Callable[[Message], bool]) -> None:
        self._home = home
        self._send = send
        self._wanted: OpenTunnel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._running: asyncio.Task[None] | None = None
        self._opened: TunnelOpened | None = None
        self._told: dict[str, dict[str, Any]] = {}
        """The last line of each kind, for a tunnel that starts again."""

    @property
    def entrance(self) -> Path | None:
        """Where units connect; None if the run has no tunnels."""
        if self._wanted is None:
            return None
        return runtime_dir(self._home.run) / f"tunnel-{hashlib.sha256(self._home.host.encode()).hexdigest()[:8]}.sock"

    def open(self, wanted: OpenTunnel) -> None:
        if wanted == self._wanted and self._running is not None:
            if self._opened is not None:
                self._send(self._opened)
            return
        self._wanted = wanted
        self.close()
        self._running = asyncio.create_task(self._keep_running(wanted), name="tunnel")

    def peers(self, message: TunnelPeers) -> None:
        here = _host_of(self._home.coordinator)
        peers = {name: f"{here}{at}" if at.startswith(":") else at for name, at in message.peers.items()}
        self._tell("peers", {"certificate": message.certificate, "authority": message.authority, "peers": peers})

    def secrets(self, message: RunSecrets) -> None:
        state = self._home.state_dir
        _write_private(state / TOKEN_FILE, message.http_token)
        if not message.mongo_url:
            return
        entrance = self.entrance
        assert entrance is not None, "a run whose units are on several hosts has tunnels"
        parts = urlsplit(message.mongo_url)
        socket_path = quote(str(entrance.with_name(f"{entrance.stem}-{MONGO}.sock")), safe="")
        who = parts.netloc.rpartition("@")[0]
        # The server tells its clients its loopback address, which is none from here, so they must not ask it.
        _write_private(
            state / "mongo" / "url", f"mongodb://{who}@{socket_path}/?authSource=admin&directConnection=true"
        )
        self._tell("forward", {"forward": MONGO, "host": message.mongo_host, "port": parts.port})

    def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            self._running = None
        if self._process is not None:
            self._end(self._process)

    async def closed(self) -> None:
        """Close, and return when the agent has nothing open any more."""
        running = self._running
        self.close()
        if running is not None:
            await asyncio.gather(running, return_exceptions=True)

    async def _keep_running(self, wanted: OpenTunnel) -> None:
        while True:
            try:
                await self._run(wanted)
            except OSError as failed:
                log.error("The tunnel cannot be started: %s.", failed)
            log.warning("The tunnel has ended; it is started again.")
            await asyncio.sleep(AGAIN_S)

    async def _run(self, wanted: OpenTunnel) -> None:
        """Until it ends."""
        address = _own_address(self._home.coordinator)
        process = self._process = self._started(wanted, address)
        for told in self._told.values():
            self._write(told)
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        try:
            while line := await reader.readline():
                said = json.loads(line)
                self._opened = TunnelOpened(request=said["request"], port=said["port"], address=address)
                self._send(self._opened)
        finally:
            transport.close()
            self._end(process)

    def _started(self, wanted: OpenTunnel, address: str) -> subprocess.Popen[bytes]:
        """Raises OSError."""
        home, entrance = self._home, self.entrance
        command = [sys.executable, "-m", "daemons.tunnel", "--host", home.host, "--entrance", str(entrance)]
        command += ["--bind", wanted.bind or address or _ANY, "--port", str(wanted.port)]
        env = procfs.without_marks(os.environ) | {"AGENTRL_RUN": home.run}
        path = home.state_dir / "hosts" / home.host / "tunnel.log"
        output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            pipe = subprocess.PIPE
            return subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=output, start_new_session=True)
        finally:
            os.close(output)

    def _tell(self, kind: str, line: dict[str, Any]) -> None:
        self._told[kind] = line
        self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(json.dumps(line).encode() + b"\n")
                self._process.stdin.flush()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """It ends with its input."""
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        process.returncode = 0  # the agent reaps all its children
        if self._process is process:
            self._process = self._opened = None


def _own_address(coordinator: str) -> str:
    """The address of this machine on the way to the coordinator; empty if that is on this machine."""
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
