"""A run whose hosts are network namespaces of this machine, with host agents that a person of each has started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.e2e.networks import Network
from tests.e2e.running import PYTHON, Run, running
from tests.waiting import PATIENCE_S

HERE, TOOLS, ENGINES, MORE_ENGINES = "here", "b", "c", "d"
OTHERS = (TOOLS, ENGINES, MORE_ENGINES)
LISTENERS = """
import json, psutil
sockets = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
print(json.dumps([(each.pid, each.laddr.ip) for each in sockets]))
"""
"""A program that prints who listens where in its namespace."""


class Hosts:
    def __init__(self, run: Run, network: Network, *, shared: bool) -> None:
        """`shared`: all hosts have the directory of the run; otherwise they share no files."""
        self.run, self.network = run, network
        self._shared = shared
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        run.config["coordinator"] = {"listen": f"tcp://{network.address(HERE)}:7400"}

    def up(self) -> None:
        self.run.write()
        command = [*self.network.inside(HERE), PYTHON, "-m", "agentrl", "up", str(self.run.file), "--no-wait", "--json"]
        subprocess.run(command, env=self.run.environ, check=True, capture_output=True, timeout=PATIENCE_S)

    def join(self, host: str, clock_off_s: int = 0) -> None:
        """Start the host agent, as a person of that host would."""
        run = self.run
        folder = run.file.parent
        key = folder / f"{host}.key"
        if not key.exists():
            run.cli("keys", "new", host, "--permission", "host", "--out", str(key))
        where = ["--state-dir", str(folder / host / "state"), "--run-dir", str(self.dir(host)), "--run", run.uuid()]
        whom = ["--coordinator", f"tcp://{self.network.address(HERE)}:7400", "--key", str(key), "--name", host]
        with (folder / f"{host}.log").open("a") as log:
            self._agents[host] = subprocess.Popen(
                [*self.network.inside(host), PYTHON, "-m", "agentrl", "daemon", "host", *where, *whom],
                cwd=folder,
                env=run.environ | ({"LD_PRELOAD": self._clock(clock_off_s)} if clock_off_s else {}),
                stdout=log,
                stderr=log,
            )

    def kill(self, host: str) -> None:
        """As if its power failed: nothing is said to anyone."""
        self.network.cut(host)
        inside = self.network.processes(host)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in inside:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _clock(self, off_s: int) -> str:
        source, made = Path(__file__).with_name("programs") / "clock_of_a_host.c", self.run.file.parent / "clock.so"
        subprocess.run(["cc", "-shared", "-fPIC", f"-DOFFSET={off_s}", "-o", made, source, "-ldl"], check=True)
        return str(made)

    def dir(self, host: str) -> Path:
        return self.run.dir if self._shared else self.run.file.parent / host / "run"

    def agent(self, host: str) -> subprocess.Popen[bytes]:
        return self._agents[host]

    def listeners(self) -> dict[str, set[str]]:
        """The addresses on which processes of the run listen, by the module of the process."""
        found: dict[str, set[str]] = {}
        processes = {process.pid: process for process in self.run.processes()}
        for host in (HERE, *OTHERS):
            # The kernel lists the sockets of the namespace of the process that reads the list.
            command = [*self.network.inside(host), PYTHON, "-c", LISTENERS]
            listed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout
            for pid, address in json.loads(listed):
                words = processes[pid].cmdline()
                module = words[words.index("-m") + 1] if "-m" in words else Path(words[0]).name
                found.setdefault(module, set()).add(address)
        return found

    def close(self) -> None:
        for agent in self._agents.values():
            if agent.poll() is None:
                agent.kill()
                agent.wait(PATIENCE_S)


def run_on_hosts(
    folder: Path, name: str, others: Sequence[str] = OTHERS, *, factor: float, shared: bool = False
) -> Iterator[Hosts]:
    """A run that is not up yet; at the end nothing of it and of its networks is left."""
    network = Network(name, (HERE, *others))
    try:
        network.lay()
        for run in running(folder, name, factor=factor):
            hosts = Hosts(run, network, shared=shared)
            try:
                yield hosts
            finally:
                for host in others:
                    network.mend(host)
                run.close()
                hosts.close()
    finally:
        network.remove()
