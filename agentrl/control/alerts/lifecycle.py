"""The life of alerts: pending -> firing -> acknowledged -> resolved, with silence beside it.

Invariants: pure; how long something lasts is measured on the monotonic clock, so a jump of the wall clock neither
fires nor ends anything (silences alone end at a wall-clock time, because a person asked for one); an alert that fires
is notified once, a page then again and again until somebody acknowledges it; an end is notified if the beginning was;
a restart of the coordinator repeats nothing that has arrived, and loses nothing that has not. What was pending for long
enough to be seen and goes away is shown as such for a while, and is nobody's news.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from msgspec.structs import replace

from agentrl.control.state.unit_metrics import Metrics
from agentrl.errors import RefusedError, UnknownNameError
from agentrl.protocol.commands import WaitChain
from agentrl.protocol.rows import AlertRow, AlertState, HostRow, IncidentRow, RunRow, Severity, UnitRow


@dataclass(frozen=True)
class World:
    """What rules look at."""

    run: RunRow | None = None
    units: Mapping[str, UnitRow] = field(default_factory=dict)
    """By name of the unit."""
    hosts: Mapping[str, HostRow] = field(default_factory=dict)
    chains: Sequence[WaitChain] = ()
    metrics: Metrics = field(default_factory=Metrics)
    incidents: Mapping[str, IncidentRow] = field(default_factory=dict)
    """The newest unplanned ends, by name of the incarnation."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something is wrong with a subject right now."""

    subject: str
    sentence: str
    evidence: tuple[str, ...] = ()
    suggest: str = ""
    severity: Severity | None = None
    """Graver or milder than the rule's own."""


class Rule(Protocol):
    """One way in which a run can be unwell."""

    @property
    def name(self) -> str: ...
    @property
    def severity(self) -> Severity: ...
    @property
    def for_s(self) -> float:
        """How long it must last before the alert fires."""
        ...

    @property
    def certain(self) -> bool:
        """What it says does not waver: an alert ends at the first look that does not find it."""
        ...

    def check(self, world: World, alerting: Collection[str], now: float) -> Iterable[Finding]:
        """What is wrong. Subjects in `alerting` are judged by the value that ends an alert, not by the one that begins
        it."""
        ...


class Notification(msgspec.Struct, frozen=True):
    """What is sent to people."""

    what: str
    """firing, repeated, resolved, test."""
    alert: AlertRow
    run: str = ""
    uuid: str = ""


class Told(msgspec.Struct, frozen=True):
    """The last that has arrived at people about an alert."""

    id: str
    since_at: float
    """Which of the alert's lives it was about."""
    ended: bool
    """That it had ended."""


class Silence(msgspec.Struct, frozen=True):
    """A rule about which nobody wants to hear for a while."""

    rule: str
    until_at: float
    by: str
    why: str = ""


@dataclass
class Outcome:
    """What one look at the world changed."""

    changed: list[AlertRow] = field(default_factory=list)
    moved: set[str] = field(default_factory=set)
    """Ids of those among `changed` whose state changed: worth the journal."""
    gone: list[str] = field(default_factory=list)
    """Ids that are no longer shown."""
    notify: list[Notification] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AlertTimes:
    hold_s: float = 15.0
    """How long something must be well again before the alert ends."""
    repeat_s: float = 3600.0
    keep_resolved_s: float = 3600.0
    seen_s: float = 5.0
    """What was pending for a shorter time is forgotten at once ..."""
    keep_passed_s: float = 600.0
    """... and what was so for longer, after this."""
    refresh_s: float = 5.0
    """Evidence of a standing alert is renewed that often, not with each number that moves."""
    settle_s: float = 60.0
    """After a restart of the coordinator: nothing ends before everybody had time to report again."""


@dataclass(slots=True)
class _Life:
    row: AlertRow
    began: float
    seen: float
    refreshed: float
    notified: float | None = None
    heard: bool = False
    """Somebody was told that it fires, and has to be told that it ended."""
    resolved: float = 0.0


_BEFORE = float("-inf")
"""Seen last in a life of the run that is over."""


