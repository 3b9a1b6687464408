"""The rules that every run has: how units, hosts and the run itself can be unwell.

Invariants: a healthy run is silent for as long as it lives; every finding carries evidence and an `agentrl` command
that cures it or shows more; ages that decide are the engine's (`for_s`), never differences of wall-clock times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from agentrl.control.alerts import data_rules
from agentrl.control.alerts.learning_rules import OUT_OF_BAND, nothing_trained
from agentrl.control.alerts.lifecycle import Finding, Rule, World
from agentrl.control.state.trends import Trend
from agentrl.formatting.amounts import age, counted, size
from agentrl.formatting.sentences import ended
from agentrl.protocol.rows import HostRow, RunRow, Severity, UnitRow, UnitState

Check = Callable[[World, Collection[str], float], Iterable[Finding]]

LAST_WORDS_CHARS = 300
GIB = 1 << 30
MIB = 1 << 20

RESTARTING_DEATHS = 3
RESTARTING_CLEAR = 1
NEVER_READY_STARTS = 3
DISK_LOW_BYTES = 2 * GIB
DISK_CLEAR_BYTES = 3 * GIB
DISK_FILLS_S = 86_400.0
DISK_FILLS_CLEAR_S = 108_000.0
DISK_FILLS_PAGE_S = 7200.0
GROWTH_MIN_BYTES = 64 * MIB
"""Growth over the window that is worth a person's time ..."""
GROWTH_MIN_SHARE = 0.1
"""... and which share of what was there it has to be."""
GROWTH_FIT = 0.8
GROWTH_RECENT_SHARE = 0.75
"""The last third must still grow at this share of the whole window's pace: warm-ups and caches level off."""


@dataclass(frozen=True)
class BuiltIn:
    """A rule made of a plain function."""

    name: str
    severity: Severity
    for_s: float
    _check: Check
    certain: bool = False

    def check(self, world: World, alerting: Collection[str], now: float) -> Iterable[Finding]:
        return self._check(world, alerting, now)


def default_rules(disable: Iterable[str] = (), *, memory_window_s: float = 3600.0) -> list[Rule]:
    """All built-in rules but the disabled ones. Their names are those that the configuration knows."""
    off = set(disable)
    rules: tuple[Rule, ...] = (
        BuiltIn("unit-fatal", Severity.PAGE, 0.0, _fatal, certain=True),
        BuiltIn("unit-restarting", Severity.WARNING, 0.0, _restarting),
        BuiltIn("unit-never-ready", Severity.WARNING, 20.0, _never_ready),
        BuiltIn("unit-lost", Severity.WARNING, 5.0, _lost),
        BuiltIn("unit-hung", Severity.WARNING, 30.0, _hung),
        BuiltIn("unit-pending", Severity.WARNING, 60.0, _pending),
        # Half a window (half an hour): the end of a warm-up looks like a leak for some minutes.
        BuiltIn("unit-memory-grows", Severity.WARNING, memory_window_s / 2, _memory_grows),
        BuiltIn("host-silent", Severity.WARNING, 10.0, _host_silent),
        BuiltIn("host-lost", Severity.PAGE, 0.0, _host_lost),
        BuiltIn("host-disk-low", Severity.WARNING, 10.0, _disk_low),
        BuiltIn("host-disk-fills", Severity.WARNING, 0.0, _disk_fills),
        BuiltIn("host-cannot-write", Severity.PAGE, 0.0, _cannot_write),
        BuiltIn("host-strays", Severity.WARNING, 30.0, _strays),
        BuiltIn("journal-full", Severity.PAGE, 0.0, _JOURNAL_FULL),
        BuiltIn("not-listening", Severity.WARNING, 0.0, _NOT_LISTENING),
        BuiltIn("not-recording", Severity.WARNING, 0.0, _NOT_RECORDING),
        # Who overstays a deadline by a moment is about to be ended for it.
        BuiltIn("no-progress", Severity.WARNING, 15.0, _no_progress),
        BuiltIn("no-step", Severity.WARNING, 0.0, data_rules.no_step),
        BuiltIn("engine-lags", Severity.WARNING, 60.0, data_rules.engine_lags),
        BuiltIn("version-rejected", Severity.WARNING, 0.0, data_rules.version_rejected),
        BuiltIn("canary-differs", Severity.WARNING, 0.0, data_rules.canary_differs),
        BuiltIn("tool-server-left-alone", Severity.WARNING, 5.0, data_rules.breaker_open),
        BuiltIn("tool-fails", Severity.WARNING, 10.0, data_rules.tool_fails),
        BuiltIn("held-out-trained", Severity.WARNING, 0.0, data_rules.held_out_trained),
        BuiltIn("warm-up-unused", Severity.WARNING, 0.0, data_rules.warmup_unused),
        BuiltIn("learning-nothing", Severity.WARNING, 0.0, nothing_trained),
        *OUT_OF_BAND,
    )
    return [rule for rule in rules if rule.name not in off]


# ---- units ----


