"""Contains the conditions of built-in alert rules that need more than a threshold: trends, wait chains, named metrics.

Invariants:
- A slow process is compared with its own usual pace before it is compared with a fixed limit.
"""

from __future__ import annotations

import math
import re
import shlex
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from agentrl.control.alerts.rule_types import Finding, RunSnapshot, evidence_line, is_outside, trainers
from agentrl.control.state.trends import Trend
from agentrl.formatting.amounts import age, counted, size
from agentrl.formatting.repeated_lines import pattern_of
from agentrl.formatting.sentences import ended
from agentrl.host.repeated_errors import FORGOTTEN_S
from agentrl.protocol.control_commands import WaitChain
from agentrl.protocol.messages import RepeatedError, UnitPart
from agentrl.protocol.rows import HostRow, Severity, UnitRow, UnitState
from agentrl.telemetry import learning_metrics as of
from agentrl.telemetry.control_plane_metrics import Metric
from agentrl.telemetry.data_plane_metrics import (
    BREAKER_OPEN,
    CURVES_DROPPED,
    CURVES_FAILING,
    CURVES_WAITING,
    HELD_OUT_TRAINED,
    REJECTED,
    TOOL_FAILURES,
    named,
    named_in,
)

DISK_FILLS_S, DISK_FILLS_CLEAR_S, DISK_FILLS_PAGE_S = 86_400.0, 108_000.0, 7200.0
GROWTH_MIN_BYTES = 64 << 20
GROWTH_MIN_SHARE = 0.1
"""Memory must grow by this share of its first value and by `GROWTH_MIN_BYTES` within the window."""
GROWTH_FIT = 0.8
GROWTH_RECENT_SHARE = 0.75
"""The last third must grow at this share of the pace of the whole window, because warm-ups and caches level off."""
ENGINE_LAG = 3
TOOL_SHARE, TOOL_CLEAR = 0.2, 0.1
MEMORY_SHARE, MEMORY_CLEAR = 0.9, 0.8
DEATHS_LATELY, DEATHS_CLEAR = 3, 2
"""Recent deaths of a tool server at which an alert begins, and below which it ends."""
MOST_CUT_OFF = 0.5
"""If more attempts than this are cut off at a limit, the limit is the first thing to change."""
COLLAPSE_CLEAR = 0.8
"""An alert about a collapse ends below this, in units of both margins of error."""
MOST_NAMED = 10
"""The most units that an alert about a repeated error names; those that logged it most often come first."""
CAUSE_WITHIN_S = 3600.0
"""A change earlier than this before the fall is not named as its cause."""
NO_SIGNAL = "Groups whose records all score the same teach nothing: the task is too hard, too easy, or scored wrongly."


# ---- subjects, and sentences about them ----


def units_at_work(role: str) -> Callable[[RunSnapshot], Mapping[str, UnitRow]]:
    return lambda snapshot: {
        name: unit
        for name, unit in snapshot.units.items()
        if unit.role == role and unit.state is UnitState.READY and not unit.paused
    }


def reason(unit: UnitRow) -> str:
    return unit.reason or "no reason is known"


def end_evidence(unit: UnitRow) -> Iterator[str]:
    if unit.last_exit is not None:
        yield f"last end: {unit.last_exit}"
    deaths = counted(unit.restarts, "unplanned deaths")
    yield f"{deaths} since it was started or changed by a person, {unit.deaths_in_window} in the restart window"


# ---- units and hosts ----