class AlertEngine:
    """All alerts of a run."""

    def __init__(self, rules: Iterable[Rule], times: AlertTimes | None = None) -> None:
        self.times = times or AlertTimes()
        self._rules: dict[str, Rule] = {}
        self._lives: dict[str, _Life] = {}
        self._silences: dict[str, Silence] = {}
        self._settled = float("-inf")
        self.set_rules(rules)

    # ---- what people ask and do ----

    def set_rules(self, rules: Iterable[Rule]) -> None:
        """Alerts of rules that are no more end at the next look."""
        self._rules = {rule.name: rule for rule in rules}

    def rows(self, *, all: bool = False) -> list[AlertRow]:
        """Alerts that fire, gravest first; with `all` also those that are pending or ended."""
        order = [Severity.PAGE, Severity.WARNING, Severity.INFO]
        shown = [life.row for life in self._lives.values() if all or _active(life.row)]
        return sorted(shown, key=lambda row: (not _active(row), order.index(row.severity), row.since_at, row.id))

    def silences(self) -> list[Silence]:
        return list(self._silences.values())

    def to_acknowledge(self, id: str) -> AlertRow:
        """The alert, if it can be acknowledged. UnknownNameError, RefusedError."""
        row = self._find(id).row
        if row.state in (AlertState.PENDING, AlertState.RESOLVED):
            raise RefusedError(
                f"The alert {id} is {row.state}: only one that fires can be acknowledged.",
                hint="`agentrl alerts list` shows those that fire.",
            )
        return row

    def acknowledge(self, id: str, who: str) -> AlertRow:
        """Somebody is on it: it is not repeated any more."""
        row = self.to_acknowledge(id)
        if row.state is AlertState.FIRING:
            row = self._lives[id].row = replace(row, state=AlertState.ACKNOWLEDGED, acknowledged_by=who)
        return row

    def to_silence(self, id: str) -> list[AlertRow]:
        """The alert of that id, or all of the rule of that name. UnknownNameError."""
        if id in self._rules:
            return [life.row for life in self._lives.values() if life.row.rule == id]
        return [self._find(id).row]

    def silence(self, id: str, for_s: float, *, who: str, why: str, at: float) -> list[AlertRow]:
        """No notifications of an alert, or of a whole rule, for a while; 0 ends a silence.

        Answers the rows that it changed; a rule's silence holds for its later alerts too.
        """
        until_at = at + for_s if for_s > 0 else 0.0
        touched = [self._lives[row.id] for row in self.to_silence(id)]
        if id in self._rules:
            self._silences.pop(id, None)
            if until_at:
                self._silences[id] = Silence(id, until_at, who, why)
        for life in touched:
            life.row = _silenced(life.row, until_at, who, why)
        return [life.row for life in touched]

    # ---- persistence ----

    def restore(
        self,
        rows: Iterable[AlertRow],
        silences: Iterable[Silence],
        now: float,
        told: Iterable[Told] = (),
        *,
        over: bool = False,
    ) -> None:
        """Take over what a former coordinator knew; what was told then is not notified again. `over`: the run was taken
        down since, so what is not found at the first look has ended."""
        self._silences = {silence.rule: silence for silence in silences}
        last = {(each.id, each.since_at): each for each in told}
        for row in rows:
            if row.state is AlertState.PENDING:
                continue
            arrived = last.get((row.id, row.since_at))
            heard = arrived is not None and not arrived.ended
            seen = _BEFORE if over else now
            self._lives[row.id] = _Life(row, now, seen, now, now if heard else None, heard, now)
        if self._lives and not over:
            self._settled = now + self.times.settle_s

    # ---- the look at the world ----

    def evaluate(self, world: World, now: float, at: float) -> Outcome:
        outcome = Outcome()
        self._silences = {name: silence for name, silence in self._silences.items() if silence.until_at > at}
        for rule in self._rules.values():
            prefix = len(rule.name) + 1
            # What was found before the run was taken down is no reason to find it again.
            alerting = {
                id[prefix:]
                for id, life in self._lives.items()
                if life.row.rule == rule.name and _active(life.row) and life.seen > _BEFORE
            }
            for finding in rule.check(world, alerting, now):
                self._found(rule, finding, outcome, now, at)
        for id, life in list(self._lives.items()):
            if life.seen < now or life.row.rule not in self._rules:
                self._absent(id, life, outcome, now, at)
            self._tell(life, world, outcome, now, at)
        return outcome

    def _found(self, rule: Rule, finding: Finding, outcome: Outcome, now: float, at: float) -> None:
        id = f"{rule.name}:{finding.subject}"
        life = self._lives.get(id)
        if life is None or life.row.state is AlertState.RESOLVED:
            row = _row(rule, finding, id, at)
            if life is not None and life.row.silenced_until_at > at:
                row = _silenced(row, life.row.silenced_until_at, life.row.silenced_by, life.row.silence_why)
            elif rule.name in self._silences:
                silence = self._silences[rule.name]
                row = _silenced(row, silence.until_at, silence.by, silence.why)
            life = self._lives[id] = _Life(row, now, now, now)
            self._note(life, outcome, moved=True)
        life.seen = now
        if life.row.state is AlertState.PENDING and now - life.began >= rule.for_s:
            life.row = _renewed(life.row, rule, finding, state=AlertState.FIRING)
            life.refreshed = now
            self._note(life, outcome, moved=True)
        elif now - life.refreshed >= self.times.refresh_s:
            life.refreshed = now
            row = _renewed(life.row, rule, finding, state=life.row.state)
            if row != life.row:
                life.row = row
                self._note(life, outcome, moved=False)

    def _absent(self, id: str, life: _Life, outcome: Outcome, now: float, at: float) -> None:
        times, ended_for_s = self.times, now - life.resolved
        if life.row.state is AlertState.PENDING and life.seen - life.began >= times.seen_s:
            life.row = replace(life.row, state=AlertState.RESOLVED, resolved_at=at, passed=True)
            life.resolved = now
            self._note(life, outcome, moved=False)
        elif life.row.state is AlertState.PENDING:
            del self._lives[id]
            outcome.gone.append(id)
        elif life.row.state is AlertState.RESOLVED:
            if ended_for_s >= (times.keep_passed_s if life.row.passed else times.keep_resolved_s):
                del self._lives[id]
                outcome.gone.append(id)
        elif self._is_certain(life) or (now - life.seen >= self.times.hold_s and now >= self._settled):
            life.row = replace(life.row, state=AlertState.RESOLVED, resolved_at=at)
            life.resolved = now
            self._note(life, outcome, moved=True)

    def _is_certain(self, life: _Life) -> bool:
        rule = self._rules.get(life.row.rule)
        return rule is not None and rule.certain

    def _tell(self, life: _Life, world: World, outcome: Outcome, now: float, at: float) -> None:
        row = life.row
        if row.silenced_until_at and row.silenced_until_at <= at:
            life.row = row = _silenced(row, 0.0, "", "")
            self._note(life, outcome, moved=True)
        run, uuid = ("", "") if world.run is None else (world.run.name, world.run.uuid)
        if row.state is AlertState.RESOLVED and life.heard:
            life.heard = False
            outcome.notify.append(Notification("resolved", row, run, uuid))
        elif row.state is AlertState.FIRING and not row.silenced_until_at and row.severity is not Severity.INFO:
            if life.notified is None:
                outcome.notify.append(Notification("firing", row, run, uuid))
            elif row.severity is Severity.PAGE and now - life.notified >= self.times.repeat_s:
                outcome.notify.append(Notification("repeated", row, run, uuid))
            else:
                return
            life.notified, life.heard = now, True

    def _note(self, life: _Life, outcome: Outcome, *, moved: bool) -> None:
        outcome.changed = [row for row in outcome.changed if row.id != life.row.id]
        outcome.changed.append(life.row)
        if moved:
            outcome.moved.add(life.row.id)

    def _find(self, id: str) -> _Life:
        life = self._lives.get(id)
        if life is None:
            near = difflib.get_close_matches(id, [*self._lives, *self._rules], 1)
            raise UnknownNameError(
                f"There is no alert {id!r}{f'; did you mean {near[0]!r}?' if near else '.'}",
                hint="`agentrl alerts list --all` shows them all.",
            )
        return life


def _active(row: AlertRow) -> bool:
    return row.state in (AlertState.FIRING, AlertState.ACKNOWLEDGED)


def _row(rule: Rule, finding: Finding, id: str, at: float) -> AlertRow:
    return AlertRow(
        id=id,
        rule=rule.name,
        subject=finding.subject,
        severity=finding.severity or rule.severity,
        state=AlertState.PENDING,
        sentence=finding.sentence,
        since_at=at,
        evidence=finding.evidence,
        suggest=finding.suggest,
    )


def _renewed(row: AlertRow, rule: Rule, finding: Finding, *, state: AlertState) -> AlertRow:
    return replace(
        row,
        state=state,
        severity=finding.severity or rule.severity,
        sentence=finding.sentence,
        evidence=finding.evidence,
        suggest=finding.suggest,
    )


def _silenced(row: AlertRow, until_at: float, who: str, why: str) -> AlertRow:
    return replace(
        row,
        silenced_until_at=until_at,
        silenced_by=who if until_at else "",
        silence_why=why if until_at else "",
    )
