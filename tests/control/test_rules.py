"""The built-in rules: each fires when it should, with evidence and a command, and a healthy run raises no alert."""

from __future__ import annotations

import random
import re
import time
from dataclasses import replace as replace_snapshot

import pytest
from msgspec.structs import replace

from agentrl.config.alerts import BUILT_IN_RULES, Rule
from agentrl.control.alerts.alert_states import AlertEngine, Notification
from agentrl.control.alerts.builtin_rules import default_rules
from agentrl.control.alerts.data_rules import DATA_RULES
from agentrl.control.alerts.learning_rules import LEARNING_RULES
from agentrl.control.alerts.reward_rules import REWARD_RULES
from agentrl.control.alerts.rule_types import RunSnapshot, declared_rule, metrics_read
from agentrl.control.alerts.tool_rules import TOOL_RULES
from agentrl.control.state.unit_metrics import MetricStore
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.messages import ExitStatus, HostFacts, ProcessInfo, RepeatedError, Wait
from agentrl.protocol.rows import AlertRow, HostRow, IncidentRow, RunRow, Severity, UnitRow, UnitState
from agentrl.supervision.wait_chains import UnitFacts, explain

AT = 1_700_000_000.0
GIB = 1 << 30
MIB = 1 << 20


def unit(name: str = "web-0", state: UnitState = UnitState.READY, **more: object) -> UnitRow:
    # type: ignore[arg-type]
    return UnitRow(name, name.rpartition("-")[0], "sidecar", state, host="a", incarnation=1, ready_at=AT, **more)


def host(**more: object) -> HostRow:
    facts = HostFacts(memory_bytes=64 * GIB)
    return replace(HostRow("a", "up", facts=facts, units=3, disk_free_bytes=100 * GIB), **more)


def snapshot(
    *units: UnitRow, on: HostRow | None = None, metrics: MetricStore | None = None, **more: object
) -> RunSnapshot:
    on = on or host()
    run = RunRow("my-run", "uuid", "running", **more)  # type: ignore[arg-type]
    return RunSnapshot(run, {one.unit: one for one in units}, {on.host: on}, (), metrics or MetricStore())


def firing(of: RunSnapshot, for_s: float = 120.0) -> list[AlertRow]:
    """The alerts that fire while nothing changes."""
    engine = AlertEngine(default_rules())
    engine.evaluate(of, 0.0, AT)
    engine.evaluate(of, for_s, AT + for_s)
    return engine.rows()


def dead(**more: object) -> dict[str, object]:
    return {"last_exit": ExitStatus(signal=9), "restarts": 4, **more}


