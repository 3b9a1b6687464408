"""Gives sandboxes access to the hosts on their lists: passes their sockets to the network proxy, and counts refusals.

Invariants:
- A sandbox passes one socket, before its server starts; if it sends anything else, it loses its network.
- The proxy starts when the first sandbox needs it. One that dies is started again with the sockets of all sandboxes.
- The socket of a sandbox that has ended is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.config.network_rules import split_port
from agentrl.sandboxes import network_socket

log = logging.getLogger("toolbox")
PORT = 3128
"""The port in the sandbox, which has a loopback interface of its own."""
RESTART_AFTER_S = 0.5
_PROXY = "agentrl.sandboxes.network_proxy"
_URL = f"http://127.0.0.1:{PORT}"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(slots=True)
class Refusals:
    """What the proxy refused to the sandboxes of a server."""

    count: int = 0
    last: str = ""


@dataclass(slots=True)
class _Admitted:
    """A sandbox that has not ended."""

    server: str
    place: str
    """The key of the server in the run file, such as `tools.search`."""
    allowed: tuple[str, ...]
    ours: socket.socket
    listener: socket.socket | None = None


def command_inside(command: Sequence[str], socket_of_toolbox: socket.socket) -> tuple[str, ...]:
    """The command that opens the socket of the proxy and becomes `command`."""
    script = str(Path(network_socket.__file__))
    return (sys.executable, "-I", "-S", script, str(socket_of_toolbox.fileno()), str(PORT), *command)


def environment(allowed: Sequence[str]) -> dict[str, str]:
    """The variables by which programs find the proxy."""
    listed = {split_port(entry)[0] for entry in allowed}
    # Unless the list names it, loopback means the loopback of the sandbox.
    direct = ",".join(host for host in _LOOPBACK if host not in listed)
    return {
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), _URL),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), direct),
        # Makes newer versions of Node use the variables above.
        "NODE_USE_ENV_PROXY": "1",
    }


class NetworkAccess:
    """The sandboxes of one toolbox that have a list."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._admitted: dict[int, _Admitted] = {}
        self._needed = asyncio.Event()
        self._control: socket.socket | None = None
        self._refusals: dict[str, Refusals] = {}

    def refusals(self, server: str) -> Refusals:
        return self._refusals.setdefault(server, Refusals())

    def admit(self, server: str, allowed: Sequence[str], *, section: str = "tools") -> socket.socket:
        """Expect a sandbox of this server, or of another section of the run file. Returns the socket that its process
        inherits; the caller closes it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        number = next(self._numbers)
        self._admitted[number] = _Admitted(server, f"{section}.{server}", tuple(allowed), ours)
        asyncio.get_running_loop().add_reader(ours, self._receive, number)
        self._needed.set()
        return theirs

    async def run(self) -> None:
        """Keep the proxy running until cancelled."""
        try:
            await self._needed.wait()
            while True:
                await self._serve()
                log.error("The network proxy of the sandboxes ended; it is started again.")
                await asyncio.sleep(RESTART_AFTER_S)
        finally:
            for number in list(self._admitted):
                self._forget(number)

    async def _serve(self) -> None:
        """Run one proxy process until it ends."""
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with control:
            control.setblocking(False)
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", _PROXY, stdin=theirs.fileno(), stdout=PIPE, start_new_session=True
                )
            try:
                self._control = control
                for number in self._admitted:
                    self._pass_on(number)
                await self._read(process)
            finally:
                self._control = None
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            message = json.loads(line)
            admitted = self._admitted.get(message["sandbox"])
            if admitted is not None:
                refusals = self.refusals(admitted.server)
                refusals.count += message["times"]
                refusals.last = message["refused"]
                log.warning("The sandbox of %s was refused its network: %s", admitted.server, refusals.last)

    def _receive(self, number: int) -> None:
        """The sandbox sent its socket, or ended."""
        admitted = self._admitted[number]
        try:
            data, descriptors = network_socket.receive(admitted.ours, 64)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if data and descriptors and admitted.listener is None:
            # The program of the sandbox has not started yet, so the socket is genuine.
            admitted.listener = socket.socket(fileno=descriptors[0])
            self._pass_on(number)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        self._forget(number)

    def _pass_on(self, number: int) -> None:
        admitted = self._admitted[number]
        if admitted.listener is not None:
            message = {"sandbox": number, "place": admitted.place, "allowed": admitted.allowed}
            self._send(message, [admitted.listener.fileno()])

    def _forget(self, number: int) -> None:
        admitted = self._admitted.pop(number)
        asyncio.get_running_loop().remove_reader(admitted.ours)
        admitted.ours.close()
        if admitted.listener is not None:
            admitted.listener.close()
            self._send({"sandbox": number}, [])

    def _send(self, message: dict[str, object], descriptors: list[int]) -> None:
        if self._control is None:
            return
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)
        except OSError:
            # It is dead or does not read: the next one gets all sockets.
            self._control.close()
            self._control = None
