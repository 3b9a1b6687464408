"""With a port that another program uses, `up` is refused and a restarted coordinator works without the port."""

from __future__ import annotations

import json
import signal
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agentrl.client.run_processes import keepers_of
from agentrl.errors import ExitCode
from agentrl.transport.addresses import why_not_free
from tests.e2e.running import Run, running
from tests.ports import free_triplet
from tests.waiting import eventually


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    for run in running(tmp_path_factory.mktemp("ports"), f"t-{uuid.uuid4().hex[:8]}"):
        run.sidecar("web", ["sleep", "1000"])
        run.up()
        yield run


def other_program_at(port: int) -> socket.socket:
    other = socket.socket()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    other.bind(("127.0.0.1", port))
    other.listen()
    return other


def listens_at(run: Run) -> str:
    return str(msgspec.json.decode((run.state_dir / "coordinator.json").read_bytes())["listen"])


def listening(run: Run) -> str:
    """The address at which the run listens; the first call makes it listen."""
    if not run.config.get("coordinator"):
        run.config["coordinator"] = {"listen": f"tcp://127.0.0.1:{free_triplet()}"}
        run.up()
    return listens_at(run)


def test_up_with_a_taken_port_is_refused_and_changes_nothing(alone: Run) -> None:
    port, pid = free_triplet(), alone.coordinator_pid()
    before = alone.unit_row("web-0")
    alone.config["coordinator"] = {"listen": f"tcp://127.0.0.1:{port}"}
    alone.sidecar("more", ["sleep", "1000"])
    alone.write()
    with other_program_at(port + 1):
        code, answer = alone.cli("up", str(alone.file), check=False)
    assert code == ExitCode.CONFIG
    assert f"tcp://127.0.0.1:{port + 1}" in answer["error"]["message"]
    assert (alone.coordinator_pid(), alone.unit_row("web-0").pid) == (pid, before.pid)
    assert set(alone.units()) == {"web-0"}

    alone.up()
    assert listens_at(alone) == alone.config["coordinator"]["listen"]
    assert set(alone.units()) == {"web-0", "more-0"}


@pytest.mark.parametrize("options", [("--json",), ("--yes",)])
def test_refused_first_up_leaves_no_process_behind(tmp_path: Path, options: tuple[str, ...]) -> None:
    for run in running(tmp_path, f"t-{uuid.uuid4().hex[:8]}"):
        port = free_triplet()
        run.config["coordinator"] = {"listen": f"tcp://127.0.0.1:{port}"}
        run.sidecar("web", ["sleep", "1000"])
        run.write()
        with other_program_at(port):
            refused = run.raw("up", str(run.file), *options)
        if "--json" in options:
            assert json.loads(refused.stdout)["error"]["name"] == "config"
        assert refused.returncode == ExitCode.CONFIG, refused.stderr
        assert "Nothing was started or changed." in refused.stderr
        assert not run.processes()
        assert not keepers_of(run.state_dir)
        assert run.cli("runs") == [], "a run that was never accepted is not listed"
        assert not run.dir.exists()


def test_existing_run_stays_when_its_next_up_is_refused(tmp_path: Path) -> None:
    for run in running(tmp_path, f"t-{uuid.uuid4().hex[:8]}"):
        run.sidecar("web", ["sleep", "1000"])
        run.up()
        run.cli("down")
        run.config["coordinator"] = {"listen": f"tcp://127.0.0.1:{(port := free_triplet())}"}
        run.write()
        with other_program_at(port):
            refused = run.raw("up", str(run.file))
        assert refused.returncode == ExitCode.CONFIG, refused.stderr
        assert [row["name"] for row in run.cli("runs")] == [run.name]
        assert run.cli("events"), "its journal is still there"


def test_refused_up_after_coordinator_and_agent_died_leaves_units_to_the_new_ones(alone: Run) -> None:
    web = alone.unit_row("web-0").pid
    as_it_is = alone.config.get("coordinator", {})
    alone.kill_agent_and_coordinator()
    alone.config["coordinator"] = {"listen": f"tcp://127.0.0.1:{(port := free_triplet())}"}
    alone.write()
    with other_program_at(port):
        refused = alone.raw("up", str(alone.file))
    alone.config["coordinator"] = as_it_is
    assert refused.returncode == ExitCode.CONFIG, refused.stderr
    assert "are up again; nothing else" in refused.stderr
    assert alone.unit_row("web-0").pid == web


def test_coordinator_whose_port_is_taken_works_locally_and_tries_again(alone: Run) -> None:
    listen, agent, before = listening(alone), alone.agent_pid(), alone.coordinator_pid()
    web = alone.unit_row("web-0").pid
    alone.kill(agent, signal.SIGSTOP)
    alone.kill(before)
    port = int(listen.rpartition(":")[2])
    eventually(lambda: not why_not_free(f"tcp://127.0.0.1:{port}"), what="the port of the dead process to be free")
    with other_program_at(port):
        alone.kill(agent, signal.SIGCONT)
        eventually(lambda: alone.run_row().coordinator_pid not in (0, before), what="the next coordinator")
        eventually(lambda: firing(alone) == ["not-listening"], what="the alert")
        assert alone.unit_row("web-0").pid == web
        assert listens_at(alone) == ""
    eventually(lambda: listens_at(alone) == listen, what="it to listen")
    eventually(lambda: not firing(alone), what="the alert to end")


def firing(run: Run) -> list[str]:
    return [alert["rule"] for alert in run.cli("alerts", "list")]


def test_ports_are_released_when_the_run_file_has_no_listen(alone: Run) -> None:
    listen = listening(alone)
    assert why_not_free(listen)
    alone.config["coordinator"] = {}
    alone.up()
    eventually(lambda: not why_not_free(listen), what="the port to be free")
    eventually(lambda: listens_at(alone) == "", what="the address to be removed")
