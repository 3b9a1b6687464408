"""The life of an alert: when it fires, who is told, and what people can do about it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import pytest

from agentrl.control.alerts.lifecycle import AlertEngine, AlertTimes, Finding, Outcome, Told, World
from agentrl.errors import RefusedError, UnknownNameError
from agentrl.protocol.rows import AlertRow, AlertState, RunRow, Severity

TIMES = AlertTimes(hold_s=10.0, repeat_s=100.0, keep_resolved_s=50.0, refresh_s=5.0, settle_s=30.0)
WORLD = World(run=RunRow("my-run", "uuid", "running"))
AT = 1_000_000.0


@dataclass
class Level:
    """A rule on one number per subject: wrong above 10, well again below 5."""

    name: str = "level"
    severity: Severity = Severity.PAGE
    for_s: float = 0.0
    certain: bool = False
    levels: dict[str, float] = field(default_factory=dict)

    def check(self, world: World, alerting: Collection[str], now: float) -> Iterable[Finding]:
        for subject, level in self.levels.items():
            if level > (5 if subject in alerting else 10):
                yield Finding(subject, f"{subject} is at {level:g}.", (f"level {level:g}",), "agentrl status")


class Clock:
    """An engine with its two clocks."""

    def __init__(self, rule: Level) -> None:
        self.rule = rule
        self.engine = AlertEngine([rule], TIMES)
        self.now = 0.0
        self.jump = 0.0

    @property
    def at(self) -> float:
        return AT + self.now + self.jump

    def after(self, seconds: float, **levels: float) -> Outcome:
        self.now += seconds
        self.rule.levels.update(levels)
        return self.engine.evaluate(WORLD, self.now, self.at)

    def row(self, id: str = "level:web") -> AlertRow:
        return next(row for row in self.engine.rows(all=True) if row.id == id)


def told(outcome: Outcome) -> list[str]:
    return [notification.what for notification in outcome.notify]


def arrived(clock: Clock, *, ended: bool = False) -> list[Told]:
    """Everything that there is has been told."""
    return [Told(row.id, row.since_at, ended) for row in clock.engine.rows(all=True)]


def test_nothing_wrong_is_nothing_at_all() -> None:
    clock = Clock(Level())
    for _ in range(100):
        outcome = clock.after(1.0, web=3)
        assert outcome == Outcome()
    assert clock.engine.rows(all=True) == []


def test_it_fires_only_after_it_lasted_and_is_told_once() -> None:
    clock = Clock(Level(for_s=30.0))
    assert clock.after(1.0, web=20).changed[0].state is AlertState.PENDING
    assert clock.engine.rows() == []
    assert told(clock.after(29.0)) == []
    outcome = clock.after(1.0)
    assert told(outcome) == ["firing"]
    assert outcome.moved == {"level:web"}
    row = outcome.notify[0].alert
    assert (row.id, row.rule, row.subject, row.state) == ("level:web", "level", "web", AlertState.FIRING)
    assert (row.since_at, row.evidence, row.suggest) == (AT + 1, ("level 20",), "agentrl status")
    assert outcome.notify[0].run == "my-run"
    assert told(clock.after(1.0)) == []


def test_what_passes_before_anybody_could_see_it_leaves_no_trace() -> None:
    clock = Clock(Level(for_s=30.0))
    clock.after(1.0, web=20)
    outcome = clock.after(20.0, web=0)
    assert outcome.gone == ["level:web"]
    assert told(outcome) == []
    clock.after(1.0, web=20)
    assert clock.after(20.0).changed == [], "the time begins anew"


def test_what_was_seen_coming_and_did_not_fire_is_shown_for_a_while_and_is_nobodys_news() -> None:
    clock = Clock(Level(for_s=30.0))
    for _ in range(10):
        clock.after(1.0, web=20)
    outcome = clock.after(1.0, web=0)
    (row,) = outcome.changed
    assert (row.state, row.passed, row.resolved_at) == (AlertState.RESOLVED, True, clock.at)
    assert (told(outcome), outcome.moved, outcome.gone) == ([], set(), [])
    assert clock.after(clock.engine.times.keep_passed_s).gone == ["level:web"]
    assert clock.after(1.0, web=20).changed[0].state is AlertState.PENDING
    assert not clock.after(30.0).changed[0].passed, "what fires after that is an alert like any other"


def test_it_ends_below_the_clear_value_and_after_the_hold() -> None:
    clock = Clock(Level())
    clock.after(1.0, web=20)
    for level in (9, 6, 9):
        clock.after(20.0, web=level)
        assert clock.row().state is AlertState.FIRING, "hysteresis"
    assert told(clock.after(5.0, web=4)) == []
    clock.after(4.0, web=11)
    assert told(clock.after(9.0, web=4)) == [], "it came back within the hold"
    outcome = clock.after(5.0)
    assert told(outcome) == ["resolved"]
    assert clock.row().state is AlertState.RESOLVED
    assert clock.row().resolved_at == clock.at
    assert clock.engine.rows() == []
    assert clock.after(51.0).gone == ["level:web"]


def test_a_page_is_repeated_until_somebody_acknowledges_it() -> None:
    clock = Clock(Level())
    assert told(clock.after(1.0, web=20)) == ["firing"]
    assert told(clock.after(99.0)) == []
    assert told(clock.after(1.0)) == ["repeated"]
    assert told(clock.after(100.0)) == ["repeated"]
    assert clock.engine.acknowledge("level:web", "ann").acknowledged_by == "ann"
    assert clock.engine.acknowledge("level:web", "bob").acknowledged_by == "ann"
    assert told(clock.after(500.0)) == []
    assert clock.row().state is AlertState.ACKNOWLEDGED
    clock.after(1.0, web=0)
    assert told(clock.after(20.0)) == ["resolved"]
    outcome = clock.after(1.0, web=20)
    assert told(outcome) == ["firing"], "a new case is nobody's yet"
    assert outcome.changed[-1].acknowledged_by == ""


@pytest.mark.parametrize(("severity", "expected"), [(Severity.WARNING, ["firing"]), (Severity.INFO, [])])
def test_milder_ones_are_told_once_or_only_shown(severity: Severity, expected: list[str]) -> None:
    clock = Clock(Level(severity=severity))
    heard = [what for seconds in [1.0, *[60.0] * 20] for what in told(clock.after(seconds, web=20))]
    assert heard == expected
    assert len(clock.engine.rows()) == 1


def test_only_what_fires_can_be_acknowledged() -> None:
    clock = Clock(Level(for_s=5.0))
    clock.after(1.0, web=20)
    with pytest.raises(RefusedError, match="pending"):
        clock.engine.to_acknowledge("level:web")
    with pytest.raises(RefusedError, match="pending"):
        clock.engine.acknowledge("level:web", "ann")
    with pytest.raises(UnknownNameError, match="did you mean 'level:web'"):
        clock.engine.acknowledge("level:wep", "ann")
    with pytest.raises(UnknownNameError, match="did you mean 'level'"):
        clock.engine.to_silence("levl")


def test_silence_holds_notifications_back_and_ends_by_itself() -> None:
    clock = Clock(Level())
    clock.after(1.0, web=20)
    (row,) = clock.engine.silence("level:web", 300.0, who="ann", why="known", at=clock.at)
    assert (row.silenced_by, row.silence_why, row.silenced_until_at) == ("ann", "known", clock.at + 300)
    assert told(clock.after(299.0)) == []
    outcome = clock.after(2.0)
    assert told(outcome) == ["repeated"]
    assert clock.row().silenced_until_at == 0.0


def test_a_silent_alert_whose_beginning_nobody_heard_ends_unheard() -> None:
    clock = Clock(Level(for_s=10.0))
    clock.after(1.0, web=20)
    clock.engine.silence("level:web", 60.0, who="ann", why="", at=clock.at)
    assert told(clock.after(10.0)) == []
    clock.after(1.0, web=0)
    assert told(clock.after(20.0)) == []
    assert clock.row().state is AlertState.RESOLVED


def test_a_silent_rule_keeps_its_later_alerts_silent_too() -> None:
    clock = Clock(Level())
    clock.after(1.0)
    assert clock.engine.silence("level", 100.0, who="ann", why="move", at=clock.at) == []
    assert told(clock.after(1.0, web=20, db=20)) == []
    assert {row.silenced_by for row in clock.engine.rows()} == {"ann"}
    assert [silence.rule for silence in clock.engine.silences()] == ["level"]
    assert sorted(told(clock.after(100.0))) == ["firing", "firing"]
    assert clock.engine.silences() == []


def test_a_silence_can_be_ended() -> None:
    clock = Clock(Level())
    clock.engine.silence("level", 1e6, who="ann", why="", at=clock.at)
    clock.after(1.0, web=20)
    clock.engine.silence("level", 0, who="bob", why="", at=clock.at)
    assert told(clock.after(1.0)) == ["firing"]


def test_a_jump_of_the_wall_clock_fires_and_ends_nothing() -> None:
    clock = Clock(Level(for_s=60.0))
    clock.after(1.0, web=20)
    clock.jump = 86_400.0
    assert told(clock.after(1.0)) == []
    clock.jump = -86_400.0
    assert told(clock.after(59.0)) == ["firing"]
    clock.jump = 86_400.0
    assert told(clock.after(1.0)) == []
    clock.after(1.0, web=0)
    assert clock.row().state is AlertState.FIRING


def test_evidence_is_renewed_now_and_then_only() -> None:
    clock = Clock(Level())
    clock.after(1.0, web=20)
    changes = sum(len(clock.after(1.0, web=20 + step).changed) for step in range(1, 51))
    assert 9 <= changes <= 11
    assert clock.row().evidence == ("level 70",)


def test_a_restart_of_the_coordinator_repeats_nothing_and_ends_nothing_too_early() -> None:
    before = Clock(Level())
    before.after(1.0, web=20, db=20, quiet=20)
    before.engine.acknowledge("level:db", "ann")
    before.engine.silence("level", 500.0, who="ann", why="", at=before.at)
    rows, silences = before.engine.rows(all=True), before.engine.silences()
    before.engine.silence("level", 0, who="ann", why="", at=before.at)
    after = Clock(Level())
    after.now = 5000.0
    after.jump = -4990.0
    after.engine.restore([row for row in rows if row.subject != "quiet"], silences, after.now, arrived(before))
    assert after.row("level:db").acknowledged_by == "ann"
    assert after.engine.silences() == silences
    assert told(after.after(1.0)) == []
    assert {row.state for row in after.engine.rows()} == {AlertState.FIRING, AlertState.ACKNOWLEDGED}
    assert told(after.after(15.0)) == [], "longer than the hold, but not everybody is back yet"
    assert len(after.engine.rows()) == 2
    after.after(20.0)
    assert after.engine.rows() == []


def test_where_nothing_fired_before_nobody_has_to_settle() -> None:
    clock = Clock(Level())
    clock.engine.restore((), (), 0.0)
    clock.after(1.0, web=20)
    assert told(clock.after(11.0, web=3)) == ["resolved"]


def test_restored_alerts_that_were_told_are_not_told_again() -> None:
    before, after = Clock(Level()), Clock(Level())
    before.after(1.0, web=20)
    after.engine.restore(before.engine.rows(all=True), (), 0.0, arrived(before))
    assert told(after.after(1.0, web=20)) == []
    assert after.row().since_at == before.row().since_at
    assert told(after.after(100.0)) == ["repeated"]


def test_alerts_of_a_run_that_was_taken_down_since_end_at_the_first_look_that_does_not_find_them() -> None:
    before, after = Clock(Level()), Clock(Level())
    before.after(1.0, web=20, db=20)
    rows = before.engine.rows(all=True)
    after.engine.restore(rows, (), 0.0, arrived(before), over=True)
    assert told(after.after(0.5, db=20)) == ["resolved"]
    assert [row.id for row in after.engine.rows()] == ["level:db"]


def test_after_a_down_nothing_is_found_again_for_the_reason_that_it_was_found_before() -> None:
    before, goes_on, begins_anew = Clock(Level()), Clock(Level()), Clock(Level())
    before.after(1.0, web=20)
    rows = before.engine.rows(all=True)
    goes_on.engine.restore(rows, (), 0.0, arrived(before))
    begins_anew.engine.restore(rows, (), 0.0, arrived(before), over=True)
    assert told(goes_on.after(0.5, web=7)) == []
    assert told(begins_anew.after(0.5, web=7)) == ["resolved"]


def test_what_had_not_arrived_when_the_coordinator_died_is_told_by_the_next() -> None:
    before, after = Clock(Level()), Clock(Level())
    before.after(1.0, web=20)
    after.engine.restore(before.engine.rows(all=True), (), 0.0)
    assert told(after.after(1.0, web=20)) == ["firing"]


def test_an_end_that_had_not_arrived_is_told_by_the_next_and_no_other_end() -> None:
    before = Clock(Level())
    before.after(1.0, web=20)
    fired = arrived(before)
    assert told(before.after(11.0, web=3)) == ["resolved"]
    rows = before.engine.rows(all=True)
    for known, expected in ((fired, ["resolved"]), ((), []), (arrived(before, ended=True), [])):
        after = Clock(Level())
        after.engine.restore(rows, (), 0.0, known)
        assert told(after.after(1.0)) == expected


def test_alerts_of_a_rule_that_is_no_more_end() -> None:
    clock = Clock(Level())
    clock.after(1.0, web=20)
    clock.engine.set_rules([])
    clock.after(1.0)
    assert told(clock.after(10.0)) == ["resolved"]


def test_the_gravest_come_first() -> None:
    page, info = Level("page"), Level("info", Severity.INFO)
    engine = AlertEngine([info, page], TIMES)
    page.levels["b"] = info.levels["a"] = 20.0
    engine.evaluate(WORLD, 1.0, AT)
    assert [row.id for row in engine.rows()] == ["page:b", "info:a"]
