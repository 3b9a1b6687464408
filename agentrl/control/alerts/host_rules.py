"""Alert rules about hosts: their agents, disks and clocks."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from agentrl.control.alerts import subjects
from agentrl.control.alerts.rule_types import Condition, Finding, RunSnapshot, Threshold
from agentrl.formatting.amounts import age, counted, size
from agentrl.formatting.row_text import clock_text
from agentrl.protocol.rows import Severity, UnitState

DISK_FILLS_S, DISK_FILLS_CLEAR_S, DISK_FILLS_PAGE_S = 86_400.0, 108_000.0, 7200.0
GIB = 1 << 30


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


HOST_RULES = (
    Condition("host-lost", host_lost, severity=Severity.PAGE),
    Threshold(
        "host-disk-low",
        subjects=subjects.hosts,
        # 0 means that the agent has not reported yet; for a disk that is completely full `host-cannot-write` fires.
        value=lambda host: host.disk_free_bytes or None,
        below=2 * GIB,
        clear=3 * GIB,
        sentence="The disk of {subject} is nearly full: {value} left.",
        limits="alert below {threshold}, ends at {clear}",
        cure="agentrl doctor",
        in_words=size,
        hold_s=10.0,
    ),
    Condition("host-disk-fills", disk_fills),
    Threshold(
        "host-cannot-write",
        subjects=subjects.hosts,
        value=lambda host: bool(host.disk_full),
        sentence="The host agent of {subject} cannot write to its disk, so it starts no units.",
        evidence=lambda found: (found.row.disk_full, f"{size(found.row.disk_free_bytes)} free"),
        cure="agentrl doctor",
        severity=Severity.PAGE,
    ),
    Threshold(
        "host-strays",
        subjects=subjects.hosts,
        value=lambda host: len(host.strays),
        sentence=lambda found: (
            f"On {found.name} the run has {counted(len(found.row.strays), 'processes')} of no living unit."
        ),
        evidence=lambda found: (f"pid {stray.pid} {stray.command} ({stray.why})" for stray in found.row.strays[:10]),
        cure="agentrl events --kind incident",
        hold_s=30.0,
    ),
    Threshold(
        "host-clock",
        subjects=subjects.hosts,
        value=lambda host: abs(host.clock_off_s),
        sentence=lambda found: f"{found.name}: {clock_text(found.row)}.",
        evidence=lambda found: ("No lease and no deadline depends on it, but times in logs and traces are wrong.",),
        cure="agentrl hosts show {subject}",
        hold_s=10.0,
    ),
)