CASES: dict[str, tuple[RunSnapshot, Severity, str, str]] = {
    "unit-fatal:web-0": (
        snapshot(unit(state=UnitState.FATAL, reason="6 deaths in 300 s", **dead())),
        Severity.PAGE,
        "signal 9",
        "agentrl logs web-0",
    ),
    "unit-fatal:lost-0": (
        snapshot(unit("lost-0", state=UnitState.FATAL, reason="cannot be started: there is no program lost")),
        Severity.PAGE,
        "agentrl restart lost-0",
        "agentrl config check --run my-run",
    ),
    "unit-fatal:port-0": (
        replace_snapshot(
            snapshot(unit("port-0", state=UnitState.FATAL, reason="never came up, 6 times in a row", **dead())),
            incidents={
                "port-0.1": IncidentRow("port-0.1", "port-0", 1, AT, "port-0.1 died", tail=("it begins", "in use", " "))
            },
        ),
        Severity.PAGE,
        "last line of its log: in use",
        "agentrl logs port-0",
    ),
    "unit-restarting:web-0": (
        snapshot(unit(**dead(deaths_in_window=3))),
        Severity.WARNING,
        "3 in the restart window",
        "agentrl logs web-0 --previous",
    ),
    "unit-never-ready:web-0": (
        snapshot(replace(unit(state=UnitState.STARTING, **dead()), ready_at=0.0, attempts=3)),
        Severity.WARNING,
        "starting",
        "agentrl logs web-0 --previous",
    ),
    "unit-lost:web-0": (
        snapshot(unit(state=UnitState.LOST, reason="its host is silent", pid=77)),
        Severity.WARNING,
        "pid 77: its host is silent",
        "agentrl stop web-0 --force",
    ),
    "unit-hung:web-0": (
        snapshot(unit(state=UnitState.SUSPECT, reason="silent for 9 s", phase="step")),
        Severity.WARNING,
        "phase step",
        "agentrl stacks",
    ),
    "unit-pending:web-0": (
        snapshot(unit(state=UnitState.PENDING, reason="no host has 4 GPUs")),
        Severity.WARNING,
        "no host has 4 GPUs",
        "agentrl why",
    ),
    "unit-problem:web-0/tool-server-search": (
        snapshot(unit(problems={"tool server search": "it exited with 1: ImportError: no x"})),
        Severity.PAGE,
        "web-0 reports it.",
        "agentrl logs web-0",
    ),
    "host-lost:a": (snapshot(on=host(state="lost")), Severity.PAGE, "no other host", "agentrl doctor"),
    "host-disk-low:a": (
        snapshot(on=host(disk_free_bytes=GIB)),
        Severity.WARNING,
        "alert below 2 GiB",
        "agentrl doctor",
    ),
    "host-disk-fills:a": (
        snapshot(on=host(disk_free_bytes=90 * GIB, disk_full_in_s=22_000.0)),
        Severity.WARNING,
        "90 GiB free",
        "agentrl doctor",
    ),
    "host-cannot-write:a": (
        snapshot(on=host(disk_full="logs cannot be written")),
        Severity.PAGE,
        "logs cannot be written",
        "agentrl doctor",
    ),
    "host-strays:a": (
        snapshot(on=host(strays=(ProcessInfo(5, "sleep 9", why="mark"),))),
        Severity.WARNING,
        "pid 5 sleep 9 (mark)",
        "agentrl events --kind incident",
    ),
    "host-clock:a": (
        snapshot(on=host(clock_off_s=-600.0)),
        Severity.WARNING,
        "No lease",
        "agentrl hosts show a",
    ),
    "journal-full:my-run": (
        snapshot(journal_full="the disk is full"),
        Severity.PAGE,
        "the disk is full",
        "agentrl doctor",
    ),
    "not-recording:my-run": (
        snapshot(not_recording="Nothing is recorded: No space left on device."),
        Severity.WARNING,
        "No space left",
        "agentrl doctor",
    ),
    "not-exporting:my-run": (
        snapshot(not_exporting="Nothing can listen on tcp://127.0.0.1:9464: it is already in use."),
        Severity.WARNING,
        "already in use",
        "agentrl doctor",
    ),
    "not-listening:my-run": (
        snapshot(not_listening="Nothing can listen on tcp://0.0.0.0:7400: Address already in use."),
        Severity.WARNING,
        "already in use",
        "agentrl doctor",
    ),
}


@pytest.mark.parametrize("id", CASES)
def test_each_rule_fires_with_evidence_and_a_command(id: str) -> None:
    sick, severity, evidence, suggest = CASES[id]
    (row,) = firing(sick)
    assert (row.id, row.severity, row.suggest) == (id, severity, suggest)
    assert any(evidence in line for line in row.evidence), row.evidence
    assert row.subject.partition("/")[0] in row.sentence or row.rule == "journal-full"


def test_error_that_many_logs_repeat_is_one_alert_with_count_first_and_last() -> None:
    def repeats(name: str, count: int, first_at: float) -> UnitRow:
        text = f"LimiterGone: worker {count} has no rate limiter"
        return unit(name, repeated_errors=(RepeatedError(text, count, first_at, AT + count),))

    (row,) = firing(snapshot(repeats("web-0", 40, AT), repeats("web-1", 60, AT - 90), unit("web-2")))
    assert row.sentence == "An error is in the logs of 2 units 100 times: LimiterGone: worker 60 has no rate limiter."
    first, last = (time.strftime("%H:%M:%S", time.localtime(at)) for at in (AT - 90, AT + 60))
    assert row.evidence[:3] == (f"the first at {first}, the last at {last}", "web-1: 60 times", "web-0: 40 times")
    assert row.suggest == "agentrl logs web-1 --grep LimiterGone"


