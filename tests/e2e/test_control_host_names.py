"""A machine whose hostname has dots, and changes while the run is up, is one host with one agent."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

from tests.e2e.running import PYTHON, UP_WITHIN_S, Run, running


def up_with_hostname(run: Run, hostname: str) -> None:
    """`up` in a namespace of its own for the hostname."""
    command = ["unshare", "--uts", "sh", "-c", f'hostname {hostname} && exec "$@"', "sh"]
    done = subprocess.run(
        [*command, PYTHON, "-m", "agentrl", "up", str(run.file), "--json"],
        env=run.environ,
        capture_output=True,
        text=True,
        timeout=UP_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout


def test_host_keeps_its_name_and_its_units_when_the_hostname_changes(tmp_path: Path) -> None:
    for run in running(tmp_path, f"t-{uuid.uuid4().hex[:8]}"):
        run.sidecar("web", ["sleep", "1000"], count=2)
        run.write()
        up_with_hostname(run, "node1.cluster.example.org")
        before = {unit: (row.host, row.incarnation, row.pid) for unit, row in run.units().items()}
        agent = run.agent_pid()
        run.kill_agent_and_coordinator()
        up_with_hostname(run, "after.example.org")
        assert run.agent_pid() != agent
        after = {unit: (row.host, row.incarnation, row.pid) for unit, row in run.units().items()}
        assert after == before
        assert {host for host, _, _ in after.values()} == {"node1"}
        assert [name for name in run.rows() if name.startswith("host/")] == ["host/node1"]
        assert [folder.name for folder in (run.state_dir / "hosts").iterdir()] == ["node1"]
        assert run.cli("down", "--yes")["proven"]
