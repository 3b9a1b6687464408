"""A machine has one name in a run, whatever its hostname is or becomes."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentrl.config.this_host import HOST_NAME, default_name, this_host
from agentrl.errors import ConfigError

HOSTNAMES = {
    "node7": "node7",
    "node7.cluster.example.org": "node7",
    "10.0.0.7": "10",
    ".hidden": "local",
    "-dash": "dash",
    "Größe": "Gr--e",
    "n" * 64: "n" * 64,
    "": "local",
}


def named(monkeypatch: pytest.MonkeyPatch, hostname: str) -> None:
    monkeypatch.delenv("AGENTRL_HOST_NAME", raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: hostname)


@pytest.mark.parametrize("hostname", HOSTNAMES)
def test_any_hostname_gives_a_name(hostname: str, monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, hostname)
    assert default_name() == HOSTNAMES[hostname]
    assert HOST_NAME.fullmatch(default_name())
    assert default_name({"AGENTRL_HOST_NAME": "gpu.1"}) == "gpu.1"


def test_name_and_key_stay_when_the_hostname_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, "before.example.org")
    first = this_host(tmp_path)
    named(monkeypatch, "after")
    assert this_host(tmp_path) == this_host(tmp_path, "wanted") == first
    assert first.name == "before"
    assert (tmp_path / "host.json").stat().st_mode & 0o777 == 0o600
    assert first.key not in repr(first)


def test_concurrent_first_starts_choose_one_identity(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda number: this_host(tmp_path, f"h{number}"), range(8)))
    assert len(found) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["host.json"]


def test_ledger_of_an_earlier_version_is_found_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "hosts" / "former-name").mkdir(parents=True)
    assert this_host(tmp_path).name == "former-name"


def test_impossible_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a name of a host"):
        this_host(tmp_path, "../etc")
    assert not list(tmp_path.iterdir())
