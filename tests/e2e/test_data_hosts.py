"""A run whose data plane is on several hosts learns like one on a single host, and loses nothing when they fail.

Sampler and toolbox are on one host, the engines on two others; trainer, steward and MongoDB on that of the coordinator.
The hosts share no directory. Weights, code, configuration and all messages between hosts go through their tunnels.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.config.this_host import default_name
from agentrl.errors import ExitCode
from tests.e2e.hosts import ENGINES, HERE, MORE_ENGINES, OTHERS, SPARE, TOOLS, Hosts, run_on_hosts
from tests.e2e.running import Run
from tests.small_run import data_plane, write_data
from tests.waiting import PATIENCE_S, eventually

UP_WITHIN_S = 400.0
FACTOR = 0.3
CUT_OFF_S = 60.0
"""Wall-clock time; longer than every timeout of the run."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


OWN_SCORER = """
from agentrl.rollout.scorers import register_scorer

@register_scorer("own")
async def own(answer, truth, task):
    return float(answer == truth)
"""


OWN_SERVER = """
import runpy

import beside

runpy.run_module(beside.MODULE, run_name="__main__")
"""
BESIDE = "MODULE = 'assets.shop_server'"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    yield from run_on_hosts(
        tmp_path_factory.mktemp("hosts"), f"t-{uuid.uuid4().hex[:8]}", factor=FACTOR, spares=(SPARE,), poor=(TOOLS,)
    )


def test_run_on_hosts_without_a_shared_disk_learns_and_nothing_listens_without_keys(hosts: Hosts) -> None:
    """The clocks of two hosts are wrong."""
    run = hosts.run
    write_data(run.file.parent)
    for name, text in (("own.py", OWN_SCORER), ("server.py", OWN_SERVER), ("beside.py", BESIDE)):
        (run.file.parent / name).write_text(text)
    run.config |= data_plane(steps=1000)
    run.config["rollout"]["code"] = ["own.py"]
    run.config["tools"]["shop"]["command"] = ["{python}", "server.py", "--no-faults"]
    run.config["environments"]["shop"] |= {"scorer": "own", "epochs": 10_000}
    work = ["sampler", "toolbox", "trainer"]
    run.config["hosts"] = {
        TOOLS: {"runs": work},
        ENGINES: {"runs": ["engine", *work]},
        MORE_ENGINES: {"runs": "engine"},
    }
    hosts.up()
    waits = f"{ENGINES}, {MORE_ENGINES}: has not registered"
    eventually(lambda: waits in run.unit_row("engine-0").reason, within_s=UP_WITHIN_S, what="why it waits")
    hosts.join(TOOLS, clock_off_s=-600)
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
    see_clocks(run)
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
    assert not {unit: str(row.last_exit) for unit, row in run.units().items() if row.incarnation > 1}, "nothing died"
    assert run.cli("logs", "engine-0")["lines"], "logs are read through the host's agent"


def test_slow_and_lossy_link_ends_no_unit(hosts: Hosts) -> None:
    run, before, steps = hosts.run, hosts.run.incarnations(), committed(hosts.run)
    hosts.network.disturb(TOOLS, delay_s=0.1, sent_lost=0.05, received_lost=0.05)
    eventually(lambda: committed(run) > steps, within_s=UP_WITHIN_S, what="a step over that link")
    hosts.network.disturb(TOOLS)
    assert run.incarnations() == before


def test_run_goes_on_while_a_host_is_cut_off_for_a_minute_and_another_one_is_killed(hosts: Hosts) -> None:
    run = hosts.run
    saved = run.dir / "checkpoints"
    eventually(lambda: list(saved.glob("*/optimizer.safetensors")), within_s=UP_WITHIN_S, what="a copy of a checkpoint")
    moved = ("sampler-0", "toolbox-0", "trainer-0")
    steps, cut_at = committed(run), time.monotonic()
    hosts.network.cut(TOOLS)
    lost = f"was lost with host {TOOLS} and is"
    eventually(lambda: lost in run.run_row().reason, what="what is degraded and by whom")
    for unit in moved:
        run.wait_incarnation(unit, above=1, within_s=UP_WITHIN_S)
        assert run.unit_row(unit).host == ENGINES
    eventually(lambda: committed(run) > steps, within_s=UP_WITHIN_S, what="a step of the trainer elsewhere")
    hosts.kill(MORE_ENGINES)
    lost = f"engine-1 was lost with host {MORE_ENGINES}"
    eventually(lambda: lost in run.run_row().reason, what="what is degraded and by whom")
    run.wait_incarnation("engine-1", above=1, within_s=UP_WITHIN_S)
    assert run.unit_row("engine-1").host == ENGINES
    hosts.boot(MORE_ENGINES)
    hosts.join(MORE_ENGINES)
    wait_up(run, MORE_ENGINES)
    eventually(lambda: time.monotonic() - cut_at > CUT_OFF_S, within_s=CUT_OFF_S, what="the end of the outage")
    hosts.network.mend(TOOLS)
    wait_up(run, TOOLS)
    old = {f"{unit}.1" for unit in (*moved, "engine-1")}
    eventually(lambda: not old & set.union(*map(run.lives_of, moved)), what="the end of those that were replaced")
    # The command fails if a record was lost or trained twice.
    assert run.cli("accounting")["trained_records"] > 0


