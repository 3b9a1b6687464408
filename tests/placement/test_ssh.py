"""Failures of a start over a real sshd are one sentence each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agentrl.files.cache import Cache
from agentrl.files.pieces import Content
from agentrl.placement import HostRemains, State
from tests.placement.sites import ROOT, Site, SshSite, make_ssh_key, opened

HOST = Site.hosts[0]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshSite]:
    monkeypatch.chdir(ROOT)
    with opened("ssh", tmp_path) as site:
        assert isinstance(site, SshSite)
        yield site


def test_each_failure_of_a_start_is_one_sentence(site: SshSite, tmp_path: Path) -> None:
    make_ssh_key(tmp_path / "stranger")
    settings = dict(site.ssh)

    def why() -> str:
        (placed,) = site.open().ensure([site.wanted(HOST)])
        assert placed.state is State.LOST
        assert "\n" not in placed.why
        assert placed.hint
        return placed.why

    for change, words in (
        ({"identity": str(tmp_path / "stranger")}, f"Host {HOST} ({HOST}) refuses the key"),
        ({"python": "/no/python"}, f"On host {HOST} ({HOST}) /no/python is no Python that can be started"),
        ({"python": "/usr/bin/python3"}, "/usr/bin/python3 has no agentrl installed"),
        ({"options": ["NoSuchOption=1"]}, "cannot be reached with these options"),
        (
            {"options": ["StrictHostKeyChecking=yes", "UserKnownHostsFile=/dev/null"]},
            "has an unknown or another host key",
        ),
        ({"options": ["HostName=no-such-machine.invalid"]}, "has no address"),
        ({"port": 1}, "does not take connections of ssh"),
    ):
        site.settings = {"ssh": settings | change}
        assert words in why(), change
    assert not site.agents(HOST)


def test_files_of_a_run_on_a_released_host_are_removed_over_ssh(site: SshSite, tmp_path: Path) -> None:
    state, run_dir = site.state_dir(HOST), tmp_path / "run of h1"
    (placed,) = site.open().ensure([site.wanted(HOST)])
    assert placed.alive
    forget = HostRemains(HOST, "", str(state), str(run_dir), wipe=False)
    cache = Cache(run_dir, HOST)
    content = Content(3, "5" * 128, ("0" * 32,))
    part, _ = cache.begin(content)
    part.write_bytes(b"abc")
    cache.finish(content)
    weights = run_dir / "weights" / "v1" / "model.safetensors"
    cache.name(content, weights)
    for file in (run_dir / "copied/home/own.py", run_dir / "logs/engine-0.1.log", state / "notes of a person"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")

    assert f"On host {HOST} these are left" in site.open().clear(forget), "the agent is still alive"
    assert weights.exists()
    site.open().release([HOST])
    assert site.open().clear(forget) == ""
    assert {path.name for path in run_dir.rglob("*") if path.is_file()} == {"engine-0.1.log"}, (
        "logs are results and stay; copies are removed"
    )
    assert [path.name for path in state.iterdir()] == ["notes of a person"]
    assert site.open().clear(msgspec.structs.replace(forget, wipe=True)) == ""
    assert not (run_dir / "logs").exists()
    site.ssh["port"] = 1
    assert "does not take connections of ssh" in site.open().clear(forget)