def test_lost_host_beside_another_can_be_drained() -> None:
    lost, well = unit("web-0", UnitState.LOST, reason="silent"), unit("web-1")
    sick = snapshot(lost, well, replace(unit("web-2", UnitState.LOST), host="b"), on=host(state="lost"))
    beside = replace(host(), host="b")
    rows = firing(replace_snapshot(sick, hosts={**sick.hosts, "b": beside}))
    row = next(row for row in rows if row.rule == "host-lost")
    assert "1 of 2 units there are lost" in row.sentence
    assert row.suggest == "agentrl drain --host a"
    assert [(row.id, row.cause) for row in rows] == [
        ("host-lost:a", ""),
        ("unit-lost:web-0", "host-lost:a"),
        ("unit-lost:web-2", ""),
    ]


def test_alert_about_a_fatal_unit_ends_at_once() -> None:
    engine = AlertEngine(default_rules())
    engine.evaluate(snapshot(unit(state=UnitState.FATAL)), 0.0, AT)
    engine.evaluate(snapshot(unit(state=UnitState.FATAL)), 1.0, AT + 1)
    assert [row.state for row in engine.rows()] == ["firing"]
    outcome = engine.evaluate(snapshot(unit(state=UnitState.STARTING)), 2.0, AT + 2)
    assert engine.rows() == []
    assert [note.what for note in outcome.notify] == ["resolved"]


def test_every_cure_is_a_real_command() -> None:
    verbs = {spec.cli.split()[0] for spec in COMMANDS.values()} | {"doctor", "config"}
    for _, _, _, suggest in CASES.values():
        program, verb, *_ = suggest.split()
        assert program == "agentrl"
        assert verb in verbs


def test_every_built_in_rule_has_a_case() -> None:
    # Other files of this directory have the rules of these names and tables.
    tested = {id.partition(":")[0] for id in CASES} | {"unit-memory-grows", "no-progress", "no-step", "errors-repeat"}
    elsewhere = {rule.name for rule in (*DATA_RULES, *TOOL_RULES, *LEARNING_RULES, *REWARD_RULES)}
    assert {rule.name for rule in default_rules()} == tested | elsewhere


@pytest.mark.parametrize("state", [UnitState.FATAL, UnitState.SUSPECT, UnitState.PENDING])
@pytest.mark.parametrize("reason", ["it said no", "It said no."])
def test_reason_gets_no_second_full_stop(state: UnitState, reason: str) -> None:
    (row,) = firing(snapshot(unit(state=state, reason=reason)))
    assert row.sentence.endswith(" said no.")


def test_configuration_has_the_names_of_the_built_in_rules() -> None:
    assert tuple(rule.name for rule in default_rules()) == BUILT_IN_RULES


def test_rule_can_be_disabled() -> None:
    assert "unit-fatal" not in {rule.name for rule in default_rules(disable=("unit-fatal",))}


@pytest.mark.parametrize(
    "well",
    [
        snapshot(unit(state=UnitState.PENDING, reason="paused", paused=True)),
        snapshot(replace(unit(state=UnitState.PENDING), desired=False)),
        snapshot(unit(state=UnitState.STOPPED)),
        snapshot(unit(deaths_in_window=2)),
        snapshot(unit(incomplete="it serves no version yet")),
        snapshot(replace(unit(deaths_in_window=3), desired=False)),
        snapshot(replace(unit(state=UnitState.STARTING), ready_at=0.0, incarnation=9, attempts=1)),
        snapshot(on=host(disk_free_bytes=0)),
        snapshot(replace(unit(state=UnitState.STARTING), ready_at=0.0)),
    ],
)
def test_normal_states_raise_no_alert(well: RunSnapshot) -> None:
    assert firing(well) == []


def test_short_suspect_and_pending_states_raise_no_alert() -> None:
    for state in (UnitState.SUSPECT, UnitState.PENDING):
        assert firing(snapshot(unit(state=state)), for_s=15.0) == []


def test_disk_that_is_full_soon_pages_with_the_time_of_day() -> None:
    (row,) = firing(snapshot(on=host(disk_full_in_s=3600.0)))
    assert row.severity is Severity.PAGE
    assert re.search(r"will be full at \d\d:\d\d, in 60 min,", row.sentence)
    assert firing(snapshot(on=host(disk_full_in_s=3 * 86_400.0))) == []


