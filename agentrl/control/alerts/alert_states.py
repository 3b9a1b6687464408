"""Implements the life cycle of alerts: pending -> firing -> acknowledged -> resolved, and silences. Pure.

Invariants:
- Durations are measured on the monotonic clock, so a jump of the wall clock neither fires nor ends an alert. Only
  silences end at a wall-clock time, because a person chose that time.
- A firing alert is notified once; a page is repeated until a person acknowledges it.
- The end of an alert is notified only if its beginning was.
- A restart of the coordinator repeats no notification that was delivered and loses none that was not.
- An alert that ends before it fired is shown for a while if it was pending long enough to be seen, and never notified.
- Only an active alert has a cause, and its cause is active.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from agentrl.control.alerts.alert_causes import cause_of
from agentrl.control.alerts.rule_types import Finding, Rule, RunSnapshot
from agentrl.errors import RefusedError, UnknownNameError
from agentrl.formatting.row_text import causes_first
from agentrl.protocol.rows import AlertRow, AlertState, Severity


class Notification(msgspec.Struct, frozen=True):
    """The message that is sent to people."""

    what: str
    """firing, repeated, resolved, test."""
    alert: AlertRow
    run: str = ""
    uuid: str = ""


class LastDelivery(msgspec.Struct, frozen=True):
    """The last notification about an alert that was delivered."""

    id: str
    since_at: float
    """Distinguishes alerts of the same id."""
    ended: bool
    """True if it was about the end of the alert."""


class Silence(msgspec.Struct, frozen=True):
    """A rule whose alerts are not notified for a while."""

    rule: str
    until_at: float
    by: str
    why: str = ""


@dataclass
class Changes:
    """The changes of one evaluation."""

    changed: list[AlertRow] = field(default_factory=list)
    moved: set[str] = field(default_factory=set)
    """Ids of those among `changed` whose state changed: only these are written to the journal."""
    gone: list[str] = field(default_factory=list)
    """Ids of alerts that are no longer shown."""
    notify: list[Notification] = field(default_factory=list)

    def add(self, row: AlertRow, *, moved: bool) -> None:
        self.changed = [*(other for other in self.changed if other.id != row.id), row]
        self.moved |= {row.id} if moved else set()


@dataclass(frozen=True, slots=True)
class AlertTimes:
    clear_s: float = 15.0
    """An alert ends when nothing was found for this long."""
    repeat_s: float = 3600.0
    keep_resolved_s: float = 3600.0
    visible_s: float = 5.0
    """An alert that was pending for a shorter time disappears at once ..."""
    keep_passed_s: float = 600.0
    """... and one that was pending for longer is shown as ended for this long."""
    refresh_s: float = 5.0
    """How often the evidence of an active alert is renewed."""
    settle_s: float = 60.0
    """No restored alert ends before this, so that every unit has had time to report again."""


@dataclass(slots=True)
class _Alert:
    row: AlertRow
    began: float
    found: float
    """The last time that its rule found it."""
    refreshed: float
    notified: float | None = None
    announced: bool = False
    """Its beginning was notified, so its end must be notified too."""
    resolved: float = 0.0
    explained_by: tuple[str, ...] = ()


_BEFORE_DOWN = float("-inf")
"""The time of an alert that was last found before the run was taken down."""


class AlertEngine:
    """All alerts of a run."""

    def __init__(self, rules: Iterable[Rule], times: AlertTimes | None = None) -> None:
        self.times = times or AlertTimes()
        self._rules: dict[str, Rule] = {}
        self._alerts: dict[str, _Alert] = {}
        self._silences: dict[str, Silence] = {}
        self._settled = float("-inf")
        self.set_rules(rules)

    # ---- commands and queries ----

    def set_rules(self, rules: Iterable[Rule]) -> None:
        """Replaces the rules. Alerts of removed rules end."""
        self._rules = {rule.name: rule for rule in rules}

    def rows(self, *, all: bool = False) -> list[AlertRow]:
        """Active alerts, the most severe first; with `all` also pending and ended ones."""
        rows = [alert.row for alert in self._alerts.values()]
        active = causes_first(row for row in rows if _active(row))
        return active + (causes_first(row for row in rows if not _active(row)) if all else [])

    def silences(self) -> list[Silence]:
        return list(self._silences.values())

    def to_acknowledge(self, id: str) -> AlertRow:
        """The alert, if it can be acknowledged. Raises UnknownNameError or RefusedError."""
        row = self._find(id).row
        if not _active(row):
            raise RefusedError(
                f"The alert {id} is {row.state}: only an alert that fires can be acknowledged.",
                hint="`agentrl alerts list` shows those that fire.",
            )
        return row

    def acknowledge(self, id: str, who: str) -> AlertRow:
        """Ends the repetition of an alert. The first person stays recorded."""
        row = self.to_acknowledge(id)
        if row.state is AlertState.FIRING:
            row = self._alerts[id].row = replace(row, state=AlertState.ACKNOWLEDGED, acknowledged_by=who)
        return row

    def to_silence(self, id: str) -> list[AlertRow]:
        """The alert of that id, or all alerts of the rule of that name. Raises UnknownNameError."""
        if id in self._rules:
            return [alert.row for alert in self._alerts.values() if alert.row.rule == id]
        return [self._find(id).row]

    def silence(self, id: str, for_s: float, *, who: str, why: str, at: float) -> list[AlertRow]:
        """Stops notifications of an alert, or of a rule and its later alerts, for a while; 0 ends a silence.

        Returns the changed rows.
        """
        silence = Silence(id, at + for_s if for_s > 0 else 0.0, who, why)
        touched = [self._alerts[row.id] for row in self.to_silence(id)]
        if id in self._rules:
            self._silences.pop(id, None)
            if silence.until_at:
                self._silences[id] = silence
        for alert in touched:
            alert.row = _silenced(alert.row, silence)
        return [alert.row for alert in touched]

    # ---- persistence ----

    def restore(
        self,
        rows: Iterable[AlertRow],
        silences: Iterable[Silence],
        now: float,
        delivered: Iterable[LastDelivery] = (),
        *,
        over: bool = False,
    ) -> None:
        """Takes over the alerts of an earlier coordinator.

        `over`: the run was taken down since, so alerts that the first evaluation does not find have ended.
        """
        self._silences = {silence.rule: silence for silence in silences}
        last = {(each.id, each.since_at): each for each in delivered}
        for row in rows:
            if row.state is not AlertState.PENDING:
                delivery = last.get((row.id, row.since_at))
                announced = delivery is not None and not delivery.ended
                found, notified = _BEFORE_DOWN if over else now, now if announced else None
                self._alerts[row.id] = _Alert(row, now, found, now, notified, announced, now)
        if self._alerts and not over:
            self._settled = now + self.times.settle_s

    # ---- evaluation ----

    def evaluate(self, snapshot: RunSnapshot, now: float, at: float) -> Changes:
        """Applies all rules once. `now` is monotonic, `at` is wall-clock time."""
        changes = Changes()
        self._silences = {name: silence for name, silence in self._silences.items() if silence.until_at > at}
        active: dict[str, set[str]] = {name: set() for name in self._rules}
        for alert in self._alerts.values():
            # After a down the clear value does not count: the run starts without alerts.
            if alert.row.rule in active and _active(alert.row) and alert.found > _BEFORE_DOWN:
                active[alert.row.rule].add(alert.row.subject)
        for rule in self._rules.values():
            for finding in rule.find(snapshot, active[rule.name], now):
                self._found(rule, finding, changes, now, at)
        for alert in list(self._alerts.values()):
            if alert.found < now or alert.row.rule not in self._rules:
                self._not_found(alert, changes, now, at)
        self._explain(changes, now)
        for alert in list(self._alerts.values()):
            self._notify(alert, snapshot, changes, now, at)
        return changes

    def _found(self, rule: Rule, finding: Finding, changes: Changes, now: float, at: float) -> None:
        id = f"{rule.name}:{finding.subject}"
        alert = self._alerts.get(id)
        if alert is None or alert.row.state is AlertState.RESOLVED:
            row = _row(id, rule, finding, at)
            if alert is not None and alert.row.silenced_until_at > at:
                former = alert.row
                row = _silenced(row, Silence(id, former.silenced_until_at, former.silenced_by, former.silence_why))
            elif rule.name in self._silences:
                row = _silenced(row, self._silences[rule.name])
            alert = self._alerts[id] = _Alert(row, now, now, now)
            changes.add(row, moved=True)
        alert.found, alert.explained_by = now, finding.explained_by
        fires = alert.row.state is AlertState.PENDING and now - alert.began >= rule.hold_s
        if fires or now - alert.refreshed >= self.times.refresh_s:
            alert.refreshed = now
            row = _renewed(alert.row, rule, finding)
            row = replace(row, state=AlertState.FIRING) if fires else row
            if row != alert.row:
                alert.row = row
                changes.add(row, moved=fires)

    def _not_found(self, alert: _Alert, changes: Changes, now: float, at: float) -> None:
        times, state, passed = self.times, alert.row.state, False
        if state is AlertState.PENDING:
            passed = alert.found - alert.began >= times.visible_s
            gone = not passed
        elif state is AlertState.RESOLVED:
            gone = now - alert.resolved >= (times.keep_passed_s if alert.row.passed else times.keep_resolved_s)
        else:
            gone = False
        if gone:
            del self._alerts[alert.row.id]
            changes.gone.append(alert.row.id)
        elif passed or (_active(alert.row) and self._is_over(alert, now)):
            alert.row = replace(alert.row, state=AlertState.RESOLVED, resolved_at=at, passed=passed)
            alert.resolved = now
            changes.add(alert.row, moved=not passed)

    def _explain(self, changes: Changes, now: float) -> None:
        """Sets the cause of each alert. One that its rule does not find now keeps its cause while both are active."""
        active = {id: alert.row for id, alert in self._alerts.items() if _active(alert.row)}
        for id, alert in self._alerts.items():
            cause = ""
            if id in active:
                found, former = alert.found == now, alert.row.cause
                cause = cause_of(alert.row, alert.explained_by, active) if found else former if former in active else ""
            if cause != alert.row.cause:
                alert.row = replace(alert.row, cause=cause)
                changes.add(alert.row, moved=False)

    def _is_over(self, alert: _Alert, now: float) -> bool:
        rule = self._rules.get(alert.row.rule)
        if rule is not None and rule.ends_at_once:
            return True
        return now - alert.found >= self.times.clear_s and now >= self._settled

    def _notify(self, alert: _Alert, snapshot: RunSnapshot, changes: Changes, now: float, at: float) -> None:
        row, what = alert.row, ""
        if row.silenced_until_at and row.silenced_until_at <= at:
            row = alert.row = _silenced(row, Silence(row.rule, 0.0, ""))
            changes.add(row, moved=True)
        if row.state is AlertState.RESOLVED and alert.announced:
            what, alert.announced = "resolved", False
        elif row.state is AlertState.FIRING and not row.silenced_until_at and row.severity is not Severity.INFO:
            if alert.notified is None:
                what = "firing"
            elif row.severity is Severity.PAGE and now - alert.notified >= self.times.repeat_s:
                what = "repeated"
            if what:
                alert.notified, alert.announced = now, True
        if what:
            run, uuid = ("", "") if snapshot.run is None else (snapshot.run.name, snapshot.run.uuid)
            changes.notify.append(Notification(what, row, run, uuid))

    def _find(self, id: str) -> _Alert:
        alert = self._alerts.get(id)
        if alert is None:
            near = difflib.get_close_matches(id, [*self._alerts, *self._rules], 1)
            raise UnknownNameError(
                f"There is no alert {id!r}{f'; did you mean {near[0]!r}?' if near else '.'}",
                hint="`agentrl alerts list --all` shows them all.",
            )
        return alert


def _active(row: AlertRow) -> bool:
    return row.state in (AlertState.FIRING, AlertState.ACKNOWLEDGED)


def _row(id: str, rule: Rule, finding: Finding, at: float) -> AlertRow:
    row = AlertRow(
        id=id,
        rule=rule.name,
        subject=finding.subject,
        severity=rule.severity,
        state=AlertState.PENDING,
        sentence="",
        since_at=at,
    )
    return _renewed(row, rule, finding)


def _renewed(row: AlertRow, rule: Rule, finding: Finding) -> AlertRow:
    return replace(
        row,
        severity=finding.severity or rule.severity,
        sentence=finding.sentence,
        evidence=finding.evidence,
        suggest=finding.suggest,
    )


def _silenced(row: AlertRow, silence: Silence) -> AlertRow:
    """A silence until 0 means no silence."""
    by, why = (silence.by, silence.why) if silence.until_at else ("", "")
    return replace(row, silenced_until_at=silence.until_at, silenced_by=by, silence_why=why)
