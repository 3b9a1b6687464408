"""Starts the compared supervisors, each used as its users do, with the same child.

Invariant: each runs with its defaults; every deviation has its reason here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path

import psutil

from agentrl.host import cgroups
from tests.benchmarks.start_times import StartTimes
from tests.e2e.running import Run

BIN = Path(sys.executable).parent


class Supervisor(ABC):
    """Keeps `count` children alive. `start` returns when the command that starts it has returned, or at once."""

    name: str
    settle_s: float = 0.0
    """How long a child must live before its death counts as a crash and not as a failed start."""

    def __init__(self, folder: Path, start_times: StartTimes) -> None:
        self.folder = folder
        self.start_times = start_times
        folder.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def start(self, count: int) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    def scale(self, by: int) -> None:
        """Only where `scales` is true."""
        raise NotImplementedError

    scales = False


class Agentrl(Supervisor):
    name = "agentrl"
    scales = True

    def start(self, count: int) -> None:
        self.run = Run(self.folder, f"bench-{os.getpid()}", factor=1.0)
        self.run.sidecar("unit", ["/bin/sh", str(self.start_times.script), "{unit}"], count=count)
        self.run.up()

    def scale(self, by: int) -> None:
        # A script gives its consent in advance.
        self.run.cli("scale", "unit", f"{by:+d}", "--yes")

    def stop(self) -> None:
        self.run.close()


class _Daemon(Supervisor):
    """A supervisor that is one foreground process."""

    @abstractmethod
    def command(self, count: int) -> list[str]: ...

    def start(self, count: int) -> None:
        with open(self.folder / "output", "wb") as output:
            self.process = subprocess.Popen(self.command(count), cwd=self.folder, stdout=output, stderr=output)

    def stop(self) -> None:
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for child in children:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue


class BareLoop(_Daemon):
    name = "bare respawn loop"

    def command(self, count: int) -> list[str]:
        # Started by its path, because the package would import modules that the loop does not need.
        return [
            sys.executable,
            str(Path(__file__).with_name("bare_respawn.py")),
            str(self.start_times.script),
            str(count),
        ]


class BareLoopInCgroups(BareLoop):
    """The same loop with a cgroup for each process, as agentrl has, so that its whole tree can be killed."""

    name = "bare loop, a cgroup each"

    def command(self, count: int) -> list[str]:
        self._cgroups = cgroups.detect(f"bench-{os.getpid()}", "floor")
        if not self._cgroups.can_kill:
            raise RuntimeError("cgroup v2 cannot be used here")
        return [*super().command(count), str(self._cgroups.tree_base)]

    def stop(self) -> None:
        super().stop()
        self._cgroups.close()


class Circus(_Daemon):
    name = "circus"
    scales = True
    settings = ""

    def command(self, count: int) -> list[str]:
        ini = self.folder / "circus.ini"
        # Addresses in its own folder instead of fixed tcp ports; everything else is the default.
        ini.write_text(
            f"[circus]\nendpoint = ipc://{self.folder}/endpoint\npubsub_endpoint = ipc://{self.folder}/pubsub\n"
            f"{self.settings}"
            f"[watcher:unit]\ncmd = /bin/sh {self.start_times.script} unit-$(circus.wid)\nnumprocesses = {count}\n"
        )
        return [str(BIN / "circusd"), str(ini)]

    def scale(self, by: int) -> None:
        verb = "incr" if by > 0 else "decr"
        self._run(verb, "unit", str(abs(by)))

    def _run(self, *words: str) -> None:
        command = [str(BIN / "circusctl"), "--endpoint", f"ipc://{self.folder}/endpoint", *words]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


class EagerCircus(Circus):
    """Checks for ended processes fifty times as often as by default."""

    name = "circus, check_delay 0.1 s"
    settings = "check_delay = 0.1\n"


class Supervisord(_Daemon):
    name = "supervisord"
    settle_s = 1.5
    """`startsecs` is 1 s; a child that dies younger counts as a failed start."""

    def command(self, count: int) -> list[str]:
        conf = self.folder / "supervisord.conf"
        conf.write_text(
            f"[supervisord]\nnodaemon=true\nlogfile={self.folder}/log\npidfile={self.folder}/pid\n"
            f"childlogdir={self.folder}\nidentifier=bench\n"
            f"[program:unit]\ncommand=/bin/sh {self.start_times.script} unit-%(process_num)d\n"
            f"process_name=unit-%(process_num)d\nnumprocs={count}\nautorestart=true\n"
        )
        return [str(BIN / "supervisord"), "-c", str(conf)]
