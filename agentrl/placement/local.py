"""The backend `local`: the agent on this host; also `python -m agentrl.placement.local --state-dir S ...`.

The agent has a session of its own and writes to files, so it survives the terminal and the process that started it. Two
starts at the same time lead to one agent, because the second finds the lock.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from agentrl.config.paths import read_run
from agentrl.config.this_host import this_host
from agentrl.errors import AgentrlError, ConfigError, ConflictError, DiskError, ExitCode
from agentrl.host import procfs
from agentrl.host.agent_lock import read_agent_file
from agentrl.host.log_files import private
from agentrl.placement import Placed

_START_WITHIN_S = 90.0
_END_WITHIN_S = 10.0
_POLL_S = 0.01


class LocalPlacement:
    """Agents on this host: one, or several if hosts are simulated."""

    def __init__(self, state_dir: Path, run_dir: Path, run: str, *, arguments: Sequence[str] = ("--with-coordinator",)):
        self._state_dir = state_dir.absolute()
        self._run_dir = run_dir.absolute()
        self._run = run
        self._arguments = tuple(arguments)

    def ensure(self, hosts: Sequence[str]) -> tuple[Placed, ...]:
        return tuple(self._ensure(host) for host in hosts)

    def release(self, hosts: Sequence[str]) -> None:
        deadline = time.monotonic() + _END_WITHIN_S
        for host in hosts:
            known = read_agent_file(self._state_dir, host)
            if known is None:
                continue
            procfs.kill_exactly(known.pid, known.start_ticks, signal.SIGTERM)
            while known.identity.alive():
                if time.monotonic() > deadline:
                    raise AgentrlError(f"The host agent of {host} (process {known.pid}) does not end.")
                time.sleep(_POLL_S)

    def describe(self) -> tuple[Placed, ...]:
        folder = self._state_dir / "hosts"
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        return tuple(self._placed(host) for host in names)

    def _placed(self, host: str) -> Placed:
        known = read_agent_file(self._state_dir, host)
        alive = known is not None and known.identity.alive()
        return Placed(host, f"process {known.pid}" if known else "never started here", alive)

    def _ensure(self, host: str) -> Placed:
        placed = self._placed(host)
        if placed.alive:
            return placed
        process = self._spawn(host)
        deadline = time.monotonic() + _START_WITHIN_S
        try:
            return self._await(host, process, deadline)
        finally:
            # The agent outlives this process, and Popen must not warn about that.
            process.returncode = process.returncode if process.returncode is not None else 0

    def _spawn(self, host: str) -> subprocess.Popen[bytes]:
        folder = self._state_dir / "hosts" / host
        command = [sys.executable, "-m", "daemons.host", "--state-dir", str(self._state_dir)]
        command += ["--run-dir", str(self._run_dir), "--name", host, "--run", self._run, *self._arguments]
        env = procfs.without_marks(os.environ) | {"AGENTRL_RUN": self._run}
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(folder / "agent.log", "ab", opener=private) as output:
                return subprocess.Popen(
                    command,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except OSError as failed:
            raise DiskError(f"The host agent of {host} cannot be started: {failed.strerror}.") from failed

    def _await(self, host: str, process: subprocess.Popen[bytes], deadline: float) -> Placed:
        log = self._state_dir / "hosts" / host / "agent.log"
        while time.monotonic() < deadline:
            placed = self._placed(host)
            if placed.alive:
                return placed
            code = process.poll()
            if code == ExitCode.CONFLICT:
                raise ConflictError(f"Another host agent of {host} was started at the same moment.")
            if code is not None:
                raise AgentrlError(f"The host agent of {host} ended with {code}; {log} has the reason.")
            time.sleep(_POLL_S)
        raise AgentrlError(
            f"The host agent of {host} did not come up within {_START_WITHIN_S:g} s; {log} shows its progress."
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m agentrl.placement.local", description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    args, further = parser.parse_known_args()
    try:
        run = read_run(args.state_dir)
        if run is None:
            raise ConfigError(f"{args.state_dir} is not the state directory of a run: it has no run.json.")
        arguments = tuple(further) or ("--with-coordinator",)
        placement = LocalPlacement(args.state_dir, args.run_dir, run.uuid, arguments=arguments)
        for placed in placement.ensure([this_host(args.state_dir).name]):
            print(f"host agent of {placed.host}: {placed.where}")
    except AgentrlError as failed:
        print(failed, file=sys.stderr)
        return failed.exit_code
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
