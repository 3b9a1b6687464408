"""A run whose hosts are network namespaces of this machine. Their host agents are started by hand, not by `up`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.e2e.networks import Network
from tests.e2e.running import PYTHON, Run, running
from tests.waiting import PATIENCE_S

HERE, TOOLS, ENGINES, MORE_ENGINES, SPARE = "here", "b", "c", "d", "e"
OTHERS = (TOOLS, ENGINES, MORE_ENGINES)
LISTENERS = """
import json, psutil
sockets = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
print(json.dumps([(each.pid, each.laddr.ip) for each in sockets]))
"""
"""A program that prints the pid and the address of each listening socket of its namespace."""
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Hosts:
    def __init__(self, run: Run, network: Network, *, shared: bool) -> None:
        """With `shared`, all hosts have the directory of the run; without it they share no files."""
        self.run, self.network = run, network
        self._shared = shared
        self._folder = run.file.parent
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._boots: dict[str, list[str]] = {}
        self._commands: dict[str, tuple[str, ...]] = {}
        self.coordinator = f"tcp://{network.address(HERE)}:7400"
        run.config["coordinator"] = {"listen": self.coordinator}

    def up(self) -> None:
        self.run.write()
        done = self.agentrl(HERE, "up", str(self.run.file), "--no-wait")
        assert done.returncode == 0, done.stderr

    def agentrl(self, host: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*self._inside(host), PYTHON, "-m", "agentrl", *words]
        return subprocess.run(
            command,
            cwd=self._folder,
            env=self.run.environ,
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def _inside(self, host: str) -> list[str]:
        return [*self.network.inside(host), *self._boots.get(host, ())]

    def join(self, host: str, clock_off_s: int = 0, *, words: Sequence[str] = ()) -> None:
        """Start the agent of the host. `words` is the command for this start and later ones, if it is not the usual
        one."""
        run, folder = self.run, self._folder
        self._commands[host] = tuple(words) or self._commands.get(host) or self.agent_command(host)
        if not (key := folder / f"{host}.key").exists():
            run.cli("keys", "new", host, "--permission", "host", "--out", str(key))
        with (folder / f"{host}.log").open("a") as log:
            self._agents[host] = subprocess.Popen(
                [*self._inside(host), PYTHON, "-m", "agentrl", *self._commands[host]],
                cwd=folder,
                env=run.environ | ({"LD_PRELOAD": self._clock(clock_off_s)} if clock_off_s else {}),
                stdout=log,
                stderr=log,
            )

    def agent_command(self, host: str, *, directory: str = "", key: str = "") -> tuple[str, ...]:
        """The command of the agent. Its paths are relative to the directory of this test, in which it is started."""
        own = directory or host
        run_dir = os.path.relpath(self.run.dir if self._shared else self._folder / own / "run", self._folder)
        where = ("--state-dir", f"{own}/state", "--run-dir", run_dir, "--run", self.run.uuid())
        whom = ("--coordinator", self.coordinator, "--key", key or f"{host}.key")
        return ("daemon", "host", "--name", host, *where, *whom)

    def kill(self, host: str) -> None:
        """Kill all processes of the host at once and cut its cable, like a power failure."""
        self.network.cut(host)
        inside = self.network.processes(host)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in inside:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        if host in self._agents:
            self._agents[host].wait(PATIENCE_S)

    def boot(self, host: str) -> None:
        """The machine of the host starts (again): from now on its kernel has another boot id."""
        made = self._folder / f"{host}.boot_id"
        made.write_text(f"{uuid.uuid4()}\n")
        bind = f'mount --bind {made} {BOOT_ID} && exec "$@"'
        self._boots[host] = ["unshare", "--mount", "sh", "-c", bind, "sh"]
        self.network.mend(host)

    def _clock(self, off_s: int) -> str:
        source, made = Path(__file__).with_name("programs") / "clock_of_a_host.c", self._folder / f"clock{off_s}.so"
        subprocess.run(["cc", "-shared", "-fPIC", f"-DOFFSET={off_s}", "-o", made, source, "-ldl"], check=True)
        return str(made)

    def dir(self, host: str) -> Path:
        return self.run.dir if self._shared else self._folder / host / "run"

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
    folder: Path,
    name: str,
    others: Sequence[str] = OTHERS,
    *,
    factor: float,
    shared: bool = False,
    spares: Sequence[str] = (),
    poor: Sequence[str] = (),
) -> Iterator[Hosts]:
    """Yields a run that is not up yet; removes all its processes and networks at the end.

    `spares` are further machines. `poor` are the hosts whose cables can be disturbed."""
    network = Network(name, (HERE, *others, *spares), poor)
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
