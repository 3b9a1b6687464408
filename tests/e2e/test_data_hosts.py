"""A run whose data plane is on several hosts learns like one on a single host.

Sampler and toolbox are on one host, the engines on two others; trainer, steward and MongoDB on that of the coordinator.
The hosts share no directory: weights, code and configuration, as all that they say to each other, go through their
tunnels.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.config.this_host import default_name
from tests.e2e.networks import Network
from tests.e2e.running import PYTHON, Run, running
from tests.small_run import data_plane, write_data
from tests.waiting import PATIENCE_S, eventually

HERE, TOOLS, ENGINES, MORE_ENGINES = "here", "b", "c", "d"
OTHERS = (TOOLS, ENGINES, MORE_ENGINES)
UP_WITHIN_S = 400.0
STEPS = 5
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


LISTENERS = """
import json, psutil
sockets = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
print(json.dumps([(each.pid, each.laddr.ip) for each in sockets]))
"""
"""A program that prints who listens where in its namespace."""


OWN_SCORER = """
from agentrl.rollout.scorers import register_scorer

@register_scorer("own")
async def own(answer, truth, task):
    return float(answer == truth)
"""


class Hosts:
    def __init__(self, run: Run, network: Network) -> None:
        self.run, self.network = run, network
        self._agents: dict[str, subprocess.Popen[bytes]] = {}

    def up(self) -> None:
        self.run.write()
        command = [*self.network.inside(HERE), PYTHON, "-m", "agentrl", "up", str(self.run.file), "--no-wait", "--json"]
        subprocess.run(command, env=self.run.environ, check=True, capture_output=True, timeout=PATIENCE_S)

    def join(self, host: str) -> None:
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
                env=run.environ,
                stdout=log,
                stderr=log,
            )

    def dir(self, host: str) -> Path:
        """Its own; the hosts share no files."""
        return self.run.file.parent / host / "run"

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


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    name = f"t-{uuid.uuid4().hex[:8]}"
    network = Network(name, (HERE, *OTHERS))
    try:
        network.lay()
        for run in running(tmp_path, name, factor=1.0):
            hosts = Hosts(run, network)
            try:
                yield hosts
            finally:
                run.close()
                hosts.close()
    finally:
        network.remove()


def test_run_on_hosts_without_a_shared_disk_learns_and_nothing_listens_without_keys(hosts: Hosts) -> None:
    run = hosts.run
    write_data(run.file.parent)
    (run.file.parent / "own.py").write_text(OWN_SCORER)
    run.config |= data_plane(steps=STEPS)
    run.config["rollout"]["code"] = ["own.py"]
    run.config["environments"]["shop"]["scorer"] = "own"
    run.config["coordinator"] = {"listen": f"tcp://{hosts.network.address(HERE)}:7400"}
    engines = {"runs": "engine"}
    run.config["hosts"] = {TOOLS: {"runs": ["sampler", "toolbox"]}, ENGINES: engines, MORE_ENGINES: engines}
    hosts.up()
    waits = f"{ENGINES}, {MORE_ENGINES}: has not registered"
    eventually(lambda: waits in run.unit_row("engine-0").reason, within_s=UP_WITHIN_S, what="why it waits")
    for host in (ENGINES, TOOLS):
        hosts.join(host)
    run.wait_state("engine-0", "ready", within_s=UP_WITHIN_S)
    hosts.join(MORE_ENGINES)
    eventually(lambda: run.cli("records", "list", "--limit", "1")["rows"], within_s=UP_WITHIN_S, what="a record")
    eventually(lambda: f"host/{MORE_ENGINES}" in run.rows(), what=f"host {MORE_ENGINES}")
    run.cli("scale", "engine", "2", within_s=UP_WITHIN_S)

    units = run.units()
    elsewhere = {"sampler-0": TOOLS, "toolbox-0": TOOLS, "engine-0": ENGINES, "engine-1": MORE_ENGINES}
    assert {unit: row.host for unit, row in units.items()} == dict.fromkeys(units, default_name()) | elsewhere
    see_listeners(hosts)
    replace_secrets(hosts)
    tunnel, files = (
        next(each for each in run.processes() if module in each.cmdline() and ENGINES in each.cmdline())
        for module in ("daemons.tunnel", "daemons.files")
    )
    tunnel.kill()
    files.kill()
    run.wait_state("trainer-0", "stopped", within_s=UP_WITHIN_S)
    see_files(hosts)
    account = run.cli("accounting")
    assert account["steps"] == {"committed": STEPS}
    assert account["trained_records"] > 0
    assert set(run.incarnations().values()) == {1}, "nothing died"
    assert run.cli("logs", "engine-0")["lines"], "logs are read through the host's agent"
    down = run.cli("down", "--yes", within_s=UP_WITHIN_S)
    assert down["proven"]
    assert [hosts.agent(host).wait(PATIENCE_S) for host in OTHERS] == [0, 0, 0]
    assert not run.processes()


def see_listeners(hosts: Hosts) -> None:
    """Nothing listens beyond loopback without keys."""
    own = {hosts.network.address(host) for host in (HERE, *OTHERS)}
    listeners = hosts.listeners()
    assert listeners["daemons.tunnel"] >= own
    assert {"mongod", "daemons.toolbox", "daemons.engine", "daemons.coordinator"} <= listeners.keys()
    for module, addresses in listeners.items():
        beyond = addresses - {"127.0.0.1", "::1"}
        # These two take connections only with a key, or with a certificate of the run.
        assert not beyond or (module in ("daemons.coordinator", "daemons.tunnel") and beyond <= own), module


def replace_secrets(hosts: Hosts) -> None:
    """While records are made; no call is refused."""
    run, names = hosts.run, ("http.token", "authority.pem")
    before = [(run.state_dir / name).read_text() for name in names]
    run.cli("keys", "rotate", "--yes", within_s=UP_WITHIN_S)
    token, authority = after = [(run.state_dir / name).read_text() for name in names]
    assert (token.count("\n"), authority.count("BEGIN CERTIFICATE")) == (0, 1), "what was before is not accepted"
    assert not set(before) & set(after)
    for host in OTHERS:
        (file,) = run.file.parent.glob(f"{host}/**/http.token")
        eventually(lambda file=file: file.read_text() == token, what=f"the new token on host {host}")
    assert not run.cli("records", "list", "--filter", "status=failed")["rows"]


def see_files(hosts: Hosts) -> None:
    """Both engines serve the last version, from directories of their own."""
    last = max((hosts.run.dir / "weights").iterdir())
    for host in (ENGINES, MORE_ENGINES):
        copy = hosts.dir(host) / "weights" / last.name / "model.safetensors"
        eventually(copy.exists, what=f"version {last.name} on host {host}")
        assert copy.read_bytes() == (last / "model.safetensors").read_bytes()
        assert not list(hosts.dir(host).glob("copied/**/own.py")), "engines read no code"
    sampler = hosts.dir(TOOLS)
    (code,) = sampler.glob("copied/**/own.py")
    assert code.read_text() == OWN_SCORER
    assert not list(sampler.glob("weights/*/model.safetensors")), "samplers need no weights"
