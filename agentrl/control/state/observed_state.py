"""Holds the newest reports and measurements of every unit and host, and builds the rows of the feed that show them.

Invariants:
- Only this module builds these rows.
- Small changes of measurements do not change a row (the feed of two hundred units must fit 20 kB/s).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from agentrl.config.paths import RunFile
from agentrl.control.state.unit_metrics import MemoryHistory
from agentrl.protocol import messages, rows
from agentrl.protocol.rows import UnitState
from agentrl.protocol.specs import Role
from agentrl.supervision.liveness import Leases
from agentrl.supervision.unit_slots import WITH_PROCESS, GroupState, HostState, Slot, State
from agentrl.supervision.wait_graph import UnitFacts

CPU_CHANGE = 5.0
"""Percentage points by which the CPU use must change to be shown."""
MEMORY_CHANGE = 0.02
"""Share by which memory must change to be shown."""
PROGRESS_EVERY = 5
"""Number of measurements after which progress alone is shown: each heartbeat would be too much for the feed."""


DEVICE_CHANGE = 5.0
"""Percentage points and degrees by which the use of a device must change to be shown."""
CLOCK_OFF_S = 5.0
"""A smaller difference is shown as none, because a measurement may take some seconds to arrive."""
Holders = dict[str, tuple[str, ...]]
"""For each device, the incarnations that hold it."""
COMMAND_CHARS = 500
"""Length of the command line in the row of a group."""


@dataclass(slots=True)
class ObservedUnit:
    """The newest report and measurements of one incarnation."""

    incarnation: int = 0
    report: messages.UnitReport = field(default_factory=messages.UnitReport)
    reported: float = 0.0
    stats: messages.UnitStats | None = None
    quiet: int = 0
    """Number of measurements since the last shown one."""
    progress: int = 0
    """The progress that is shown."""
    memory: MemoryHistory = field(default_factory=MemoryHistory)
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class ObservedHost:
    stats: messages.HostStats | None = None
    agent_pid: int = 0
    agent_start_ticks: int = 0
    clock_off_s: float = 0.0
    """From the newest measurement, which took a moment to arrive."""


class ObservedState:
    """Facts by unit and host, and their rows."""

    def __init__(self, state: State, leases: Leases) -> None:
        self.state = state
        self.leases = leases
        self._units: dict[str, ObservedUnit] = {}
        self._ended: dict[str, ObservedUnit] = {}
        """Facts of the incarnations before the present ones."""
        self.hosts: dict[str, ObservedHost] = {}
        self.awaited_since: dict[str, float] = {}

    def facts(self, slot: Slot) -> ObservedUnit:
        """The facts of the present incarnation; a new one starts without any."""
        found = self._units.get(slot.unit)
        if found is None or found.incarnation != slot.incarnation:
            if found is not None:
                self._ended[slot.unit] = found
            found = self._units[slot.unit] = ObservedUnit(slot.incarnation)
        return found

    def last_report(self, unit: str, incarnation: int) -> messages.UnitReport:
        """The last report of an incarnation that ended; the next incarnation may live already."""
        for facts in (self._units.get(unit), self._ended.get(unit)):
            if facts is not None and facts.incarnation == incarnation:
                return facts.report
        return messages.UnitReport()

    def measured(self, slot: Slot, stats: messages.UnitStats) -> bool:
        """Take in measurements. Returns True if they differ enough to be shown."""
        facts = self.facts(slot)
        facts.quiet += 1
        lease = self.leases.get(slot.unit)
        progress = lease.progress if lease is not None else facts.progress
        repeats = facts.stats is not None and facts.stats.repeated_errors != stats.repeated_errors
        moved = (repeats or progress != facts.progress) and facts.quiet >= PROGRESS_EVERY
        if facts.stats is not None and not moved and not _differs(facts.stats, stats):
            return False
        facts.stats, facts.quiet, facts.progress = stats, 0, progress
        return True

    def idle(self, group: str) -> frozenset[str]:
        """Units that speak and are in no phase: a stop interrupts no work."""
        return frozenset(
            s.unit
            for s in self.state.of_group(group)
            if s.spec is not None and s.spec.speaks and not self.facts(s).report.phase
        )

    # ---- rows ----

    def unit_row(self, slot: Slot, paused: bool) -> rows.UnitRow:
        facts, lease = self.facts(slot), self.leases.get(slot.unit)
        alive = slot.state in WITH_PROCESS
        # A dead incarnation has no measurements; of its report only the version of its weights stays true.
        report = facts.report if alive else messages.UnitReport(weights=facts.report.weights)
        stats = facts.stats if alive and facts.stats else messages.UnitStats(slot.unit, slot.incarnation, processes=0)
        memory = facts.memory if alive else MemoryHistory()
        group = self.state.groups.get(slot.group)
        next_what, next_at = _what_next(slot)
        phase_ends = lease.phase_ends if lease is not None and alive else None
        return rows.UnitRow(
            unit=slot.unit,
            group=slot.group,
            role=group.spec.role.value if group else "",
            state=slot.state,
            reason=slot.reason,
            since_at=slot.since,
            stimulus=slot.stimulus,
            desired=self._is_desired(slot),
            incarnation=slot.incarnation,
            host=slot.host,
            devices=slot.devices,
            rank=slot.rank,
            pid=slot.pid if alive else 0,
            ready_at=slot.ready_since if alive else 0.0,
            next_at=next_at,
            next_what=next_what,
            restarts=slot.restarts,
            deaths_in_window=len(slot.deaths),
            attempts=slot.attempts,
            last_exit=slot.last_exit,
            done=slot.done,
            status=report.status,
            phase=report.phase,
            phase_since_at=lease.phase_began if lease is not None and report.phase else 0.0,
            phase_deadline_at=phase_ends or 0.0,
            progress=lease.progress if lease is not None else 0,
            progress_at=lease.progressed if lease is not None else 0.0,
            heard_at=facts.reported,
            waits=report.waits,
            weights=report.weights,
            serving=report.serving,
            problems=report.problems,
            incomplete=report.incomplete,
            paused=paused,
            cpu_percent=stats.cpu_percent,
            rss_bytes=stats.rss_bytes,
            rss_slope_bytes_per_h=memory.slope_per_h,
            rss_over_time=memory.points,
            rss_over_s=memory.over_s,
            processes=stats.processes,
            metrics=facts.metrics,
            parts=report.parts,
            repeated_errors=stats.repeated_errors,
        )

    def group_row(self, group: GroupState) -> rows.GroupRow:
        wanted = [s for s in self.state.of_group(group.spec.name) if s.wanted]
        states = Counter(rows.COMPLETED if s.done else s.state.value for s in wanted)
        ready = states.pop(UnitState.READY.value, 0)
        return rows.GroupRow(
            name=group.spec.name,
            role=group.spec.role.value,
            desired=0 if self.state.left_alone(group.spec.name) else group.spec.count,
            ready=ready,
            other=dict(sorted(states.items())),
            paused=group.paused or self.state.run.paused,
            command=" ".join(group.spec.command)[:COMMAND_CHARS],
            epoch=group.gang_epoch if group.spec.gang else 0,
            epoch_why=group.gang_why,
        )

    def host_row(
        self, host: HostState, *, units: int, holders: Holders, full_in_s: float | None = None
    ) -> rows.HostRow:
        now = self.hosts.get(host.host, ObservedHost())
        stats = now.stats
        draining = host.host in self.state.run.draining_hosts or self.state.is_leaving(host.host)
        return rows.HostRow(
            host=host.host,
            state="lost" if not host.connected else "draining" if draining else "up",
            since_at=host.since,
            facts=host.facts,
            agent_pid=now.agent_pid,
            units=units,
            cpu_percent=round(stats.cpu_percent / CPU_CHANGE) * CPU_CHANGE if stats else 0.0,
            memory_used_bytes=(stats.memory_used_bytes >> 26) << 26 if stats else 0,
            disk_free_bytes=(stats.disk_free_bytes >> 26) << 26 if stats else 0,
            disk_full=stats.disk_full if stats else "",
            disk_full_in_s=None if full_in_s is None else float(f"{full_in_s:.2g}"),
            draining=draining,
            strays=stats.strays if stats else (),
            devices=tuple(map(_coarse, stats.devices)) if stats else (),
            holders=holders,
            occupied=host.occupied,
            clock_off_s=_clearly_off(now.clock_off_s),
            reason=f"leaves ({host.leaving})" if host.leaving else self.state.awaited.get(host.host, ""),
        )

    def awaited_row(self, host: str, why: str) -> rows.HostRow:
        """The row of a host that a placement starts."""
        return rows.HostRow(host=host, state="starting", since_at=self.awaited_since.get(host, 0.0), reason=why)

    def run_row(self, run_file: RunFile, status: CoordinatorStatus) -> rows.RunRow:
        state, reason = self._run_state(status)
        return rows.RunRow(
            name=run_file.name,
            uuid=run_file.uuid,
            state=state,
            reason=reason,
            desired="up" if self.state.run.up else "down",
            paused=self.state.run.paused,
            run_dir=str(run_file.run_dir),
            started_at=run_file.created_at,
            up_since_at=self.state.run.up_since_at,
            coordinator_started_at=status.started,
            coordinator_pid=status.pid,
            config_source=status.config_source,
            journal_full=status.journal_full,
            not_listening=status.not_listening,
            not_recording=status.not_recording,
            not_exporting=status.not_exporting,
            segment=status.segment,
        )

    def _is_desired(self, slot: Slot) -> bool:
        return slot.wanted and not slot.held and self.state.run.up and not self.state.left_alone(slot.group)

    def _run_state(self, status: CoordinatorStatus) -> tuple[str, str]:
        """The worse of two states: the state of the processes, and the progress of the run."""
        wanted = [s for s in self.state.slots.values() if s.wanted and not self.state.left_alone(s.group)]
        if not self.state.run.up:
            left = [s.unit for s in self.state.slots.values() if not s.tree_gone]
            return ("stopping", f"{_units(len(left), 'has', 'have')} not ended") if left else ("stopped", "")
        bad = [s for s in wanted if not s.held and s.state in _TROUBLE]
        if bad:
            worst = min(bad, key=lambda s: (list(_TROUBLE).index(s.state), s.unit))
            more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            return "degraded", f"{worst.unit} is {worst.state.value}: {worst.reason}{more}"
        ends = "; ".join(f"{s.unit} is {s.reason}" for s in wanted if s.done and s.bye_reason)
        trainers = [s for s in self._trainers() if not self.state.left_alone(s.group)]
        if wanted and all(s.done for s in trainers or wanted):
            return rows.FINISHED, ends or ("training is complete" if trainers else "every job is done")
        reports = {s.unit: self.facts(s).report for s in wanted if s.state is UnitState.READY and not s.held}
        faults = [f"{unit}: {of}: {why}" for unit, report in reports.items() for of, why in report.problems.items()]
        if faults:
            return "degraded", f"{faults[0]}{f' (and {len(faults) - 1} more)' if len(faults) > 1 else ''}"
        if stopped := self._stopped_groups():
            return "degraded", f"{stopped} is stopped: {_WITHOUT[self.state.groups[stopped].spec.role]}"
        coming = [s for s in wanted if not s.held and s.state in (UnitState.PENDING, UnitState.STARTING)]
        if moved := [s for s in coming if s.ghosts]:
            more = f" (and {len(moved) - 1} more)" if len(moved) > 1 else ""
            hosts = ", ".join(sorted({ghost.host for ghost in moved[0].ghosts}))
            return "degraded", f"{moved[0].unit} was lost with host {hosts} and is {moved[0].state.value} again{more}"
        again = [s for s in coming if s.deaths or s.oom_deaths or s.failed_starts]
        if again:
            more = f" (and {len(again) - 1} more)" if len(again) > 1 else ""
            return "degraded", f"{again[0].unit} died and is {again[0].state.value} again{more}"
        if coming:
            return "starting", f"{_units(len(coming), 'is', 'are')} not ready yet"
        if later := [f"{unit}: {report.incomplete}" for unit, report in reports.items() if report.incomplete]:
            return "starting", f"{later[0]}{f' (and {len(later) - 1} more)' if len(later) > 1 else ''}"
        if status.paused:
            return rows.PAUSED, f"no step is taken: {status.paused}"
        if status.standing:
            return rows.STANDING, status.standing
        return "running", rows.ONLY_READ if self.state.run.reading else ends

    def _stopped_groups(self) -> str:
        """The first group that the run needs for its progress and whose units a person has all stopped; empty if there
        is none."""
        for name, group in self.state.groups.items():
            members = [s for s in self.state.of_group(name) if s.wanted and not self.state.left_alone(name)]
            if group.spec.role in _WITHOUT and members and all(s.held for s in members):
                return name
        return ""

    # ---- waits ----

    def trainer_to_come(self) -> str:
        """A trainer that is not ready yet, with its status: `trainer-0 is starting (warm-up: step 3 of 9)`."""
        for slot in self._trainers():
            if slot.state is UnitState.STARTING:
                status = self.facts(slot).report.status
                return f"{slot.unit} is starting{f' ({status})' if status else ''}"
        return ""

    def why_no_steps(self, paused: Callable[[str], bool]) -> str:
        """The reason why the trainer takes no steps, if only a command can change that; empty otherwise."""
        for slot in self._trainers() if self.state.run.up else ():
            if slot.done:
                why = slot.bye_reason.removeprefix("complete: ") or f"{slot.unit} is done"
                return f"no step is taken any more: {why}"
            if slot.state in (UnitState.FATAL, UnitState.STOPPED):
                return f"no step is taken: {slot.unit} is {slot.state.value}"
            if slot.state is UnitState.READY and paused(slot.unit):
                return f"no step is taken: {slot.unit} is paused"
        return ""

    def _trainers(self) -> list[Slot]:
        trains = [name for name, group in self.state.groups.items() if group.spec.role is Role.TRAINER]
        members = [slot for name in trains for slot in self.state.of_group(name)]
        return [slot for slot in members if slot.wanted and self.state.leads(slot)]

    def wait_facts(self, now: float, paused: Callable[[str], bool]) -> dict[str, UnitFacts]:
        """Facts of the units that wait or are waited for. No other unit can be part of a chain."""
        wanted = [slot for slot in self.state.slots.values() if slot.wanted]
        waits = {slot.unit: on for slot in wanted if (on := self._waits_on(slot))}
        named = set[str]().union(*waits.values())
        return {
            slot.unit: self._wait_facts(slot, now, paused(slot.unit))
            for slot in wanted
            if slot.unit in waits or slot.unit in named or slot.group in named
        }

    def _waits_on(self, slot: Slot) -> tuple[str, ...]:
        """The units, groups and resources that a unit waits for."""
        on = tuple(wait.on for wait in waits) if (waits := self.facts(slot).report.waits) else ()
        if slot.state is UnitState.PENDING and (group := self.state.groups.get(slot.group)):
            on += (*group.spec.after, slot.group) if group.spec.gang else group.spec.after
        return on

    def _wait_facts(self, slot: Slot, now: float, paused: bool) -> UnitFacts:
        facts, lease = self.facts(slot), self.leases.get(slot.unit)
        group = self.state.groups.get(slot.group)
        ends = lease.phase_ends if lease is not None else None
        silent = now - lease.last_received if lease is not None else 0.0
        next_what, next_at = _what_next(slot)
        return UnitFacts(
            name=slot.unit,
            group=slot.group,
            state=slot.state,
            reason=slot.reason,
            age_s=max(0.0, now - slot.since),
            waits=facts.report.waits,
            report_age_s=max(0.0, now - facts.reported) if facts.reported else 0.0,
            after=group.spec.after if group else (),
            gang=group is not None and group.spec.gang,
            # A phase allows silence; outside of phases missed heartbeats are shown.
            silent_s=silent if lease is not None and ends is None and silent >= self.leases.suspect_after_s else 0.0,
            stopped=slot.stopped_process,
            paused=paused,
            phase=facts.report.phase,
            status=facts.report.status,
            phase_over_s=max(0.0, now - ends) if ends is not None else 0.0,
            progress_age_s=now - lease.progressed if lease is not None else None,
            next_what=f"{next_what} in {max(0.0, next_at - now):.0f} s" if next_what else "",
        )


@dataclass(slots=True)
class CoordinatorStatus:
    """The state of the coordinator itself in the row of the run."""

    started: float
    pid: int
    config_source: str = ""
    journal_full: str = ""
    not_listening: str = ""
    not_recording: str = ""
    not_exporting: str = ""
    standing: str = ""
    """Which trainer takes no steps, and why; empty while the run makes progress."""
    paused: str = ""
    """Which trainers are paused, and by whom; empty while steps are taken."""
    segment: int = 0


_WITHOUT = {
    Role.STEWARD: "nothing is admitted",
    Role.SAMPLER: "nothing is sampled",
    Role.ENGINE: "nothing is sampled",
    Role.TOOLBOX: "no tool answers",
    Role.TRAINER: "nothing is trained",
}
"""What a run without units of this role cannot do."""
_TROUBLE = {UnitState.FATAL: 0, UnitState.LOST: 1, UnitState.BACKOFF: 2, UnitState.SUSPECT: 3}


def _units(count: int, one: str, more: str) -> str:
    return f"1 unit {one}" if count == 1 else f"{count} units {more}"


def _what_next(slot: Slot) -> tuple[str, float]:
    """The next automatic event of the unit, and its time."""
    if not slot.timer:
        return "", 0.0
    # A unit that speaks can move its deadline by progress in a phase.
    speaks = slot.spec is not None and slot.spec.speaks
    what = {
        UnitState.STARTING: "is given up unless it makes progress" if speaks else "is given up unless ready",
        UnitState.BACKOFF: "restart",
        UnitState.DRAINING: "SIGTERM",
        UnitState.STOPPING: "SIGKILL",
        UnitState.SUSPECT: "is replaced unless well",
        UnitState.READY: "is replaced unless it continues",
    }.get(slot.state, "")
    return (what, slot.timer) if what else ("", 0.0)


def _differs(shown: messages.UnitStats, now: messages.UnitStats) -> bool:
    return (
        abs(now.cpu_percent - shown.cpu_percent) >= CPU_CHANGE
        or abs(now.rss_bytes - shown.rss_bytes) > MEMORY_CHANGE * max(shown.rss_bytes, 1 << 20)
        or now.processes != shown.processes
        or (now.state == "T") != (shown.state == "T")
        or bool(now.repeated_errors) != bool(shown.repeated_errors)
    )


def _clearly_off(seconds: float) -> float:
    """The rounded clock difference, because a row must not change with every measurement."""
    return float(f"{seconds:.2g}") if abs(seconds) >= CLOCK_OFF_S else 0.0


def _coarse(use: messages.DeviceUse) -> messages.DeviceUse:
    return msgspec.structs.replace(
        use,
        memory_used_bytes=(use.memory_used_bytes >> 26) << 26,
        busy_percent=round(use.busy_percent / DEVICE_CHANGE) * DEVICE_CHANGE,
        temperature_c=round(use.temperature_c / DEVICE_CHANGE) * DEVICE_CHANGE,
    )
