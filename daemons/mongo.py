"""Runs the embedded MongoDB server as a unit of the role `mongo`: `python -m daemons.mongo`.

Invariants:
- The unit lives exactly as long as its mongod.
- The unit is ready when a writable primary accepts the login.
- Only the database of the run is served; missing or other data is an error.
- A mongod that does not answer is a problem of the unit, and after a minute its end.
- A drain shuts mongod down cleanly.
- While the disk has no room, the unit waits and reports it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.store import database_identity
from agentrl.store.mongod_binary import find_mongod, mongod_version
from agentrl.store.mongod_files import MongoFiles, prepare
from agentrl.store.mongod_server import Mongod, ServerDiedError, missing_space, wait_until_data_is_free
from agentrl.unit import Unit, run_unit

FORMER_SERVER_ENDS_WITHIN_S = 60.0
RECOVERY_AT_MOST_S = 600.0
"""After a kill the server reads its journal before it answers."""
SHUTDOWN_WITHIN_S = 60.0
CHECK_EVERY_S = 0.5
PING_EVERY_S = 5.0
REPORTED_AFTER_S = 10.0
UNANSWERED_AT_MOST_S = 60.0
"""A loaded machine may keep it silent for seconds; without a database nothing of the run goes on."""
SPACE_AT_MOST_S = 3600.0
"""A longer wait is reported as late, and the unit continues to wait."""


def main(unit: Unit, state_dir: Path | None) -> None:
    binary = find_mongod()
    state_dir = _known(state_dir or unit.state_dir)
    files = prepare(state_dir / "mongo")
    unit.status("waiting until the data is free")
    with unit.phase("data in use", at_most_s=FORMER_SERVER_ENDS_WITHIN_S + 10):
        if not wait_until_data_is_free(files, within_s=FORMER_SERVER_ENDS_WITHIN_S, keep_trying=unit.sleep):
            return
    if not _wait_for_space(unit, files):
        return
    exists = database_identity.check(state_dir, files)
    server = Mongod(binary, files, may_create=not exists)
    try:
        server.start()
        unit.status(f"mongod {mongod_version(binary)} is starting")
        with unit.phase("starting", at_most_s=RECOVERY_AT_MOST_S):
            up = server.bring_up(keep_trying=unit.sleep)
        if up:
            database_identity.record(state_dir, files)
            _serve(unit, server, files)
    finally:
        _shut_down(unit, server)


def _wait_for_space(unit: Unit, files: MongoFiles) -> bool:
    """Wait until the disk has room; returns False if the unit was drained before."""
    if not missing_space(files):
        return True
    with (
        unit.phase("no room on the disk", at_most_s=CHECK_EVERY_S + 60),
        unit.wait(f"room on the disk of {files.root}", on="a person who makes room", at_most_s=SPACE_AT_MOST_S),
    ):
        while lack := missing_space(files):
            unit.status(f"does not start: {lack}")
            if not unit.sleep(CHECK_EVERY_S):
                return False
            unit.tick()
    return True


def _serve(unit: Unit, server: Mongod, files: MongoFiles) -> None:
    unit.ready()
    unit.status(f"mongod pid {server.pid} serves on 127.0.0.1:{files.port}")
    answered_at = asked_at = time.monotonic()
    while unit.sleep(CHECK_EVERY_S):
        server.check()
        server.rotate_log()
        if time.monotonic() - asked_at >= PING_EVERY_S:
            silence, asked_at = server.unanswered(), time.monotonic()
            answered_at = answered_at if silence else asked_at
            _report_silence(unit, server, silence, asked_at - answered_at)
        unit.tick()


def _report_silence(unit: Unit, server: Mongod, silence: str, silent_s: float) -> None:
    """Report a server that does not answer. Raises ServerDiedError if it has not answered for too long."""
    if silence:
        print(f"mongod pid {server.pid} has not answered for {silent_s:.0f} s: {silence}", file=sys.stderr, flush=True)
    if silent_s > UNANSWERED_AT_MOST_S:
        raise ServerDiedError(f"mongod pid {server.pid} did not answer for {silent_s:.0f} s: {silence}")
    unit.problem(f"mongod pid {server.pid}", silence if silent_s >= REPORTED_AFTER_S else "")


def _shut_down(unit: Unit, server: Mongod) -> None:
    unit.status("shutting down")
    unit.extend_stop(SHUTDOWN_WITHIN_S + 5)
    with unit.phase("shutting down", at_most_s=SHUTDOWN_WITHIN_S + 5):
        if not server.stop(within_s=SHUTDOWN_WITHIN_S):
            print(f"mongod did not end within {SHUTDOWN_WITHIN_S:g} s and was killed", file=sys.stderr, flush=True)


def _known(state_dir: Path | None) -> Path:
    if state_dir is None:
        raise ConfigError("The directory of the data is unknown.", hint="Set --state-dir, or start the run with `up`.")
    return state_dir


def _given() -> Path | None:
    parser = argparse.ArgumentParser(prog="agentrl daemon mongo", description="MongoDB as a unit of a run.")
    parser.add_argument("--state-dir", type=Path, help="default: $AGENTRL_STATE_DIR")
    state_dir: Path | None = parser.parse_args().state_dir
    return state_dir


if __name__ == "__main__":
    # Parsed before it becomes a unit, because help and wrong arguments belong on the terminal.
    given = _given()
    run_unit(lambda unit: main(unit, given))
