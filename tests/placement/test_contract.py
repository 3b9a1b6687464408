"""The contract of placements, tested with real agents on each real backend."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from agentrl.errors import NotProvenError
from agentrl.placement import HostRequest, Placed, State
from agentrl.placement.requests import Reply, Request
from tests.placement.sites import ROOT, SITES, Site, opened
from tests.waiting import PATIENCE_S, eventually

A, B = Site.hosts
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.chdir(ROOT)
    with opened(request.param, tmp_path) as site:
        yield site


def placed_soon(site: Site, host: str, *states: State) -> Placed:
    """Wait until the backend reports the host in one of these states."""
    found: list[Placed] = []

    def look() -> bool:
        found[:] = [each for each in site.open().describe() if each.host == host]
        return bool(found) and found[0].state in states

    eventually(look, what=f"{host} to be {states}")
    return found[0]


def answer(site: Site, wanted: HostRequest) -> Placed:
    """Start a host and wait for the result of the start."""
    found: list[Placed] = []

    def look() -> bool:
        found[:] = site.open().ensure([wanted])
        return found[0].state is not State.STARTING

    eventually(look, what=f"the start of {wanted.host}")
    return found[0]


def started(site: Site, wanted: HostRequest) -> None:
    placed = answer(site, wanted)
    assert placed.alive, placed


def test_agent_is_started_once_by_two_starts_and_outlives_its_starter(site: Site) -> None:
    wanted = tuple(site.wanted(host) for host in site.hosts)
    assert site.open().describe() == ()
    request = Request("ensure", site.settings, site.run, wanted)
    with ThreadPoolExecutor(2) as pool:
        replies = list(pool.map(_by_another_process, (request, request)))
    while any(one.state is State.STARTING for reply in replies for one in reply.placed):
        replies = [_by_another_process(request)]
    for reply in replies:
        assert [(one.host, one.state, one.why) for one in reply.placed] == [
            (host, State.ALIVE, "") for host in site.hosts
        ]
    placement = site.open()
    described = placement.describe()
    assert [each.host for each in described] == [A, B]
    assert all(each.alive for each in described), described
    assert placement.ensure(wanted) == described, "living agents are not restarted"
    # An agent that forks a helper looks like two for a moment.
    eventually(lambda: [len(site.agents(host)) for host in site.hosts] == [1, 1], what="one agent on each host")

    key = site.state_dir(A) / "hosts" / A / "access.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    secret = wanted[0].invitation.secret
    assert secret in key.read_text()
    _assert_nowhere_else(secret, site, key)

    placement.release([A])
    assert [each.host for each in site.open().describe()] == [B]
    assert not site.agents(A)
    eventually(lambda: len(site.agents(B)) == 1, what="one agent left")
    placement.release([B])
    assert site.open().describe() == ()


def test_lost_host_is_described_and_started_again(site: Site) -> None:
    wanted = site.wanted(A)
    started(site, wanted)
    site.kill_agent(A)
    lost = placed_soon(site, A, State.LOST)
    assert lost.why
    started(site, wanted)
    eventually(lambda: len(site.agents(A)) == 1, what="one agent, also after it has forked a helper")
    site.take_away(A)
    assert placed_soon(site, A, State.LOST, State.GONE).why


def test_release_names_what_is_left(site: Site) -> None:
    started(site, site.wanted(A))
    mark = {"AGENTRL_RUN": site.run.uuid, "AGENTRL_HOST": A, "AGENTRL_INCARNATION": "sampler-0.1"}
    left = subprocess.Popen(["sleep", "1000"], env=os.environ | mark)
    try:
        with pytest.raises(NotProvenError, match=r"sampler-0\.1"):
            site.open().release([A])
    finally:
        left.kill()
        left.wait(PATIENCE_S)
    site.open().release([A])
    assert site.open().describe() == ()


def test_agent_of_another_version_is_not_started(site: Site) -> None:
    placed = answer(site, site.wanted(A, version="9.9.9"))
    assert placed.state is State.LOST
    assert "9.9.9" in placed.why
    assert "same version" in placed.hint
    assert not site.agents(A)


def _by_another_process(request: Request) -> Reply:
    """The answer of a starter, which is killed with all its children of the same session."""
    command = [sys.executable, "-m", "agentrl.placement"]
    pipe = subprocess.PIPE
    starter = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, start_new_session=True)
    output, _ = starter.communicate(msgspec.json.encode(request), timeout=PATIENCE_S)
    try:
        os.killpg(starter.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    return msgspec.json.decode(output, type=Reply)


def _assert_nowhere_else(secret: str, site: Site, key: Path) -> None:
    for path in site.folder.rglob("*"):
        if path.is_file() and path != key:
            assert secret.encode() not in path.read_bytes(), path
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            told = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        assert secret.encode() not in told, pid
