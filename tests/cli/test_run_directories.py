"""A run directory belongs to one run at a time; a second run is refused and gets the name of the first."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from agentrl.cli.start_coordinator import Place, refuse_if_in_use
from agentrl.client.run_processes import boot_id, start_ticks
from agentrl.config import paths
from agentrl.config.run_marker import WRITTEN_EVERY_S
from agentrl.errors import ConflictError, ExitCode
from tests.e2e.running import running

STALE_S = 3600.0


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A run whose directory is also that of another run, `theirs`."""
    monkeypatch.setenv("AGENTRL_HOME", str(tmp_path / "home"))
    (tmp_path / "run").mkdir()
    for name in ("mine", "theirs"):
        paths.create_run(name, tmp_path / "run")
    return Place("mine", paths.state_dir("mine"), tmp_path / "run")


def sign(place: Place, name: str, *, age_s: float = 1.0, boot: str = "") -> None:
    run = paths.read_run(paths.state_dir(name))
    assert run is not None
    who = {"host": "far", "boot_id": boot or boot_id(), "name": name, "uuid": run.uuid}
    (place.run_dir / "coordinator.json").write_text(json.dumps({**who, "heartbeat_at": time.time() - age_s}))


def test_another_run_of_this_host_that_is_up_is_named(mine: Place) -> None:
    sign(mine, "theirs")
    with pytest.raises(ConflictError, match="in use by another run of this host, theirs") as refused:
        refuse_if_in_use(mine)
    assert refused.value.exit_code == ExitCode.CONFLICT
    assert "agentrl down --run theirs" in refused.value.hint


def test_stale_sign_is_ignored_only_if_its_run_is_down(mine: Place) -> None:
    sign(mine, "theirs", age_s=STALE_S)
    refuse_if_in_use(mine)
    who = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "boot_id": boot_id()}
    (paths.state_dir("theirs") / "coordinator.json").write_text(json.dumps(who))
    with pytest.raises(ConflictError, match="theirs"):
        refuse_if_in_use(mine)


def test_runs_own_sign_or_no_sign_is_accepted(mine: Place) -> None:
    refuse_if_in_use(mine)
    sign(mine, "mine")
    refuse_if_in_use(mine)


@pytest.mark.parametrize("age_s", [1.0, -5000.0])
def test_fresh_or_future_sign_of_another_host_is_refused(
    mine: Place, age_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.config.run_marker.WATCHED_S", 0.1)
    sign(mine, "mine", age_s=age_s, boot="boot-far")
    with pytest.raises(ConflictError, match="up on host far"):
        refuse_if_in_use(mine)
    sign(mine, "mine", age_s=STALE_S, boot="boot-far")
    refuse_if_in_use(mine)


def test_old_sign_that_is_renewed_belongs_to_a_living_host_with_a_slow_clock(mine: Place) -> None:
    sign(mine, "mine", age_s=STALE_S, boot="boot-far")
    writing = threading.Timer(WRITTEN_EVERY_S / 4, sign, (mine, "mine"), {"age_s": STALE_S - 1, "boot": "boot-far"})
    writing.start()
    try:
        with pytest.raises(ConflictError, match="up on host far"):
            refuse_if_in_use(mine)
    finally:
        writing.join()


def test_up_refuses_the_directory_of_a_run_that_is_up(tmp_path: Path) -> None:
    for first in running(tmp_path, "first"):
        first.sidecar("web", ["sleep", "1000"])
        first.up()
        for second in running(tmp_path, "second"):
            second.dir = first.dir
            second.config["dir"] = str(first.dir)
            second.write()
            code, document = second.cli("up", str(second.file), check=False)
            assert code == ExitCode.CONFLICT
            assert "another run of this host, first" in document["error"]["message"]
            assert not second.state_dir.exists(), "nothing was begun"