def test_disk_that_varies_around_the_threshold_is_one_alert() -> None:
    engine = AlertEngine(default_rules())
    notes: list[Notification] = []
    for step in range(400):
        free = int((1.9 if step % 2 else 2.1) * GIB) if step > 2 else GIB
        notes += engine.evaluate(snapshot(on=host(disk_free_bytes=free)), step * 20.0, AT + step).notify
    assert [note.what for note in notes] == ["firing"]
    for step in range(400, 403):
        notes += engine.evaluate(snapshot(on=host(disk_free_bytes=4 * GIB)), step * 20.0, AT + step).notify
    assert [note.what for note in notes] == ["firing", "resolved"]


# ---- waits ----


def test_overdue_wait_shows_its_chain() -> None:
    facts = {
        "trainer-0": UnitFacts("trainer-0", "trainer", UnitState.READY, waits=(Wait("judge-0", age_s=312.0),)),
        "judge-0": UnitFacts("judge-0", "judge", UnitState.READY),
    }
    stuck = RunSnapshot(RunRow("my-run", "u", "running"), chains=explain(facts))
    (row,) = firing(stuck)
    assert row.id == "no-progress:judge-0"
    assert row.evidence[0] == "trainer-0 ← judge-0, 312 s: judge-0 is at work"
    assert row.suggest == "agentrl why"
    assert firing(stuck, for_s=10.0) == [], "a unit just past its deadline is about to be ended"
    young = RunSnapshot(RunRow("my-run", "u", "running"), chains=explain(facts, no_progress_s=400.0))
    assert firing(young) == []


def test_units_that_wait_for_a_slow_start_raise_no_alert() -> None:
    """On a very slow machine every deadline is still in the future."""
    facts = {
        "sampler-0": UnitFacts("sampler-0", "sampler", UnitState.PENDING, age_s=400.0, after=("steward",)),
        "steward-0": UnitFacts("steward-0", "steward", UnitState.STARTING, age_s=390.0, reason="starting on a"),
    }
    pending = unit("sampler-0", UnitState.PENDING, reason="waits for steward to be ready")
    slow = snapshot(pending, unit("steward-0", UnitState.STARTING))
    assert firing(replace_snapshot(slow, chains=explain(facts))) == []
    facts["steward-0"] = replace_snapshot(facts["steward-0"], state=UnitState.FATAL)
    dead_end = replace_snapshot(snapshot(pending, unit("steward-0", UnitState.FATAL)), chains=explain(facts))
    assert "unit-pending:sampler-0" in [row.id for row in firing(dead_end)]


# ---- a healthy run ----


def noise() -> float:
    return random.uniform(-20, 20) * MIB


def test_healthy_run_raises_no_alert_for_days() -> None:
    random.seed(4)
    rules = [Rule(name="queue", metric="queue", of="web", above=100.0, for_s=30.0)]
    metrics = MetricStore(metrics_read(rules))
    engine = AlertEngine([*default_rules(), *map(declared_rule, rules)])
    names = [f"web-{slot}" for slot in range(5)]
    for step in range(2 * 24 * 60):
        now = step * 60.0
        for name in names:
            metrics.memory(name, 1, int(GIB + noise()), now)
            metrics.update(name, 1, {"queue": random.uniform(0, 99)}, now)
        # A unit is suspect for a moment now and then, one dies once a day, and is pending and starting again.
        states = dict.fromkeys(names, UnitState.READY)
        if step % 50 == 0:
            states["web-1"] = UnitState.SUSPECT
        if step % 1440 == 7:
            states["web-2"] = UnitState.STARTING
        units = (unit(name, states[name], deaths_in_window=int(step % 1440 in range(7, 12))) for name in names)
        facts = {
            "web-0": UnitFacts("web-0", "web", UnitState.READY, waits=(Wait("web-1", age_s=random.uniform(0, 200)),)),
            "web-1": UnitFacts("web-1", "web", states["web-1"]),
        }
        calm = RunSnapshot(
            RunRow("my-run", "u", "running"),
            {one.unit: one for one in units},
            {"a": host(disk_free_bytes=int(random.uniform(4, 90) * GIB))},
            explain(facts),
            metrics,
        )
        outcome = engine.evaluate(calm, now, AT + now)
        assert outcome.notify == [], (now, outcome.notify)
        assert engine.rows() == []
