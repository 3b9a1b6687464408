"""A run on several hosts: a network namespace for each, with a host agent that a person of that host has started."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.networks import Network
from tests.e2e.running import PYTHON, Run, running
from tests.waiting import PATIENCE_S

HERE = "here"
"""The namespace of the coordinator."""


class Hosts:
    def __init__(self, run: Run, network: Network) -> None:
        self.run, self.network = run, network
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        run.config["coordinator"] = {"listen": f"tcp://{network.address(HERE)}:7400"}

    def up(self) -> None:
        self.run.write()
        command = [*self.network.inside(HERE), PYTHON, "-m", "agentrl", "up", str(self.run.file), "--no-wait", "--json"]
        subprocess.run(command, env=self.run.environ, check=True, capture_output=True, timeout=PATIENCE_S)

    def join(self, host: str) -> None:
        """Start the host agent."""
        run = self.run
        folder = run.file.parent
        key = folder / f"{host}.key"
        if not key.exists():
            run.cli("keys", "new", host, "--permission", "host", "--out", str(key))
        where = ["--state-dir", str(folder / host / "state"), "--run-dir", str(run.dir), "--run", run.uuid()]
        whom = ["--coordinator", f"tcp://{self.network.address(HERE)}:7400", "--key", str(key), "--name", host]
        with (folder / f"{host}.log").open("a") as log:
            self._agents[host] = subprocess.Popen(
                [*self.network.inside(host), PYTHON, "-m", "agentrl", "daemon", "host", *where, *whom],
                cwd=folder,
                env=run.environ,
                stdout=log,
                stderr=log,
            )

    def close(self) -> None:
        for agent in self._agents.values():
            if agent.poll() is None:
                agent.kill()
                agent.wait(PATIENCE_S)


def several_hosts(folder: Path, name: str, others: tuple[str, ...], *, factor: float = 0.1) -> Iterator[Hosts]:
    network = Network(name, (HERE, *others))
    try:
        network.lay()
        for run in running(folder, name, factor=factor):
            hosts = Hosts(run, network)
            try:
                yield hosts
            finally:
                for host in others:
                    network.mend(host)
                run.close()
                hosts.close()
    finally:
        network.remove()
