"""Rows as text: what a unit does, how long a run is up, counted things."""

from __future__ import annotations

import msgspec

from agentrl.formatting import record_text
from agentrl.formatting.amounts import counted
from agentrl.formatting.row_text import state_since, unit_summary, uptime
from agentrl.protocol.messages import Wait
from agentrl.protocol.rows import RunRow, UnitRow, UnitState
from agentrl.protocol.specs import Rank

NOW = 1_000_000.0
STARTING = UnitRow(
    "trainer-0", "trainer", "trainer", UnitState.STARTING, reason="starting on far", since_at=NOW - 20,
    next_at=NOW + 580, next_what="is given up unless it makes progress", phase="starting", phase_since_at=NOW - 15,
    status="warm-up: step 36 of 150",
)  # fmt: skip


def at_work(phase: str, stands_s: float, status: str) -> str:
    row = UnitRow(
        "steward-0", "steward", "steward", UnitState.READY, reason="says it is ready", phase=phase,
        phase_since_at=NOW - stands_s, status=status,
    )  # fmt: skip
    return unit_summary(row, NOW)


def test_status_of_a_starting_unit_precedes_a_distant_deadline() -> None:
    assert unit_summary(STARTING, NOW) == "warm-up: step 36 of 150 · is given up unless it makes progress in 9 min"
    assert unit_summary(STARTING, NOW + 550) == "is given up unless it makes progress in 30 s · warm-up: step 36 of 150"


def test_short_phases_are_shown_without_their_age() -> None:
    assert at_work("serving", 0.4, "4 ready") == "serving · 4 ready"
    assert at_work("step", 42.0, "trains step 3") == "step for 42 s · trains step 3"


def test_cause_of_many_waits_is_named_once() -> None:
    waits = [Wait(on, f"call {number}", 1.0, 60.0) for number, on in enumerate(("engine-0", "engine-0", "toolbox-0"))]
    row = msgspec.structs.replace(STARTING, state=UnitState.READY, next_at=0.0, phase="", status="", waits=tuple(waits))
    assert unit_summary(row, NOW) == "starting on far · waits for engine-0 · waits for toolbox-0"


def test_uptime_counts_from_the_last_up() -> None:
    run = RunRow("shop", "u", "running", started_at=NOW - 7200, up_since_at=NOW - 65)
    assert uptime(run, NOW) == "65 s"
    assert uptime(RunRow("shop", "u", "running", started_at=NOW - 7200), NOW) == "2 h"
    assert uptime(RunRow("shop", "u", "stopped", desired="down", up_since_at=NOW - 65), NOW) == ""


def test_counted_one_is_singular() -> None:
    assert [counted(number, "kinds of tool errors") for number in (0, 1, 2)] == [
        "0 kinds of tool errors", "1 kind of tool errors", "2 kinds of tool errors",
    ]  # fmt: skip
    assert counted(1, "failed calls") == "1 failed call"


def test_unit_that_was_lost_meanwhile_is_ready_since_it_became_ready() -> None:
    row = msgspec.structs.replace(STARTING, ready_at=NOW - 10)
    assert state_since(row) == NOW - 20
    back = msgspec.structs.replace(row, state=UnitState.READY, reason="its host is back", since_at=NOW - 1)
    assert state_since(back) == NOW - 10
    assert state_since(msgspec.structs.replace(back, state=UnitState.LOST)) == NOW - 1


def test_decisions_about_a_record_are_sentences() -> None:
    assert record_text.decisions({"id": "r", "rescore": None, "review": None}) == []
    review = {"verdict": "golden", "who": "ada", "note": "short"}
    record = {"scores_before": [0.0, 1.0], "requeued_by": "op-1", "review": review, "rescore": {"wanted": True}}
    assert record_text.decisions(record) == [
        "scored again; before: 0, 1",
        "waits to be scored again by a sampler",
        "requeued: another attempt has its seat",
        "review: golden by ada: short",
    ]
    (kept,) = record_text.decisions({"rescore": {"wanted": False, "error": "the judge is away"}})
    assert kept == "kept its score: the judge is away"


def test_summary_of_a_rank_says_which_one_of_which_start() -> None:
    rank = Rank(epoch=3, rank=1, ranks=4, port=29500)
    row = UnitRow("train-1", "train", "sidecar", UnitState.READY, reason="started", pid=7, rank=rank)
    assert unit_summary(row, NOW) == "rank 1 of 4, epoch 3 · started"
    ended = msgspec.structs.replace(row, state=UnitState.PENDING, pid=0, reason="waits for its gang")
    assert unit_summary(ended, NOW) == "waits for its gang"
