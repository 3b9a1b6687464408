"""Probes of programs without the unit runtime, by exec, HTTP and TCP; dependents start after them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.http.free_ports import free_ports
from agentrl.protocol.rows import IncidentRow, UnitRow
from tests.e2e.running import PYTHON, Run, running
from tests.waiting import eventually

SERVER = str(Path(__file__).parent / "programs" / "server.py")
DEAD_AFTER_S = 8.0
OFTEN = {"interval_s": 0.1, "failures": 2}
KINDS = ("exec", "http", "tcp")
READY_WHEN = {"exec": "warm", "http": "warm", "tcp": "open"}
"""The last file that makes the server of a kind ready."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A server for each kind of probe, and a unit that depends on all of them."""
    for run in running(tmp_path_factory.mktemp("probes"), f"t-{uuid.uuid4().hex[:8]}"):
        # A probe may be late on a busy machine; these tests are about the reaction to its answer. A suspect unit stays
        # suspect until its next probe.
        run.config["supervision"] |= {"suspect_after_s": 1.0, "dead_after_s": DEAD_AFTER_S}
        for kind, port in zip(KINDS, free_ports(len(KINDS)), strict=True):
            run.sidecar(kind, [PYTHON, SERVER, str(port)], **probes(kind, port))
        run.sidecar("front", ["sleep", "1000"], after=list(KINDS))
        run.sidecar("liar", ["sleep", "1000"], live={"tcp": "127.0.0.1:9", **OFTEN}, start_deadline_s=1.0)
        run.up("--no-wait")
        yield run


def probes(kind: str, port: int) -> dict[str, Any]:
    if kind == "exec":
        files = {name: f"{{run_dir}}/{name}-{{unit}}" for name in ("warm", "sick")}
        return {
            "ready": {"exec": ["test", "-e", files["warm"]], **OFTEN},
            "live": {"exec": ["sh", "-c", f"if test -e {files['sick']}; then echo unwell; exit 3; fi"], **OFTEN},
        }
    if kind == "http":
        return {
            "ready": {"http": f"http://127.0.0.1:{port}/ready", **OFTEN},
            "live": {"http": f"http://127.0.0.1:{port}/live", **OFTEN},
        }
    return {"ready": {"tcp": f"127.0.0.1:{port}", **OFTEN}, "live": {"tcp": f"127.0.0.1:{port}", **OFTEN}}


def order(run: Run, what: str, kind: str) -> Path:
    return Path(run.dir) / f"{what}-{kind}-0"


def test_unit_is_ready_after_its_probe_and_dependents_start_then(run: Run) -> None:
    for number, kind in enumerate(KINDS):
        # The port is open before the first page is ready, which is not enough for HTTP and exec.
        if READY_WHEN[kind] != "open":
            order(run, "open", kind).touch()
        assert run.wait_state(f"{kind}-0", "starting").incarnation == 1
        waiting = run.wait_state("front-0", "pending")
        assert waiting.reason == f"waits for {', '.join(KINDS[number:])} to be ready"
        chain = next(chain for chain in run.cli("why")["chains"] if chain["links"][0]["who"] == "front-0")
        assert chain["culprit"].removesuffix("-0") in KINDS[number:]
        order(run, READY_WHEN[kind], kind).touch()
        row = run.wait_state(f"{kind}-0", "ready")
        assert row.reason == "its probe says ready"
        assert row.incarnation == 1
    front = run.wait_state("front-0", "ready")
    rows = run.units()
    assert front.since_at >= max(rows[f"{kind}-0"].ready_at for kind in KINDS)
    assert front.incarnation == 1


SICK = {"exec": "exit 3: unwell", "http": "HTTP 503", "tcp": "Connection refused"}


@pytest.mark.parametrize("kind", KINDS)
def test_unit_whose_liveness_fails_is_suspect_first_and_then_replaced(run: Run, kind: str) -> None:
    before = ready(run, kind)
    sicken(run, kind)
    suspect = run.wait_state(before.unit, "suspect")
    assert suspect.reason == f"liveness probe: {SICK[kind]}"
    assert suspect.next_what == "is replaced unless well"
    assert suspect.incarnation == before.incarnation
    eventually(lambda: run.unit_row(before.unit).incarnation > before.incarnation, what="the unhealthy one to end")
    heal(run, kind)
    run.wait_incarnation(before.unit, above=before.incarnation)
    found = [row for row in run.client.events(kinds=("incident",), limit=1000) if isinstance(row, IncidentRow)]
    (incident,) = [row for row in found if row.unit == before.unit and row.incarnation == before.incarnation]
    assert "liveness probe" in incident.what
    assert run.lives_of(before.unit) == {f"{before.unit}.{run.unit_row(before.unit).incarnation}"}


@pytest.mark.parametrize("kind", KINDS)
def test_unit_that_recovers_in_time_is_kept(run: Run, kind: str) -> None:
    before = ready(run, kind)
    run.cli("tune", "supervision.dead_after_s", "60")
    try:
        sicken(run, kind)
        run.wait_state(before.unit, "suspect")
        heal(run, kind)

        def well() -> UnitRow | None:
            row = run.unit_row(before.unit)
            return row if row.reason == "is well again" else None

        assert eventually(well, what="it to be ready again").incarnation == before.incarnation
    finally:
        run.cli("tune", "supervision.dead_after_s", str(DEAD_AFTER_S))


def test_liveness_failures_count_only_after_the_start_deadline(run: Run) -> None:
    found = eventually(
        lambda: [
            row
            for row in run.client.events(kinds=("incident",), limit=1000)
            if isinstance(row, IncidentRow) and row.unit == "liar-0"
        ],
        what="an incident of the unit that never listens",
    )
    assert "liveness probe" in found[0].what


def ready(run: Run, kind: str) -> UnitRow:
    """Makes the unit ready if no earlier test has done so."""
    for what in ("open", READY_WHEN[kind]):
        order(run, what, kind).touch()
    return run.wait_state(f"{kind}-0", "ready")


def sicken(run: Run, kind: str) -> None:
    if kind == "tcp":
        order(run, "open", kind).unlink()
    else:
        order(run, "sick", kind).touch()


def heal(run: Run, kind: str) -> None:
    if kind == "tcp":
        order(run, "open", kind).touch()
    else:
        order(run, "sick", kind).unlink()