def pending(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    # A unit that waits for a starting unit needs no alert: the start has its own deadline and alert.
    starting = {name for name, unit in snapshot.units.items() if unit.state is UnitState.STARTING}
    coming = {link.who for chain in snapshot.chains if chain.culprit in starting for link in chain.links}
    for name, unit in snapshot.units.items():
        if unit.state is UnitState.PENDING and unit.desired and not unit.paused and name not in coming:
            sentence = f"{name} should run but is not started: {ended(reason(unit))}"
            waits = [chain for chain in snapshot.chains if any(link.who == name for link in chain.links)]
            yield Finding(name, sentence, (reason(unit),), "agentrl why", explained_by=_ends_of(snapshot, waits))


def problems(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for name, unit in snapshot.units.items():
        for thing, sentence in unit.problems.items() if unit.state is UnitState.READY else ():
            subject = f"{name}/{thing.replace(' ', '-')}"
            what = f"{name}: {thing}: {ended(sentence)}"
            yield Finding(subject, what, (f"{name} reports it.",), f"agentrl logs {name}")


def errors_repeat(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    """Find errors that logs repeat: one finding for each error, however many units log it."""
    written: dict[str, list[tuple[str, RepeatedError]]] = {}
    for name, unit in snapshot.units.items():
        for error in unit.repeated_errors:
            written.setdefault(pattern_of(error.text), []).append((name, error))
    for pattern, errors in written.items():
        errors.sort(key=lambda each: -each[1].count)
        worst, most = errors[0]
        logs = f"the log of {worst}" if len(errors) == 1 else f"the logs of {counted(len(errors), 'units')}"
        first, last = min(each.first_at for _, each in errors), max(each.last_at for _, each in errors)
        words = re.match(r"\w[\w. -]*", most.text)
        yield Finding(
            f"{re.sub('[^a-z]+', '-', pattern.lower())[:30].strip('-')}-{zlib.crc32(pattern.encode()):08x}",
            f"An error is in {logs} {counted(sum(each.count for _, each in errors), 'times')}: {ended(most.text)}",
            (
                f"the first at {_clock(first)}, the last at {_clock(last)}",
                *(f"{name}: {counted(each.count, 'times')}" for name, each in errors[:MOST_NAMED]),
                f"ends {age(FORGOTTEN_S)} after the last",
            ),
            f"agentrl logs {worst}" + (f" --grep {shlex.quote(words[0].strip())}" if words else ""),
        )


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def memory_grows(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for name, unit in snapshot.units.items():
        trend = snapshot.metrics.memory_trend(name)
        if trend is not None and _grows(trend, active=name in active):
            yield Finding(
                name,
                f"The memory of {name} grows by {size(trend.slope_per_h)} per hour.",
                tuple(_growth(trend, unit, snapshot.hosts.get(unit.host))),
                f"agentrl restart {name}",
            )


def _grows(trend: Trend, *, active: bool) -> bool:
    grown = trend.slope_per_h * trend.window_s / 3600
    needed = max(GROWTH_MIN_BYTES, GROWTH_MIN_SHARE * trend.first)
    # An active alert ends when the growth has clearly stopped, not when it varies around the threshold.
    ease = 0.5 if active else 1.0
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
        yield f"{host.host} has {size(left)} left: enough for {age(3600 * left / trend.slope_per_h)} at this pace"


def host_lost(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for name, host in snapshot.hosts.items():
        if host.state == "lost":
            there = [unit for unit in snapshot.units.values() if unit.host == name]
            lost = sum(unit.state is UnitState.LOST for unit in there)
            others = any(other.state == "up" for other in snapshot.hosts.values())
            yield Finding(
                name,
                f"The host agent of {name} does not answer: {lost} of {counted(len(there), 'units')} there are lost.",
                (
                    f"agent pid {host.agent_pid}; units that are not lost still report to the coordinator",
                    "a drain moves its units to other hosts" if others else "there is no other host for its units",
                    f"if it is gone for good: agentrl hosts forget {name}",
                ),
                f"agentrl drain --host {name}" if others else "agentrl doctor",
            )


def disk_fills(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for name, host in snapshot.hosts.items():
        left_s = host.disk_full_in_s
        if left_s is not None and left_s <= (DISK_FILLS_CLEAR_S if name in active else DISK_FILLS_S):
            full_at = time.strftime("%H:%M", time.localtime(now + left_s))
            yield Finding(
                name,
                f"The disk of {name} will be full at {full_at}, in {age(left_s)}, at its present pace.",
                (f"{size(host.disk_free_bytes)} free", f"alert below {age(DISK_FILLS_S)}"),
                "agentrl doctor",
                Severity.PAGE if left_s < DISK_FILLS_PAGE_S else None,
            )


# ---- waits and steps ----


def no_progress(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for chain in snapshot.chains:
        overdue = [link for link in chain.links if link.overdue]
        if overdue:
            because = f"{'stands in ' if chain.because.startswith('a circle') else ''}{ended(chain.because)}"
            yield Finding(
                chain.culprit,
                f"Units wait too long for {chain.culprit}, which {because}",
                (chain.sentence, *(f"{link.who} waits for {link.on}, {link.age_s:.0f} s" for link in overdue[:5])),
                "agentrl why",
                explained_by=_ends_of(snapshot, [chain]),
            )


def no_step(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for found in snapshot.standing_still:
        chains = [chain for chain in snapshot.chains if any(link.who == found.unit for link in chain.links)]
        last = "no step was seen" if found.step is None else f"step {found.step:.0f} was the last"
        pace = f"usually one in {found.usual_s:.0f} s" if found.usual_s else last
        why = chains[0].because if chains else found.stage
        sentence = f"{found.unit} has made no step for {age(found.for_s)}{f': {ended(why)}' if why else '.'}"
        evidence = (pace, found.stage, *(chain.sentence for chain in chains[:3]))
        explained_by = (found.unit, *_ends_of(snapshot, chains))
        yield Finding(found.unit, sentence, tuple(filter(None, evidence)), "agentrl why", explained_by=explained_by)


def _ends_of(snapshot: RunSnapshot, chains: Iterable[WaitChain]) -> tuple[str, ...]:
    """The subjects of alerts about the units, tools and tool servers in wait chains."""
    names = {name for chain in chains for name in (chain.culprit, *(link.who for link in chain.links))}
    tools = {name.removeprefix("tool server ").removeprefix("tool ") for name in names if name.startswith("tool ")}
    parts = tools | {tool.partition(".")[0] for tool in tools}
    subjects = {f"{toolbox}/{part}" for toolbox in units_at_work("toolbox")(snapshot) for part in parts}
    return tuple(sorted(subjects | (names & snapshot.units.keys())))


def nothing_trained(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    """Find a run that takes steps and trains nothing, which looks healthy otherwise.

    From ten steps on `learning-no-signal` has better evidence, so no new alert begins here. An active alert stays until
    the trainer reports a step that trained, through restarts and missing reports.
    """
    at_work = trainers(snapshot)
    for name, unit in snapshot.units.items():
        if unit.role != "trainer" or not unit.leads:
            continue
        numbers = snapshot.metrics.values(name)
        steps = numbers.get(of.NOTHING_TRAINED.name)
        stays = name in active and steps != 0
        begins = (
            name in at_work
            and of.ZERO_VARIANCE_LATELY.name not in numbers
            and is_outside(of.NOTHING_TRAINED, numbers, active=False)
        )
        cut_off = numbers.get(of.CUT_OFF.name, 0.0) > MOST_CUT_OFF
        evidence = [f"{of.NOTHING_TRAINED.name} = {steps:.0f}"] if steps else []
        evidence += [evidence_line(of.CUT_OFF, numbers)] if cut_off else []
        if unit.done and (steps or stays):
            sentence, cure = f"{name} has ended, and no step trained anything.", "agentrl steps list"
        elif begins or stays:
            made = f"has made {counted(round(steps), 'steps')}, and none of them" if steps else "has made no step that"
            sentence, cure = f"{name} {made} trained anything.", "agentrl tune temperature"
            if cut_off:
                sentence += f" {numbers[of.CUT_OFF.name]:.0%} of the newest attempts were cut off at a limit."
                cure = "agentrl tune max_tokens"
        else:
            continue
        yield Finding(name, sentence, (*evidence, NO_SIGNAL), cure)


def collapsed(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    """Find evaluations or rewards far below the best of the run.

    An active alert ends when the trainer reports numbers near the best again, so it outlives restarts of the trainer.
    """
    for name, unit in snapshot.units.items():
        numbers = snapshot.metrics.values(name)
        collapse = numbers.get(of.COLLAPSE.name)
        if unit.role != "trainer" or collapse is None:
            if unit.role == "trainer" and name in active:
                waits = f"Learning had collapsed, and {name} has not reported a new evaluation."
                yield Finding(name, waits, ("the alert ends when an evaluation is near the best again",), "agentrl why")
        elif collapse > (COLLAPSE_CLEAR if name in active else 1):
            target = numbers.get(of.ROLLBACK_VERSION.name)
            cure = "agentrl checkpoints list"
            if target is not None:
                cure = f"agentrl rollback --to {target:.0f} --reason 'learning collapsed'"
            cause = _cause(snapshot, numbers)
            sentence = f"{_fall(numbers)}{f', {cause}' if cause else ''}."
            yield Finding(name, sentence, tuple(_collapse_evidence(snapshot, numbers, cause)), cure)


def _fall(numbers: Mapping[str, float]) -> str:
    """Name the larger of two collapses: evaluation may be a little below its best while the reward has collapsed."""
    falls = [("Evaluation", of.EVALUATION_BEST, of.EVALUATION), ("Reward", of.REWARD_BEST, of.REWARD_LATELY)]
    if numbers.get(of.REWARD_COLLAPSE.name, 0.0) >= numbers[of.COLLAPSE.name]:
        falls.reverse()
    for name, best, now in falls:
        if best.name in numbers and numbers.get(now.name, math.inf) < numbers[best.name]:
            return f"{name} fell from {numbers[best.name]:.2f} to {numbers[now.name]:.2f}"
    return "Learning has collapsed"


def _cause(snapshot: RunSnapshot, numbers: Mapping[str, float]) -> str:
    """The last scientific change before the fall: `3 s after learning_rate 0.0005 -> 0.05 by root`."""
    began_at = numbers.get(of.COLLAPSE_BEGAN.name)
    before = [change for change in snapshot.scientific_changes() if began_at is not None and change.at <= began_at]
    if not before or began_at is None or began_at - before[-1].at > CAUSE_WITHIN_S:
        return ""
    last = before[-1]
    return f"{age(began_at - last.at)} after {last.sentence().replace(':', '', 1)} by {last.who}"


def _collapse_evidence(snapshot: RunSnapshot, numbers: Mapping[str, float], cause: str) -> Iterator[str]:
    if of.EVALUATION_BEST.name in numbers and of.EVALUATION.name in numbers:
        version = numbers.get(of.EVALUATION_BEST_VERSION.name, 0.0)
        margin = numbers.get(of.EVALUATION_MARGIN.name, 0.0)
        yield (
            f"evaluation {numbers[of.EVALUATION.name]:.2f} ± {margin:.2f}; "
            f"the best was {numbers[of.EVALUATION_BEST.name]:.2f} at version {version:.0f}"
        )
    if of.REWARD_BEST.name in numbers and of.REWARD_LATELY.name in numbers:
        yield (
            f"reward of ten steps {numbers[of.REWARD_LATELY.name]:.2f}; the best was {numbers[of.REWARD_BEST.name]:.2f}"
        )
    if cause:
        yield f"began {cause}"
    elif of.COLLAPSE_BEGAN.name in numbers:
        yield "no scientific knob was changed shortly before it"
    else:
        yield "when it began is not known"
    yield "A rollback restores the weights and scientific settings of the checkpoint; it can be undone."


# ---- versions and tools ----


def engine_lags(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    newest = max((unit.weights or 0 for unit in trainers(snapshot).values()), default=0)
    for name, unit in units_at_work("engine")(snapshot).items():
        if unit.weights is not None and newest - unit.weights >= ENGINE_LAG:
            yield Finding(
                name,
                f"{name} serves version {unit.weights}, but version {newest} is published.",
                (f"its status: {unit.status or '(none)'}", f"alert from {ENGINE_LAG} versions on"),
                f"agentrl restart {name}",
            )


def version_rejected(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for steward in units_at_work("steward")(snapshot):
        version = snapshot.metrics.values(steward).get(REJECTED.name, 0.0)
        if version > 0:
            engines = units_at_work("engine")(snapshot).items()
            yield Finding(
                f"v{version:.0f}",
                f"No engine accepts version {version:.0f}, so engines still serve the version before it.",
                tuple(f"{name}: {unit.status}" for name, unit in engines if unit.status) or ("no engine is ready",),
                "agentrl logs engine-0",
            )


def _reported(snapshot: RunSnapshot, role: str, metric: Metric) -> Iterator[tuple[str, str, float]]:
    """Unit, part and value of a metric that units report for each tool, tool server or environment."""
    for name in units_at_work(role)(snapshot):
        for part, value in named_in(snapshot.metrics.values(name), metric):
            yield name, part, value


def breaker_open(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for name, server, is_open in _reported(snapshot, "toolbox", BREAKER_OPEN):
        if is_open > 0:
            failing = [
                f"{tool}: {share:.0%} of its recent calls failed for infrastructure"
                for toolbox, tool, share in _reported(snapshot, "toolbox", TOOL_FAILURES)
                if toolbox == name and tool.startswith(f"{server}.") and share > 0
            ]
            # The breaker refuses later calls, so recent ones do not show the cause.
            cause = [part.status for part in snapshot.units[name].parts if part.name == server and part.status]
            yield Finding(
                f"{name}/{server}",
                f"{name} makes no calls to the tool server {server}: too many of them failed.",
                (
                    *(cause or [snapshot.units[name].status]),
                    *failing,
                    "Tasks that need it are not admitted. The toolbox probes it and continues when it works.",
                ),
                f"agentrl tools errors --filter server={server}",
                explained_by=(f"{name}/{server}",),
            )


def curves_not_written(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for name, program, failing in _reported(snapshot, "trainer", CURVES_FAILING):
        if failing:
            numbers = snapshot.metrics.values(name)
            waiting, dropped = (numbers.get(named(each, program), 0.0) for each in (CURVES_WAITING, CURVES_DROPPED))
            yield Finding(
                f"{name}/{program}",
                f"{program} takes no points of curves from {name}; training itself is not affected.",
                (
                    f"Points that wait: {waiting:.0f}; dropped since the process began: {dropped:.0f}.",
                    "It is tried again at least once a minute. The metrics of all steps are in the store.",
                ),
                f"agentrl logs {name}",
            )


def tool_fails(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for name, tool, share in _reported(snapshot, "toolbox", TOOL_FAILURES):
        subject = f"{name}/{tool}"
        if share > (TOOL_CLEAR if subject in active else TOOL_SHARE):
            yield Finding(
                subject,
                f"{share:.0%} of the recent calls of {tool} failed for infrastructure.",
                (f"alert above {TOOL_SHARE:.0%}, ends at {TOOL_CLEAR:.0%}; a circuit breaker opens above 50 %",),
                f"agentrl logs {name}",
                explained_by=(f"{name}/{tool.partition('.')[0]}",),
            )


def _tool_servers(snapshot: RunSnapshot) -> Iterator[tuple[str, UnitPart]]:
    """The subject of alerts about each tool server, and its state."""
    for name, unit in units_at_work("toolbox")(snapshot).items():
        for part in unit.parts:
            yield f"{name}/{part.name}", part


def tool_memory(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for subject, part in _tool_servers(snapshot):
        if part.memory_share >= (MEMORY_CLEAR if subject in active else MEMORY_SHARE):
            yield Finding(
                subject,
                f"A sandbox of the tool server {part.name} is near its memory limit: {part.memory_share:.0%}.",
                (
                    f"{part.fullest} is the fullest",
                    f"alert from {MEMORY_SHARE:.0%} of tools.{part.name}.sandbox.memory, ends below {MEMORY_CLEAR:.0%}",
                ),
                f"agentrl tools sandboxes --server {part.name}",
            )


def tool_restarts(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for subject, part in _tool_servers(snapshot):
        if part.died_lately >= (DEATHS_CLEAR if subject in active else DEATHS_LATELY):
            yield Finding(
                subject,
                f"Processes of the tool server {part.name} keep dying: {part.died_lately} in five minutes.",
                (f"the last one: {part.last_death}", f"{part.died} since the start of its toolbox"),
                f"agentrl tools logs {part.name}",
            )


def tool_unhealthy(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for subject, part in _tool_servers(snapshot):
        if part.unhealthy:
            yield Finding(
                subject,
                f"The tool server {part.name} runs and does not work: {ended(part.unhealthy)}",
                (part.status,),
                f"agentrl tools restart {part.name}",
                explained_by=(subject,),
            )


def held_out_trained(snapshot: RunSnapshot, active: Collection[str], now: float) -> Iterator[Finding]:
    for name, place, count in _reported(snapshot, "steward", HELD_OUT_TRAINED):
        environment, _, example = place.partition("/")
        if count > 0:
            yield Finding(
                environment,
                f"{count:.0f} held-out prompts of {environment} are trained on too, so its evaluation scores are too "
                "high.",
                (example, "The alert ends when the datasets share no prompt."),
                f"agentrl logs {name} --grep 'is held out' --lines 0",
            )
