"""`up` starts the agents of other hosts over a real sshd in network namespaces; `down` ends them and proves it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ExitCode
from agentrl.host.agent_lock import read_agent_file
from agentrl.protocol.rows import HostRow
from tests.e2e.networks import Network
from tests.e2e.running import PYTHON, Run, running
from tests.placement.sites import Sshd, make_ssh_key
from tests.waiting import PATIENCE_S, eventually

HERE, B, C, D = "here", "b", "c", "d"
UP_WITHIN_S = 2 * PATIENCE_S
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


class Machines:
    """Three machines with sshd, and the one of the operator."""

    def __init__(self, run: Run, network: Network) -> None:
        self.run, self.network = run, network
        self.folder = run.file.parent
        self._keys = self.folder / "keys"
        self._keys.mkdir()
        for name in ("machine", "person"):
            make_ssh_key(self._keys / name)
        self.sshd = {
            host: Sshd(
                self._keys,
                self.folder / f"sshd-{host}",
                22,
                address=network.address(host),
                inside=tuple(network.inside(host)),
            )
            for host in (B, C, D)
        }

    def configure(self) -> None:
        config, address = self.run.config, self.network.address
        config["coordinator"] = {"listen": f"tcp://{address(HERE)}:7400"}
        config["hosts"] = {host: {"node": address(host), "disk": str(self.disk(host))} for host in (B, C, D)}
        config["hosts"]["nowhere"] = {"node": "no-such-machine.invalid"}
        options = [f"UserKnownHostsFile={self.folder}/known", "StrictHostKeyChecking=accept-new"]
        config["placement"] = {"ssh": {"identity": "keys/person", "options": options, "connect_s": 3}}

    def disk(self, host: str) -> Path:
        return self.folder / "disks" / host

    def agentrl(self, *words: str) -> tuple[int, Any, str]:
        """Run a command on the machine of the operator. Returns exit code, document and stderr."""
        command = [*self.network.inside(HERE), PYTHON, "-m", "agentrl", *words]
        done = subprocess.run(
            command,
            env=self.run.environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=UP_WITHIN_S,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout) if "--json" in words else done.stdout, done.stderr

    def up(self) -> str:
        """Run `up`. Returns its stderr."""
        self.run.write()
        code, shown, complaint = self.agentrl("up", str(self.run.file))
        assert code == 0, (shown, complaint)
        return complaint

    def host(self, name: str) -> HostRow | None:
        row = self.run.rows().get(f"host/{name}")
        assert row is None or isinstance(row, HostRow)
        return row

    def agent_of(self, host: str) -> int:
        known = read_agent_file(self.disk(host), host)
        assert known is not None
        assert known.identity.alive()
        return known.pid

    def close(self) -> None:
        for daemon in self.sshd.values():
            daemon.close()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    name = f"t-{uuid.uuid4().hex[:8]}"
    network = Network(name, (HERE, B, C, D))
    try:
        network.lay()
        for run in running(tmp_path, name, factor=0.3):
            machines = Machines(run, network)
            try:
                yield machines
            finally:
                run.close()
                machines.close()
    finally:
        network.remove()


def test_hosts_are_started_kept_replaced_and_ended_over_ssh(machines: Machines) -> None:
    run, network = machines.run, machines.network
    machines.configure()
    run.unit("web", "step_loop", count=2, hosts=[B, C])
    run.unit("far", "step_loop", fenced=True, hosts=[C, D])
    run.write()
    code, shown, _ = machines.agentrl("up", str(run.file), "--dry-run")
    assert code == 0
    assert f"ssh starts the hosts b ({network.address(B)})" in shown
    assert "host nowhere is not up: Host nowhere (no-such-machine.invalid) has no address" in machines.up()
    assert {row.host for row in run.units().values()} <= {B, C, D}
    nowhere = machines.host("nowhere")
    assert nowhere is not None
    assert nowhere.state == "starting", "a host that cannot be started does not hold up the rest"
    assert (machines.disk(B) / "hosts" / B / "access.key").stat().st_mode & 0o777 == 0o600

    # If only a host that cannot be started may run a unit, `up` fails at once and does not wait for its deadline.
    run.unit("never", "step_loop", hosts=["nowhere"])
    run.write()
    code, failed, _ = machines.agentrl("up", str(run.file), "--json")
    assert code == ExitCode.FAILED
    reason = failed["operation"]["reason"]
    assert reason.startswith("never-0 cannot start: no host can take it (")
    assert "nowhere: Host nowhere (no-such-machine.invalid) has no address" in reason
    del run.config["sidecars"]["never"]
    machines.up()

    # An agent that dies is started again, and its units live on.
    before, agent = run.incarnations(), machines.agent_of(B)
    os.kill(agent, signal.SIGKILL)
    eventually(lambda: machines.agent_of(B) != agent, what="another agent of b")
    eventually(lambda: (machines.host(B) or {}).state == "up", what="b to be up")  # type: ignore[union-attr]
    assert run.incarnations() == before

    # A machine that is cut off is lost with its reason, and its units are placed elsewhere.
    lost = run.unit_row("far-0").host
    other = next(host for host in (C, D) if host != lost)
    network.cut(lost)
    eventually(lambda: run.unit_row("far-0").host == other, within_s=UP_WITHIN_S, what="far-0 elsewhere")
    run.wait_state("far-0", "ready")
    row = eventually(lambda: (found := machines.host(lost)) and "cannot be reached" in found.reason and found)
    assert row.state == "lost"
    network.mend(lost)
    eventually(lambda: (found := machines.host(lost)) and found.state == "up", within_s=UP_WITHIN_S)

    # A host that was removed from the run file is drained, and its agent ends.
    agent = machines.agent_of(D)
    run.config["sidecars"]["far"]["hosts"] = [C]
    del run.config["hosts"][D]
    machines.up()
    eventually(lambda: machines.host(D) is None and not run.alive(agent), what="the end of d")

    code, down, _ = machines.agentrl("down", "--yes", "--json", "--run", run.name)
    assert code == 0, down
    assert any("b, c: given back" in line for line in down["lines"])
    assert not run.processes()

    # Forgetting the run also removes its files on other hosts.
    assert [path.name for path in machines.disk(B).iterdir()]
    code, forgotten, _ = machines.agentrl("runs", "forget", run.name, "--yes", "--json")
    assert code == 0, forgotten
    left = forgotten["other_hosts"]
    assert "; remove " in left.pop("nowhere")
    assert left == {B: "", C: ""}
    assert not machines.disk(B).exists()
