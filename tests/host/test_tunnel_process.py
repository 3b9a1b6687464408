"""The agent's part of a tunnel: ports of the run, and what units need to know of services on other hosts."""

from __future__ import annotations

import socket
import stat
import subprocess
import sys
from pathlib import Path

from agentrl.host.listening_ports import ListeningPorts
from agentrl.host.spawn_environment import Home
from agentrl.host.tunnel_process import TunnelProcess
from agentrl.protocol.messages import OpenTunnel, RunSecrets, TunnelPeers
from tests.waiting import aeventually

RUN = "6a0a5b1e-3f0f-4a52-9d39-8c2f5b8f0c11"
LISTEN = """
import socket, sys
one = socket.create_server(("127.0.0.1", 0))
print(one.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_only_ports_of_processes_of_the_run_count() -> None:
    ports = ListeningPorts(RUN)
    with socket.create_server(("127.0.0.1", 0)) as own:
        assert not ports.has(own.getsockname()[1]), "this process is of no run"
    for run, has in ((RUN, True), ("another", False)):
        with subprocess.Popen(
            [sys.executable, "-c", LISTEN], env={"AGENTRL_RUN": run}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            assert ports.has(port) is has


async def test_database_is_reached_through_the_tunnel_and_secrets_are_private(tmp_path: Path) -> None:
    home = Home(RUN, "b", tmp_path, tmp_path, coordinator="tcp://10.0.0.1:7400")
    (tmp_path / "hosts" / "b").mkdir(parents=True)
    said: list[object] = []
    tunnel = TunnelProcess(home, lambda message: bool(said.append(message)) or True)
    assert tunnel.entrance is None, "a run on one host has no tunnels"
    tunnel.open(OpenTunnel(bind="127.0.0.1"))
    try:
        await aeventually(lambda: _has(said), what="the request of the tunnel")
        tunnel.secrets(RunSecrets("the-token", "mongodb://agentrl:p%40ss@127.0.0.1:27017/?replicaSet=rs0", "a"))
        tunnel.peers(TunnelPeers("none", "none", {"a": ":7"}))
        token, url = tmp_path / "http.token", tmp_path / "mongo" / "url"
        assert token.read_text() == "the-token"
        assert url.read_text().startswith("mongodb://agentrl:p%40ss@%2F")
        assert url.read_text().endswith("-mongo.sock/?authSource=admin&directConnection=true")
        assert [stat.S_IMODE(each.stat().st_mode) for each in (token, url)] == [0o600, 0o600]
    finally:
        await tunnel.closed()


async def _has(said: list[object]) -> bool:
    return bool(said)
