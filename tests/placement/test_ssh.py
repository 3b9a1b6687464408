"""Failures of a start over a real sshd are one sentence each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.placement import State
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
