"""A run whose data plane is on several hosts learns like one on a single host.

Sampler and toolbox are on one host, the engines on two others; trainer, steward and MongoDB on that of the coordinator.
The hosts share no directory: weights, code and configuration, as all that they say to each other, go through their
tunnels.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
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
FACTOR = 0.3
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


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    name = f"t-{uuid.uuid4().hex[:8]}"
    network = Network(name, (HERE, *OTHERS))
    try:
        network.lay()
        for run in running(tmp_path_factory.mktemp("hosts"), name, factor=FACTOR):
            hosts = Hosts(run, network)
            try:
                yield hosts
            finally:
                run.close()
                hosts.close()
    finally:
        network.remove()


def test_run_on_hosts_without_a_shared_disk_learns_and_nothing_listens_without_keys(hosts: Hosts) -> None:
    """The clock of a host is hours ahead."""
    run = hosts.run
    write_data(run.file.parent)
    (run.file.parent / "own.py").write_text(OWN_SCORER)
    run.config |= data_plane(steps=1000)
    run.config["rollout"]["code"] = ["own.py"]
    run.config["environments"]["shop"] |= {"scorer": "own", "epochs": 10_000}
    run.config["coordinator"] = {"listen": f"tcp://{hosts.network.address(HERE)}:7400"}
    work = ["sampler", "toolbox", "trainer"]
    run.config["hosts"] = {
        TOOLS: {"runs": work},
        ENGINES: {"runs": ["engine", *work]},
        MORE_ENGINES: {"runs": "engine"},
    }
    hosts.up()
    waits = f"{ENGINES}, {MORE_ENGINES}: has not registered"
    eventually(lambda: waits in run.unit_row("engine-0").reason, within_s=UP_WITHIN_S, what="why it waits")
    hosts.join(TOOLS)
    for unit in ("sampler-0", "toolbox-0"):
        run.wait_state(unit, "ready", within_s=UP_WITHIN_S)
    hosts.join(ENGINES, clock_off_s=5 * 3600)
    run.wait_state("engine-0", "ready", within_s=UP_WITHIN_S)
    hosts.join(MORE_ENGINES)
    eventually(lambda: f"host/{MORE_ENGINES}" in run.rows(), what=f"host {MORE_ENGINES}")
    run.cli("scale", "engine", "2", within_s=UP_WITHIN_S)

    units = run.units()
    elsewhere = {"engine-0": ENGINES, "engine-1": MORE_ENGINES} | dict.fromkeys((f"{one}-0" for one in work), TOOLS)
    assert {unit: row.host for unit, row in units.items()} == dict.fromkeys(units, default_name()) | elsewhere
    see_listeners(hosts)
    replace_secrets(hosts)
    tunnel, files = (
        next(each for each in run.processes() if module in each.cmdline() and ENGINES in each.cmdline())
        for module in ("daemons.tunnel", "daemons.files")
    )
    tunnel.kill()
    files.kill()
    steps = committed(run)
    eventually(lambda: committed(run) >= steps + 2, within_s=UP_WITHIN_S, what="two more steps")
    see_files(hosts)
    assert run.cli("accounting")["trained_records"] > 0
    assert set(run.incarnations().values()) == {1}, "nothing died"
    assert run.cli("logs", "engine-0")["lines"], "logs are read through the host's agent"


def test_units_of_a_host_that_is_cut_off_go_on_elsewhere_and_nothing_is_lost(hosts: Hosts) -> None:
    run = hosts.run
    saved = run.dir / "checkpoints"
    eventually(lambda: list(saved.glob("*/optimizer.safetensors")), within_s=UP_WITHIN_S, what="a copy of a checkpoint")
    moved = ("sampler-0", "toolbox-0", "trainer-0")
    steps = committed(run)
    hosts.network.cut(TOOLS)
    lost = f"was lost with host {TOOLS} and is"
    eventually(lambda: lost in run.run_row().reason, what="what is degraded and by whom")
    for unit in moved:
        run.wait_incarnation(unit, above=1, within_s=UP_WITHIN_S)
        assert run.unit_row(unit).host == ENGINES
    eventually(lambda: committed(run) > steps, within_s=UP_WITHIN_S, what="a step of the trainer elsewhere")
    hosts.network.mend(TOOLS)
    old = {f"{unit}.1" for unit in moved}
    eventually(lambda: not old & set.union(*map(run.lives_of, moved)), what="the end of those that were replaced")
    # It exits with another status if a record is lost, or trained twice.
    assert run.cli("accounting")["trained_records"] > 0


def test_units_of_a_killed_host_start_elsewhere(hosts: Hosts) -> None:
    run = hosts.run
    hosts.kill(MORE_ENGINES)
    eventually(
        lambda: f"engine-1 was lost with host {MORE_ENGINES}" in run.run_row().reason,
        what="what is degraded and by whom",
    )
    run.wait_incarnation("engine-1", above=1, within_s=UP_WITHIN_S)
    assert run.unit_row("engine-1").host == ENGINES
    steps = committed(run)
    eventually(lambda: committed(run) > steps, within_s=UP_WITHIN_S, what="a step with the engines that are left")
    run.cli("hosts", "forget", MORE_ENGINES, "--yes")
    assert run.cli("down", "--now", "--yes", within_s=UP_WITHIN_S)["proven"]
    assert [hosts.agent(host).wait(PATIENCE_S) for host in (TOOLS, ENGINES)] == [0, 0]
    assert not run.processes()


def committed(run: Run) -> int:
    return int(run.cli("accounting")["steps"].get("committed", 0))


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
    """Engines have the trainer's versions, in directories of their own; samplers have code and a tokenizer."""
    written = hosts.dir(TOOLS) / "weights"
    for host in (ENGINES, MORE_ENGINES):
        eventually(lambda: any(is_copied(written, hosts.dir(host))), what=f"a version on host {host}")  # noqa: B023
        assert not list(hosts.dir(host).glob("copied/**/own.py")), "engines read no code"
    sampler = hosts.dir(TOOLS)
    (code,) = sampler.glob("copied/**/own.py")
    assert code.read_text() == OWN_SCORER


def is_copied(written: Path, run_dir: Path) -> Iterator[bool]:
    """For each version of the host that the trainer has not removed."""
    for copy in run_dir.glob("weights/*/model.safetensors"):
        with contextlib.suppress(FileNotFoundError):
            yield copy.read_bytes() == (written / copy.parent.name / copy.name).read_bytes()
