"""A real run for a test: real host agent, coordinator and units, driven by the real command line.

Invariants:
- supervision times are a tenth of the defaults unless a test sets others, and silences three tenths: a process that
  gets no processor time for two seconds is not dead;
- a test fails if any process of its run is left at its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import yaml

from agentrl.client.blocking import BlockingClient
from agentrl.client.client import Client
from agentrl.config.supervision_times import SupervisionTimes
from agentrl.errors import ExitCode
from agentrl.host import procfs
from agentrl.protocol.rows import HostRow, RunRow, UnitRow
from tests import preloaded
from tests.waiting import PATIENCE_S, eventually

PYTHON = sys.executable
UP_WITHIN_S = 3 * PATIENCE_S
"""Command, host agent and coordinator start one after the other."""
SILENCES = ("suspect_after_s", "dead_after_s", "host_silent_after_s", "coordinator_silent_s")
LEAST_FACTOR_OF_SILENCES = 0.3


class Run:
    """One run in a home directory of its own."""

    def __init__(self, tmp_path: Path, name: str, *, factor: float = 0.1) -> None:
        self.name = name
        self.home = tmp_path / "home"
        self.file = tmp_path / "run.yaml"
        self.dir = tmp_path / "run"
        self.state_dir = self.home / name
        self.environ = {**os.environ, "AGENTRL_HOME": str(self.home), "NO_COLOR": "1"}
        for variable in ("AGENTRL_RUN", "AGENTRL_KEY", "AGENTRL_RUN_NAME"):
            self.environ.pop(variable, None)
        times = SupervisionTimes().scaled(factor).model_dump()
        patient = SupervisionTimes().scaled(max(factor, LEAST_FACTOR_OF_SILENCES)).model_dump()
        times |= {name: patient[name] for name in SILENCES}
        # Counts keep their defaults. A tenth of the times suits an idle machine, but this one may be busy.
        self.config: dict[str, Any] = {
            "name": name,
            "dir": str(self.dir),
            "sidecars": {},
            "supervision": {k: v for k, v in times.items() if k.endswith("_s")} if factor != 1.0 else {},
        }
        self.calls_tools = False
        """Whether `up` calls the tools before it starts the run, as it does by default. In most tests that would only
        start the tool servers twice."""
        self._client: BlockingClient | None = None

    # ---- configuration ----

    def sidecar(self, name: str, command: list[str] | str, **more: Any) -> None:
        self.config["sidecars"][name] = {"command": command, **more}

    def unit(self, name: str, module: str, *args: str, **more: Any) -> None:
        """A group of units with the unit runtime, from the programs in assets."""
        self.sidecar(name, ["{python}", "-m", f"assets.units.{module}", *args], speaks=True, **more)

    def write(self) -> None:
        self.file.write_text(yaml.safe_dump(self.config))

    # ---- the command line ----

    def cli(self, *args: str, check: bool = True, within_s: float = PATIENCE_S) -> Any:
        """Run `agentrl ARGS --json` and return its document. With `check=False`: (exit code, document)."""
        done = self.raw(*args, "--json", within_s=within_s)
        assert "Traceback" not in done.stderr, done.stderr
        document = json.loads(done.stdout) if done.stdout.strip() else None
        if check:
            assert done.returncode == 0, f"{args}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
            return document
        return done.returncode, document

    def raw(self, *args: str, within_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        return preloaded.run(self._with_run(args), env=self.environ, cwd=self.file.parent, timeout=within_s)

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Start a command that runs beside the test."""
        return subprocess.Popen(
            [PYTHON, "-m", "agentrl", *self._with_run(args)],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.file.parent,
        )

    def _with_run(self, args: tuple[str, ...]) -> tuple[str, ...]:
        if args[0] == "up" and not (self.calls_tools or "--dry-run" in args or "--skip-tools" in args):
            return ("up", "--skip-tools", *args[1:])
        if args[0] in ("up", "config", "doctor", "runs", "completion"):
            return args
        return (*args, "--run", self.name)

    def up(self, *args: str) -> Any:
        """Start the run. Units that die on purpose may be dead when this returns."""
        self.write()
        code, document = self.cli("up", str(self.file), *args, check=False, within_s=UP_WITHIN_S)
        assert code in (ExitCode.OK, ExitCode.UNHEALTHY), document
        return document

    # ---- state ----

    @property
    def client(self) -> BlockingClient:
        if self._client is None:
            client = Client.connect(self.name, state_dir=self.state_dir, timeout_s=PATIENCE_S)
            self._client = BlockingClient(client)
        return self._client

    def rows(self) -> dict[str, Any]:
        # Waits long, because many tests query while the next coordinator starts.
        return dict(self.client.snapshot(deadline_s=PATIENCE_S).rows)

    def units(self) -> dict[str, UnitRow]:
        return {r.unit: r for r in self.rows().values() if isinstance(r, UnitRow)}

    def unit_row(self, unit: str) -> UnitRow:
        return self.units()[unit]

    def host(self) -> HostRow:
        return next(r for r in self.rows().values() if isinstance(r, HostRow))

    def run_row(self) -> RunRow:
        row = self.rows()["run"]
        assert isinstance(row, RunRow)
        return row

    def incarnations(self) -> dict[str, int]:
        return {name: row.incarnation for name, row in self.units().items()}

    def wait_state(self, unit: str, *states: str, within_s: float = PATIENCE_S) -> UnitRow:
        def there() -> UnitRow | None:
            row = self.units().get(unit)
            assert row is not None, f"no {unit}"
            assert row.state in states, f"{unit} is {row.state}: {row.reason}"
            return row

        return eventually(there, within_s=within_s, what=f"{unit} to be {' or '.join(states)}")

    def wait_incarnation(self, unit: str, above: int, state: str = "ready", within_s: float = PATIENCE_S) -> UnitRow:
        def there() -> UnitRow | None:
            row = self.units()[unit]
            assert row.incarnation > above, f"{unit}.{row.incarnation} is {row.state}: {row.reason}"
            assert row.state == state, f"{unit}.{row.incarnation} is {row.state}: {row.reason}"
            return row

        return eventually(there, within_s=within_s, what=f"{unit} to be {state} in a life after {above}")

    # ---- processes ----

    def coordinator_pid(self) -> int:
        found = msgspec.json.decode((self.state_dir / "coordinator.json").read_bytes())
        return int(found["pid"])

    def agent_pid(self) -> int:
        (path,) = self.state_dir.glob("hosts/*/agent.json")
        return int(msgspec.json.decode(path.read_bytes())["pid"])

    def uuid(self) -> str:
        return str(msgspec.json.decode((self.state_dir / "run.json").read_bytes())["uuid"])

    def processes(self) -> list[psutil.Process]:
        """All processes with the mark of the run."""
        found = []
        for pid in self._marked():
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
        return found

    def _marked(self) -> dict[int, str]:
        """Incarnations by pid, "" for host agent and coordinator.

        Uses the reader of the product: a process during an exec still has its mark, and an ended process has none.
        """
        if not (self.state_dir / "run.json").exists():
            return {}
        uuid, found = self.uuid(), {}
        for pid in procfs.all_pids():
            marks = procfs.marks(pid) or {}
            if procfs.is_of_run(marks, uuid):
                found[pid] = marks.get(procfs.MARK_INCARNATION, b"").decode()
        return found

    def lives_of(self, unit: str) -> set[str]:
        """Incarnations of a unit that are alive now."""
        return {name for name in self._marked().values() if name.rpartition(".")[0] == unit}

    def alive(self, pid: int) -> bool:
        try:
            return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        os.kill(pid, number)

    def kill_agent_and_coordinator(self) -> None:
        """Kill the host agent and its coordinator together. Each restarts the other, so both are stopped first."""
        agent = self.agent_pid()
        self.kill(agent, signal.SIGSTOP)
        keepers = (agent, self.coordinator_pid())
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in keepers:
                self.kill(pid, number)
        eventually(lambda: not any(self.alive(pid) for pid in keepers), what="the end of agent and coordinator")

    # ---- cleanup ----

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        if (self.state_dir / "run.json").exists():
            done = self.raw("down", "--now", "--yes")
            output = f"{done.returncode} {done.stdout} {done.stderr}"
        else:
            output = "never up"
        left = self.processes()
        named = [(process.pid, procfs.command(process.pid)) for process in left]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert not left, f"left behind: {named}; output of down: {output}"


def running(tmp_path: Path, name: str, factor: float = 0.1) -> Iterator[Run]:
    run = Run(tmp_path, name, factor=factor)
    try:
        yield run
    finally:
        run.close()
