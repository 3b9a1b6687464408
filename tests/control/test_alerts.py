"""The life cycle of an alert: when it fires, when it is notified, and what people can do about it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import pytest

from agentrl.control.alerts.alert_states import AlertEngine, AlertTimes, Changes, LastDelivery
from agentrl.control.alerts.rule_types import Finding, Rule, RunSnapshot
from agentrl.errors import RefusedError, UnknownNameError
from agentrl.protocol.rows import AlertRow, AlertState, RunRow, Severity

TIMES = AlertTimes(clear_s=10.0, repeat_s=100.0, keep_resolved_s=50.0, refresh_s=5.0, settle_s=30.0)
SNAPSHOT = RunSnapshot(run=RunRow("my-run", "uuid", "running"))
AT = 1_000_000.0


@dataclass(frozen=True)
class Level(Rule):
    """A rule on one number per subject: it fires above 10 and clears below 5."""

    name: str = "level"
    severity: Severity = Severity.PAGE
    levels: dict[str, float] = field(default_factory=dict)

    def find(self, snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterable[Finding]:
        for subject, level in self.levels.items():
            if level > (5 if subject in active else 10):
                yield Finding(subject, f"{subject} is at {level:g}.", (f"level {level:g}",), "agentrl status")


class Clock:
    """An engine with a monotonic and a wall clock."""

    def __init__(self, rule: Level) -> None:
        self.rule = rule
        self.engine = AlertEngine([rule], TIMES)
        self.now = 0.0
        self.jump = 0.0

    @property
    def at(self) -> float:
        return AT + self.now + self.jump

    def after(self, seconds: float, **levels: float) -> Changes:
        self.now += seconds
        self.rule.levels.update(levels)
        return self.engine.evaluate(SNAPSHOT, self.now, self.at)

    def row(self, id: str = "level:web") -> AlertRow:
        return next(row for row in self.engine.rows(all=True) if row.id == id)


def notified(changes: Changes) -> list[str]:
    return [notification.what for notification in changes.notify]


def delivered(clock: Clock, *, ended: bool = False) -> list[LastDelivery]:
    """A delivery for every alert."""
    return [LastDelivery(row.id, row.since_at, ended) for row in clock.engine.rows(all=True)]


def test_without_findings_nothing_changes() -> None:
    clock = Clock(Level())
    for _ in range(100):
        changes = clock.after(1.0, web=3)
        assert changes == Changes()
    assert clock.engine.rows(all=True) == []


def test_alert_fires_after_its_hold_time_and_is_notified_once() -> None:
    clock = Clock(Level(hold_s=30.0))
    assert clock.after(1.0, web=20).changed[0].state is AlertState.PENDING
    assert clock.engine.rows() == []
    assert notified(clock.after(29.0)) == []
    changes = clock.after(1.0)
    assert notified(changes) == ["firing"]
    assert changes.moved == {"level:web"}
    row = changes.notify[0].alert
    assert (row.id, row.rule, row.subject, row.state) == ("level:web", "level", "web", AlertState.FIRING)
    assert (row.since_at, row.evidence, row.suggest) == (AT + 1, ("level 20",), "agentrl status")
    assert changes.notify[0].run == "my-run"
    assert notified(clock.after(1.0)) == []


def test_short_pending_alert_disappears_at_once() -> None:
    clock = Clock(Level(hold_s=30.0))
    clock.after(1.0, web=20)
    changes = clock.after(20.0, web=0)
    assert changes.gone == ["level:web"]
    assert notified(changes) == []
    clock.after(1.0, web=20)
    assert clock.after(20.0).changed == [], "the hold time starts again"


def test_alert_that_ends_while_pending_is_shown_as_passed_and_not_notified() -> None:
    clock = Clock(Level(hold_s=30.0))
    for _ in range(10):
        clock.after(1.0, web=20)
    changes = clock.after(1.0, web=0)
    (row,) = changes.changed
    assert (row.state, row.passed, row.resolved_at) == (AlertState.RESOLVED, True, clock.at)
    assert (notified(changes), changes.moved, changes.gone) == ([], set(), [])
    assert clock.after(clock.engine.times.keep_passed_s).gone == ["level:web"]
    assert clock.after(1.0, web=20).changed[0].state is AlertState.PENDING
    assert not clock.after(30.0).changed[0].passed, "a later alert fires as usual"


def test_alert_ends_below_the_clear_value_and_after_the_clear_time() -> None:
    clock = Clock(Level())
    clock.after(1.0, web=20)
    for level in (9, 6, 9):
        clock.after(20.0, web=level)
        assert clock.row().state is AlertState.FIRING, "hysteresis"
    assert notified(clock.after(5.0, web=4)) == []
    clock.after(4.0, web=11)
    assert notified(clock.after(9.0, web=4)) == [], "it came back within the clear time"
    changes = clock.after(5.0)
    assert notified(changes) == ["resolved"]
    assert clock.row().state is AlertState.RESOLVED
    assert clock.row().resolved_at == clock.at
    assert clock.engine.rows() == []
    assert clock.after(51.0).gone == ["level:web"]


def test_page_is_repeated_until_it_is_acknowledged() -> None:
    clock = Clock(Level())
    assert notified(clock.after(1.0, web=20)) == ["firing"]
    assert notified(clock.after(99.0)) == []
    assert notified(clock.after(1.0)) == ["repeated"]
    assert notified(clock.after(100.0)) == ["repeated"]
    assert clock.engine.acknowledge("level:web", "ann").acknowledged_by == "ann"
    assert clock.engine.acknowledge("level:web", "bob").acknowledged_by == "ann"
    assert notified(clock.after(500.0)) == []
    assert clock.row().state is AlertState.ACKNOWLEDGED
    clock.after(1.0, web=0)
    assert notified(clock.after(20.0)) == ["resolved"]
    changes = clock.after(1.0, web=20)
    assert notified(changes) == ["firing"], "a new alert is not acknowledged"
    assert changes.changed[-1].acknowledged_by == ""


@pytest.mark.parametrize(("severity", "expected"), [(Severity.WARNING, ["firing"]), (Severity.INFO, [])])
def test_warning_is_notified_once_and_info_never(severity: Severity, expected: list[str]) -> None:
    clock = Clock(Level(severity=severity))
    sent = [what for seconds in [1.0, *[60.0] * 20] for what in notified(clock.after(seconds, web=20))]
    assert sent == expected
    assert len(clock.engine.rows()) == 1


def test_only_a_firing_alert_can_be_acknowledged() -> None:
    clock = Clock(Level(hold_s=5.0))
    clock.after(1.0, web=20)
    with pytest.raises(RefusedError, match="pending"):
        clock.engine.to_acknowledge("level:web")
    with pytest.raises(RefusedError, match="pending"):
        clock.engine.acknowledge("level:web", "ann")
    with pytest.raises(UnknownNameError, match="did you mean 'level:web'"):
        clock.engine.acknowledge("level:wep", "ann")
    with pytest.raises(UnknownNameError, match="did you mean 'level'"):
        clock.engine.to_silence("levl")


def test_silence_stops_notifications_until_it_ends() -> None:
    clock = Clock(Level())
    clock.after(1.0, web=20)
    (row,) = clock.engine.silence("level:web", 300.0, who="ann", why="known", at=clock.at)
    assert (row.silenced_by, row.silence_why, row.silenced_until_at) == ("ann", "known", clock.at + 300)
    assert notified(clock.after(299.0)) == []
    changes = clock.after(2.0)
    assert notified(changes) == ["repeated"]
    assert clock.row().silenced_until_at == 0.0


def test_end_is_not_notified_if_the_beginning_was_silenced() -> None:
    clock = Clock(Level(hold_s=10.0))
    clock.after(1.0, web=20)
    clock.engine.silence("level:web", 60.0, who="ann", why="", at=clock.at)
    assert notified(clock.after(10.0)) == []
    clock.after(1.0, web=0)
    assert notified(clock.after(20.0)) == []
    assert clock.row().state is AlertState.RESOLVED


def test_silenced_rule_silences_its_later_alerts() -> None:
    clock = Clock(Level())
    clock.after(1.0)
    assert clock.engine.silence("level", 100.0, who="ann", why="move", at=clock.at) == []
    assert notified(clock.after(1.0, web=20, db=20)) == []
    assert {row.silenced_by for row in clock.engine.rows()} == {"ann"}
    assert [silence.rule for silence in clock.engine.silences()] == ["level"]
    assert sorted(notified(clock.after(100.0))) == ["firing", "firing"]
    assert clock.engine.silences() == []


def test_silence_can_be_ended_by_a_person() -> None:
    clock = Clock(Level())
    clock.engine.silence("level", 1e6, who="ann", why="", at=clock.at)
    clock.after(1.0, web=20)
    clock.engine.silence("level", 0, who="bob", why="", at=clock.at)
    assert notified(clock.after(1.0)) == ["firing"]


def test_jump_of_the_wall_clock_fires_and_ends_nothing() -> None:
    clock = Clock(Level(hold_s=60.0))
    clock.after(1.0, web=20)
    clock.jump = 86_400.0
    assert notified(clock.after(1.0)) == []
    clock.jump = -86_400.0
    assert notified(clock.after(59.0)) == ["firing"]
    clock.jump = 86_400.0
    assert notified(clock.after(1.0)) == []
    clock.after(1.0, web=0)
    assert clock.row().state is AlertState.FIRING


def test_evidence_is_renewed_every_few_seconds_only() -> None:
    clock = Clock(Level())
    clock.after(1.0, web=20)
    changes = sum(len(clock.after(1.0, web=20 + step).changed) for step in range(1, 51))
    assert 9 <= changes <= 11
    assert clock.row().evidence == ("level 70",)


def test_restart_of_the_coordinator_repeats_nothing_and_ends_nothing_too_early() -> None:
    before = Clock(Level())
    before.after(1.0, web=20, db=20, quiet=20)
    before.engine.acknowledge("level:db", "ann")
    before.engine.silence("level", 500.0, who="ann", why="", at=before.at)
    rows, silences = before.engine.rows(all=True), before.engine.silences()
    before.engine.silence("level", 0, who="ann", why="", at=before.at)
    after = Clock(Level())
    after.now = 5000.0
    after.jump = -4990.0
    after.engine.restore([row for row in rows if row.subject != "quiet"], silences, after.now, delivered(before))
    assert after.row("level:db").acknowledged_by == "ann"
    assert after.engine.silences() == silences
    assert notified(after.after(1.0)) == []
    assert {row.state for row in after.engine.rows()} == {AlertState.FIRING, AlertState.ACKNOWLEDGED}
    assert notified(after.after(15.0)) == [], "longer than the clear time, but within the settle time"
    assert len(after.engine.rows()) == 2
    after.after(20.0)
    assert after.engine.rows() == []


def test_without_restored_alerts_there_is_no_settle_time() -> None:
    clock = Clock(Level())
    clock.engine.restore((), (), 0.0)
    clock.after(1.0, web=20)
    assert notified(clock.after(11.0, web=3)) == ["resolved"]


def test_restored_alert_is_not_notified_again() -> None:
    before, after = Clock(Level()), Clock(Level())
    before.after(1.0, web=20)
    after.engine.restore(before.engine.rows(all=True), (), 0.0, delivered(before))
    assert notified(after.after(1.0, web=20)) == []
    assert after.row().since_at == before.row().since_at
    assert notified(after.after(100.0)) == ["repeated"]


def test_restored_alert_of_a_run_that_was_taken_down_ends_at_the_first_evaluation_without_it() -> None:
    before, after = Clock(Level()), Clock(Level())
    before.after(1.0, web=20, db=20)
    rows = before.engine.rows(all=True)
    after.engine.restore(rows, (), 0.0, delivered(before), over=True)
    assert notified(after.after(0.5, db=20)) == ["resolved"]
    assert [row.id for row in after.engine.rows()] == ["level:db"]


def test_after_a_down_the_threshold_counts_and_not_the_clear_value() -> None:
    before, continued, restarted = Clock(Level()), Clock(Level()), Clock(Level())
    before.after(1.0, web=20)
    rows = before.engine.rows(all=True)
    continued.engine.restore(rows, (), 0.0, delivered(before))
    restarted.engine.restore(rows, (), 0.0, delivered(before), over=True)
    assert notified(continued.after(0.5, web=7)) == []
    assert notified(restarted.after(0.5, web=7)) == ["resolved"]


def test_undelivered_beginning_is_notified_by_the_next_coordinator() -> None:
    before, after = Clock(Level()), Clock(Level())
    before.after(1.0, web=20)
    after.engine.restore(before.engine.rows(all=True), (), 0.0)
    assert notified(after.after(1.0, web=20)) == ["firing"]


def test_undelivered_end_is_notified_by_the_next_coordinator_and_no_other_end() -> None:
    before = Clock(Level())
    before.after(1.0, web=20)
    fired = delivered(before)
    assert notified(before.after(11.0, web=3)) == ["resolved"]
    rows = before.engine.rows(all=True)
    for known, expected in ((fired, ["resolved"]), ((), []), (delivered(before, ended=True), [])):
        after = Clock(Level())
        after.engine.restore(rows, (), 0.0, known)
        assert notified(after.after(1.0)) == expected


def test_alerts_of_a_removed_rule_end() -> None:
    clock = Clock(Level())
    clock.after(1.0, web=20)
    clock.engine.set_rules([])
    clock.after(1.0)
    assert notified(clock.after(10.0)) == ["resolved"]


def test_most_severe_alerts_come_first() -> None:
    page, info = Level("page"), Level("info", severity=Severity.INFO)
    engine = AlertEngine([info, page], TIMES)
    page.levels["b"] = info.levels["a"] = 20.0
    engine.evaluate(SNAPSHOT, 1.0, AT)
    assert [row.id for row in engine.rows()] == ["page:b", "info:a"]