def _fatal(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    for name, unit in world.units.items():
        if unit.state is UnitState.FATAL:
            yield Finding(
                name,
                f"{name} is fatal and will not be started again: {ended(_reason(unit))}",
                (*_ends(unit), *_last_words(world, unit), f"When the cause is removed: agentrl restart {name}"),
                _log_of_the_end(world, unit),
            )


def _restarting(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    for name, unit in world.units.items():
        least = RESTARTING_CLEAR if name in alerting else RESTARTING_DEATHS - 1
        if unit.desired and unit.deaths_in_window > least and unit.state is not UnitState.FATAL:
            yield Finding(
                name,
                f"{name} keeps dying: {counted(unit.deaths_in_window, 'times')} lately.",
                (*_ends(unit), f"now: {unit.state}, {_reason(unit)}"),
                _log_of_the_end(world, unit),
            )


def _never_ready(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    trying = (UnitState.STARTING, UnitState.STOPPING, UnitState.BACKOFF)
    for name, unit in world.units.items():
        in_vain = unit.desired and unit.state in trying and unit.attempts >= NEVER_READY_STARTS
        if in_vain and unit.deaths_in_window == 0:
            yield Finding(
                name,
                f"{name} was started {counted(unit.attempts, 'times')} and never became ready.",
                (*_ends(unit), f"now: {unit.state}, {_reason(unit)}"),
                _log_of_the_end(world, unit),
            )


def _lost(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    for name, unit in world.units.items():
        if unit.state is UnitState.LOST:
            yield Finding(
                name,
                f"{name} is lost with its host {unit.host or '(unknown)'}.",
                (
                    f"{name}.{unit.incarnation}, pid {unit.pid}: {_reason(unit)}",
                    "It goes on when its host is heard again. The command is for one that you know to be dead.",
                ),
                f"agentrl stop {name} --force",
            )


def _hung(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    for name, unit in world.units.items():
        if unit.state is UnitState.SUSPECT:
            doing = f"phase {unit.phase}, " if unit.phase else ""
            yield Finding(
                name,
                f"{name} may hang: {ended(_reason(unit))}",
                (f"last account of itself: {doing}progress {unit.progress}, status {unit.status or '(none)'}",),
                "agentrl stacks",
            )


def _pending(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    # Who waits for somebody that starts has time: a start has a deadline and, if it fails, an alert of its own.
    starting = {name for name, unit in world.units.items() if unit.state is UnitState.STARTING}
    coming = {link.who for chain in world.chains if chain.culprit in starting for link in chain.links}
    for name, unit in world.units.items():
        if unit.state is UnitState.PENDING and unit.desired and not unit.paused and name not in coming:
            yield Finding(
                name, f"{name} is wanted and not started: {ended(_reason(unit))}", (_reason(unit),), "agentrl why"
            )


def _memory_grows(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    for name, unit in world.units.items():
        trend = world.metrics.memory_trend(name)
        if trend is not None and _grows(trend, standing=name in alerting):
            yield Finding(
                name,
                f"The memory of {name} grows by {size(trend.slope_per_h)} per hour.",
                tuple(_growth(trend, unit, world.hosts.get(unit.host))),
                f"agentrl restart {name}",
            )


def _grows(trend: Trend, *, standing: bool) -> bool:
    grown = trend.slope_per_h * trend.window_s / 3600
    needed = max(GROWTH_MIN_BYTES, GROWTH_MIN_SHARE * trend.first)
    # A standing alert ends only when growth has clearly stopped, not when it wavers around the threshold.
    ease = 0.5 if standing else 1.0
    return (
        grown >= needed * ease
        and trend.fit >= GROWTH_FIT * ease
        and trend.recent_slope_per_h >= GROWTH_RECENT_SHARE * ease * trend.slope_per_h
    )


def _growth(trend: Trend, unit: UnitRow, host: HostRow | None) -> Iterator[str]:
    yield (
        f"{size(trend.first)} -> {size(trend.last)} in {age(trend.window_s)}, "
        f"a straight line explains {trend.fit:.0%} of it"
    )
    yield f"in the last third: {size(trend.recent_slope_per_h)} per hour; {counted(unit.processes, 'processes')}"
    if host is not None and host.facts.memory_bytes:
        left = max(0, host.facts.memory_bytes - host.memory_used_bytes)
        enough_s = 3600 * left / trend.slope_per_h
        yield f"{host.host} has {size(left)} left: enough for {age(enough_s)} at this pace"


# ---- hosts ----


def _host_silent(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    for name, host in world.hosts.items():
        if host.state == "silent":
            yield Finding(
                name,
                f"The host agent of {name} is silent.",
                (f"{counted(host.units, 'units')} there",),
                "agentrl status",
            )


def _host_lost(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    for name, host in world.hosts.items():
        if host.state == "lost":
            there = [unit for unit in world.units.values() if unit.host == name]
            lost = sum(unit.state is UnitState.LOST for unit in there)
            others = any(other.state == "up" for other in world.hosts.values())
            yield Finding(
                name,
                f"The host agent of {name} is not heard: {lost} of {counted(len(there), 'units')} lost there.",
                (
                    f"agent pid {host.agent_pid}; what is not lost speaks for itself",
                    "drain gives its units to other hosts" if others else "there is no other host to move them to",
                ),
                f"agentrl drain --host {name}" if others else "agentrl doctor",
            )


def _disk_low(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    for name, host in world.hosts.items():
        least = DISK_CLEAR_BYTES if name in alerting else DISK_LOW_BYTES
        # 0 means that the agent has not reported yet; a disk that is really full is another rule's.
        if 0 < host.disk_free_bytes < least:
            yield Finding(
                name,
                f"The disk of {name} is nearly full: {size(host.disk_free_bytes)} left.",
                (f"alert below {size(DISK_LOW_BYTES)}, over {size(DISK_CLEAR_BYTES)}",),
                "agentrl doctor",
            )


def _disk_fills(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    for name, host in world.hosts.items():
        left_s = host.disk_full_in_s
        most_s = DISK_FILLS_CLEAR_S if name in alerting else DISK_FILLS_S
        if left_s is None or left_s > most_s:
            continue
        full_at = time.strftime("%H:%M", time.localtime(now + left_s))
        yield Finding(
            name,
            f"The disk of {name} will be full at {full_at}, in {age(left_s)}, if it goes on like this.",
            (f"{size(host.disk_free_bytes)} free", f"alert below {age(DISK_FILLS_S)}"),
            "agentrl doctor",
            Severity.PAGE if left_s < DISK_FILLS_PAGE_S else None,
        )


def _cannot_write(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    for name, host in world.hosts.items():
        if host.disk_full:
            yield Finding(
                name,
                f"The host agent of {name} cannot write: nothing new is started there.",
                (host.disk_full, f"{size(host.disk_free_bytes)} free"),
                "agentrl doctor",
            )


def _strays(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    for name, host in world.hosts.items():
        if host.strays:
            yield Finding(
                name,
                f"On {name} the run has {counted(len(host.strays), 'processes')} of no living unit.",
                tuple(f"pid {stray.pid} {stray.command} ({stray.why})" for stray in host.strays[:10]),
                "agentrl events --kind incident",
            )


# ---- the run ----


@dataclass(frozen=True)
class _Cannot:
    """The coordinator itself cannot do something; the row of the run says why."""

    why: Callable[[RunRow], str]
    sentence: str
    """`{run}` is replaced."""

    def __call__(self, world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
        if world.run is not None and (why := self.why(world.run)):
            yield Finding(world.run.name, self.sentence.format(run=world.run.name), (why,), "agentrl doctor")


_JOURNAL_FULL = _Cannot(
    lambda run: run.journal_full, "The journal cannot be written: commands are refused until it can."
)
_NOT_LISTENING = _Cannot(
    lambda run: run.not_listening,
    "Other hosts cannot reach the coordinator of {run}; everything on this host goes on.",
)
_NOT_RECORDING = _Cannot(
    lambda run: run.not_recording,
    "What happens in {run} is not recorded now, so it cannot be replayed; the run itself goes on.",
)


def _no_progress(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    for chain in world.chains:
        late = [link for link in chain.links if link.overdue]
        if late:
            circle = chain.because.startswith("a circle")
            because = f"{'stands in ' if circle else ''}{ended(chain.because)}"
            yield Finding(
                chain.culprit,
                f"Units wait too long for {chain.culprit}, which {because}",
                (chain.sentence, *(f"{link.who} waits for {link.on}, {link.age_s:.0f} s" for link in late[:5])),
                "agentrl why",
            )


# ---- words ----


def _log_of_the_end(world: World, unit: UnitRow) -> str:
    """The life that ended is the newest one, unless another has begun since. What was never started wrote nothing."""
    if unit.could_not_start:
        # For good where its program is not there; for now where its host has no room.
        if unit.state is UnitState.BACKOFF or world.run is None:
            return "agentrl doctor"
        return f"agentrl config check --run {world.run.name}"
    begun = unit.state not in (UnitState.FATAL, UnitState.BACKOFF)
    return f"agentrl logs {unit.unit}{' --previous' if begun else ''}"


def _reason(unit: UnitRow) -> str:
    return unit.reason or "no reason is known"


def _ends(unit: UnitRow) -> Iterator[str]:
    if unit.last_exit is not None:
        yield f"last end: {unit.last_exit}"
    yield f"{counted(unit.restarts, 'unplanned deaths')} since it was last wanted anew, {unit.deaths_in_window} lately"


def _last_words(world: World, unit: UnitRow) -> Iterator[str]:
    """The last line that the life that ended wrote: most programs say there what was wrong."""
    incident = world.incidents.get(f"{unit.unit}.{unit.incarnation}")
    said = [line.strip() for line in incident.tail if line.strip()] if incident is not None else []
    if said:
        yield f"last line of its log: {said[-1][:LAST_WORDS_CHARS]}"
