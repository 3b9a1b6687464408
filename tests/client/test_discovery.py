"""Discovery finds the coordinator of a run, and never chooses between several."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from pathlib import Path

import pytest

from agentrl.client import Client, ClientKey, find, new_keypair
from agentrl.client.discovery import forget_dead, hint_of, refuse_if_dead
from agentrl.config import paths
from agentrl.errors import AgentrlError, ConfigError, NoCoordinatorError, UnknownNameError, UsageError
from tests.waiting import PATIENCE_S


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a user with no runs."""
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path))
    for name in ("AGENTRL_KEY", "AGENTRL_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return {"AGENTRL_HOME": str(tmp_path)}


def make_run(name: str, *, up: bool = True, alive: bool = False) -> Path:
    paths.create_run(name, Path("/tmp/nowhere"))
    state = paths.state_dir(name)
    if up:
        stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        body = {
            "pid": os.getpid() if alive else 2**22 + 1,
            "start_ticks": int(stat[19]),
            "address": f"ipc:///run/{name}/hub",
            "feed": f"ipc:///run/{name}/feed",
            "metrics": f"ipc:///run/{name}/metrics",
            "host": "here",
        }
        (state / "coordinator.json").write_text(json.dumps(body))
    return state


def make_key(path: Path) -> ClientKey:
    pair = new_keypair()
    key = ClientKey("anna", pair.public, pair.secret, new_keypair().public, "tcp://h:1", "tcp://f:9", "tcp://m:8")
    key.save(path)
    return key


def test_run_is_found_by_name(env: dict[str, str]) -> None:
    make_run("other")
    state = make_run("mine")
    found = find("mine", environ=env)
    assert (found.what, found.address, found.feed) == ("mine", "ipc:///run/mine/hub", "ipc:///run/mine/feed")
    run = paths.read_run(state)
    assert run is not None
    assert found.run == run.uuid


def test_only_run_that_is_up_is_found(env: dict[str, str]) -> None:
    make_run("down", up=False)
    make_run("mine")
    assert find(environ=env).what == "mine"


def test_only_living_run_of_several_is_found(env: dict[str, str]) -> None:
    make_run("killed")
    make_run("mine", alive=True)
    assert find(environ=env).what == "mine"


@pytest.mark.parametrize("alive", [False, True])
def test_several_runs_are_named_in_the_error(env: dict[str, str], alive: bool) -> None:
    make_run("one", alive=alive)
    make_run("two", alive=alive)
    with pytest.raises(UsageError, match="one, two") as unclear:
        find(environ=env)
    assert "--run" in unclear.value.hint


def test_error_if_no_run_is_up(env: dict[str, str]) -> None:
    with pytest.raises(NoCoordinatorError, match="No run is up") as none:
        find(environ=env)
    assert "agentrl up" in none.value.hint
    assert env["AGENTRL_HOME"] in none.value.message
    make_run("mine", up=False)
    with pytest.raises(NoCoordinatorError, match="No run is up") as none:
        find(environ=env)
    assert none.value.hint.startswith("Down: mine. ")
    with pytest.raises(NoCoordinatorError, match="The run mine is not up"):
        find("mine", environ=env)


def test_unknown_run_names_the_known_ones(env: dict[str, str]) -> None:
    make_run("mine")
    with pytest.raises(UnknownNameError, match="no run named yours") as unknown:
        find("yours", environ=env)
    assert "mine" in unknown.value.hint
    assert env["AGENTRL_HOME"] in unknown.value.message


def test_key_file_has_the_address_of_its_coordinator(env: dict[str, str], tmp_path: Path) -> None:
    key = make_key(tmp_path / "anna.json")
    make_run("mine")
    for found in (
        find(key_file=tmp_path / "anna.json", environ=env),
        find(environ={**env, "AGENTRL_KEY": str(tmp_path / "anna.json")}),
    ):
        assert (found.address, found.feed, found.metrics, found.key) == ("tcp://h:1", "tcp://f:9", "tcp://m:8", key)
    named = find("mine", environ={**env, "AGENTRL_KEY": str(tmp_path / "anna.json")})
    assert named.key is None, "a named run of this host takes precedence over the key file"


def test_addresses_of_feed_and_metrics_follow_from_the_address(env: dict[str, str]) -> None:
    assert find(address="ipc:///x/hub", environ=env).feed == "ipc:///x/feed"
    found = find(address="tcp://h:7600", environ=env)
    assert (found.feed, found.metrics) == ("tcp://h:7601", "tcp://h:7602")
    with pytest.raises(ConfigError):
        find(address="tcp://h", environ=env)


def test_unit_finds_its_own_run(env: dict[str, str]) -> None:
    make_run("other", alive=True)
    state = make_run("mine")
    assert find(environ={**env, "AGENTRL_STATE_DIR": str(state)}).what == "mine"
    assert find(state_dir=state, environ=env).what == "mine"


async def test_dead_run_is_refused_without_waiting(env: dict[str, str]) -> None:
    make_run("mine")
    with pytest.raises(NoCoordinatorError, match=r"of mine is dead, and so is the host agent .* agentrl up"):
        async with asyncio.timeout(PATIENCE_S), Client.connect("mine", timeout_s=1000):
            pass


def test_address_of_a_dead_coordinator_is_removed_and_of_a_living_one_kept(env: dict[str, str]) -> None:
    for alive in (True, False):
        state = make_run(f"is-{alive}".lower(), alive=alive)
        forget_dead(state, str(uuid.uuid4()))
        assert (state / "coordinator.json").exists() == alive


async def test_client_waits_for_a_coordinator_that_a_host_agent_restarts(env: dict[str, str]) -> None:
    state = make_run("mine")
    agent = state / "hosts" / "here" / "agent.json"
    agent.parent.mkdir(parents=True)
    agent.write_text(json.dumps({"pid": os.getpid()}))
    with pytest.raises(NoCoordinatorError, match=r"does not answer within 0.1 s"):
        async with Client.connect("mine", timeout_s=0.1):
            pass


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"address": 1}', b"\xff\xff"])
def test_damaged_file_is_named_in_the_error(env: dict[str, str], body: bytes) -> None:
    state = make_run("mine")
    (state / "coordinator.json").write_bytes(body)
    for run in ("mine", None):
        with pytest.raises(AgentrlError, match=r"coordinator\.json is damaged"):
            find(run, environ=env)


@pytest.mark.parametrize(
    ("there", "hint"),
    [
        ("agent", "just beginning, or coming to its end"),
        ("coordinator", "no host agent watches over it"),
        ("", "agentrl up starts it"),
        ("both", "replaces a coordinator that is silent"),
    ],
)
def test_run_that_is_ending_is_not_reported_as_a_failure(env: dict[str, str], there: str, hint: str) -> None:
    state = make_run("mine", up=there in ("coordinator", "both"), alive=True)
    if there in ("agent", "both"):
        agent = state / "hosts" / "here" / "agent.json"
        agent.parent.mkdir(parents=True)
        agent.write_text(json.dumps({"pid": os.getpid()}))
    assert hint in hint_of(state)
    assert ("units that run" in hint_of(state)) is (there == "coordinator")


def test_run_taken_down_after_it_was_found_is_reported_as_down(env: dict[str, str]) -> None:
    state = make_run("mine")
    found = find("mine", environ=env)
    (state / "coordinator.json").unlink()
    with pytest.raises(NoCoordinatorError, match="was taken down just now"):
        refuse_if_dead(found)