def test_run_is_taken_up_on_another_machine_from_its_state_directory(hosts: Hosts) -> None:
    run, before, steps = hosts.run, hosts.run.incarnations(), committed(hosts.run)
    hosts.kill(HERE)
    hosts.boot(SPARE)
    hosts.network.take_address(SPARE, of=HERE)
    up = ("up", str(run.file), "--no-wait")
    refused = hosts.agentrl(SPARE, *up)
    assert refused.returncode == ExitCode.CONFLICT
    assert f"The run {run.name} is up on host {default_name()}" in refused.stderr
    marker = run.dir / "coordinator.json"
    assert str(marker) in refused.stderr, "the error names the file to remove if that host is gone"
    marker.unlink()
    done = hosts.agentrl(SPARE, *up)
    assert done.returncode == 0, done.stderr
    for host in OTHERS:
        wait_up(run, host)
    eventually(lambda: committed(run) > steps, within_s=UP_WITHIN_S, what="a step under the next coordinator")
    after = run.incarnations()
    assert {unit: after[unit] for unit in ("mongo-0", "steward-0")} == {
        unit: before[unit] + 1 for unit in ("mongo-0", "steward-0")
    }
    units = ("sampler-0", "toolbox-0", "engine-0", "engine-1")
    assert {unit: after[unit] for unit in units} == {unit: before[unit] for unit in units}
    assert run.cli("accounting")["trained_records"] > 0
    assert run.cli("down", "--now", "--yes", within_s=UP_WITHIN_S)["proven"]
    assert [hosts.agent(host).wait(PATIENCE_S) for host in OTHERS] == [0, 0, 0]
    assert not run.processes()


def wait_up(run: Run, host: str) -> None:
    eventually(lambda: run.rows()[f"host/{host}"].state == "up", what=f"host {host} to be up")


def see_clocks(run: Run) -> None:
    def shown() -> bool:
        listed = run.raw("hosts", "list").stdout
        return f"{TOOLS}: its clock is 10 min behind" in listed and f"{ENGINES}: its clock is 5 h ahead" in listed

    eventually(shown, what="which clocks are wrong")
    _, checks = run.cli("doctor", str(run.file), check=False)
    assert {f"{TOOLS}: its clock is 10 min behind the coordinator's."} <= {check["sentence"] for check in checks}


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
    """Replace the secrets while records are sampled. No call is refused."""
    run, names = hosts.run, ("http.token", "authority.pem")
    before = [(run.state_dir / name).read_text() for name in names]
    run.cli("keys", "rotate", "--yes", within_s=UP_WITHIN_S)
    token, authority = after = [(run.state_dir / name).read_text() for name in names]
    assert (token.count("\n"), authority.count("BEGIN CERTIFICATE")) == (0, 1), (
        "the former secrets are no longer accepted"
    )
    assert not set(before) & set(after)
    for host in OTHERS:
        (file,) = run.file.parent.glob(f"{host}/**/http.token")
        eventually(lambda file=file: file.read_text() == token, what=f"the new token on host {host}")
    assert not run.cli("records", "list", "--filter", "status=failed")["rows"]


def see_files(hosts: Hosts) -> None:
    """Check that hosts of engines have copies of the trainer's versions, and the host of the sampler has the code."""
    written = hosts.dir(TOOLS) / "weights"
    for host in (ENGINES, MORE_ENGINES):
        eventually(lambda: any(is_copied(written, hosts.dir(host))), what=f"a version on host {host}")  # noqa: B023
        assert not list(hosts.dir(host).glob("copied/**/own.py")), "hosts with engines get no code"
    sampler = hosts.dir(TOOLS)
    (code,) = sampler.glob("copied/**/own.py")
    assert code.read_text() == OWN_SCORER


def is_copied(written: Path, run_dir: Path) -> Iterator[bool]:
    """Whether each copy on the host equals its version, for the versions that the trainer has not removed."""
    for copy in run_dir.glob("weights/*/model.safetensors"):
        with contextlib.suppress(FileNotFoundError):
            yield copy.read_bytes() == (written / copy.parent.name / copy.name).read_bytes()
