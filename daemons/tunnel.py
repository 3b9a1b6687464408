"""The tunnel of a host: `python -m daemons.tunnel --host NAME --entrance PATH --bind ADDRESS --port N`.

The host agent starts it. It writes lines of JSON: its certificate request and the port of its exit, and again when it
needs a new certificate. It reads lines of JSON: certificates, the hosts of the run (`peers`), and separate entrances
for single ports (`forward`). It ends with its input.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

from agentrl.errors import ExitCode
from agentrl.host.listening_ports import ListeningPorts
from agentrl.tracing import log_format
from agentrl.tunnels.authority import VALID_DAYS
from agentrl.tunnels.certificates import HostKey
from agentrl.tunnels.tunnel import Tunnel
from agentrl.unit.runner import loop_factory

log = logging.getLogger("tunnel")
RENEW_S = VALID_DAYS / 2 * 86400.0


class TunnelDaemon:
    def __init__(self, host: str, entrance: Path, listener: socket.socket) -> None:
        self._listener = listener
        self._key = HostKey()
        self._serves = False
        self.tunnel = Tunnel(host, entrance, is_of_run=ListeningPorts(os.environ.get("AGENTRL_RUN", "")).has)

    async def run(self) -> None:
        """Runs until the input ends."""
        await self.tunnel.open_entrance()
        renewing = asyncio.create_task(self._renew(), name="renew")
        lines = asyncio.StreamReader(limit=1 << 24)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        try:
            while line := await lines.readline():
                await self._told(json.loads(line))
        finally:
            renewing.cancel()
            await self.tunnel.close()

    async def _renew(self) -> None:
        while True:
            said = {"request": self._key.request(), "port": self._listener.getsockname()[1]}
            print(json.dumps(said), flush=True)
            await asyncio.sleep(RENEW_S)

    async def _told(self, line: dict[str, Any]) -> None:
        if "forward" in line:
            await self.tunnel.forward(line["forward"], line["host"], line["port"])
            return
        try:
            coming, going = self._key.contexts(line["certificate"], line["authority"])
        except ssl.SSLError as refused:
            # The certificate was made for the key of a tunnel that ran here before; the one for this tunnel will
            # follow.
            log.info("a certificate is not for this key: %s", refused)
            return
        self.tunnel.configure(coming, going, line["peers"])
        if not self._serves:
            self._serves = True
            await self.tunnel.open_exit(self._listener, coming)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--entrance", type=Path, required=True)
    parser.add_argument("--bind", required=True)
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args()
    log_format.set_up("tunnel")
    bind = args.bind.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        listener = socket.create_server((bind, args.port), family=family)
        # Its connections inherit TCP_NODELAY, so that data need not wait until earlier data is acknowledged.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as failed:
        print(f"tunnel: {bind} port {args.port} cannot be listened on: {failed.strerror}", file=sys.stderr)
        return ExitCode.UNAVAILABLE
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(TunnelDaemon(args.host, args.entrance, listener).run())
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
