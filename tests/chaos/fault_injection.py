"""Injects faults into a run, waits for recovery, and logs both.

Invariants: each fault is followed until its victim works again, which only the victim itself can show (a lease, a
service, a lineage with its first version); a victim that does not recover in time fails the test.
"""

from __future__ import annotations

import random
import time
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec

from agentrl.protocol.rows import UnitState
from tests.chaos.processes import Process, Role
from tests.chaos.run_under_test import LEADS, RunUnderTest
from tests.chaos.store_reader import AwayError

BACK_WITHIN_S = 300.0
ASKED_AFTER_S = 30.0
LOOK_EVERY_S = 0.1
Sign = Callable[[], bool]


class ChaosError(AssertionError):
    """A victim did not recover, or a state was not reached."""


@dataclass(slots=True)
class Pending:
    """A victim that has to recover."""

    victim: str
    role: Role
    unit: str
    since: float
    sign: Sign


@dataclass(slots=True)
class FaultInjector:
    run: RunUnderTest
    chance: random.Random
    file: Path
    began: float = field(default_factory=time.monotonic)
    pending: list[Pending] = field(default_factory=list)
    recoveries: dict[Role, list[float]] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)

    # ---- the log ----

    def log(self, text: str) -> None:
        line = f"{time.monotonic() - self.began:7.1f} s  {text}"
        print(line, flush=True)
        with self.file.open("a") as file:
            file.write(line + "\n")

    def count(self, name: str) -> None:
        self.faults[name] = self.faults.get(name, 0) + 1

    def figures(self) -> list[str]:
        """Recoveries by role: count, median, maximum."""
        return [
            f"{role}: {len(times)} deaths, recovered after {median(times):.1f} s, at most {max(times):.1f} s"
            for role, times in sorted(self.recoveries.items())
        ]

    # ---- victims ----

    def pick(self, role: Role, unit: str = "") -> Process:
        """A random process of this role, or of this unit. Waits until there is one."""
        found: list[Process] = []

        def there() -> bool:
            found[:] = self.run.find_processes(role, lambda one: unit in ("", one.unit))
            return bool(found)

        self.until(there, f"a living {unit or role}", within_s=BACK_WITHIN_S)
        return self.chance.choice(found)

    # ---- faults ----

    def kill(self, victim: Process) -> bool:
        """Kills a process and expects its recovery. Returns False if it was dead already."""
        sign = self._sign(victim)
        if not victim.kill():
            return False
        self.log(f"killed {victim}")
        self.pending.append(Pending(str(victim), victim.role, victim.unit, time.monotonic(), sign))
        return True

    def expect_recovery(self, victim: Process) -> None:
        """Expects the recovery of a process that ends by itself or by its supervisor."""
        self.pending.append(Pending(str(victim), victim.role, victim.unit, time.monotonic(), self._sign(victim)))

    # ---- waiting ----

    def look(self) -> None:
        """Notes recovered victims. Raises LostError if one is too late."""
        for one in list(self.pending):
            took_s = time.monotonic() - one.since
            if _holds(one.sign):
                self.pending.remove(one)
                self.recoveries.setdefault(one.role, []).append(took_s)
                self.log(f"  recovered after {took_s:.1f} s: {one.victim}")
            elif took_s > BACK_WITHIN_S:
                raise ChaosError(f"{one.victim} did not recover within {BACK_WITHIN_S:g} s: {self._standing(one)}")
            elif took_s > ASKED_AFTER_S and self._standing(one).startswith(UnitState.FATAL):
                raise ChaosError(f"{one.victim} will not recover: {self._standing(one)}")

    def until(self, condition: Sign, what: str, *, within_s: float, every_s: float = LOOK_EVERY_S) -> None:
        """Waits for a condition, and notes recovered victims meanwhile."""
        deadline = time.monotonic() + within_s
        while not _holds(condition):
            if time.monotonic() > deadline:
                raise ChaosError(f"{what}: not within {within_s:g} s")
            self.look()
            time.sleep(every_s)
        self.look()

    def wait_for_recovery(self, *roles: Role) -> None:
        """Waits until all victims, or those of the given roles, have recovered."""
        self.until(
            lambda: not any(one.role in (roles or Role) for one in self.pending),
            "all victims to recover",
            within_s=2 * BACK_WITHIN_S,
        )

    def steps(self, number: int, *, within_s: float) -> None:
        """Waits until this many steps are committed."""
        self.until(
            lambda: self.run.store.committed() >= number, f"{number} committed steps", within_s=within_s, every_s=0.2
        )

    def _standing(self, one: Pending) -> str:
        """State and reason of its unit; empty while there is no coordinator."""
        if not one.unit or any(other.role is Role.COORDINATOR for other in self.pending):
            return ""
        row = self.run.unit_row(one.unit)
        return f"{row.state}: {row.reason}"

    # ---- signs of life ----

    def _sign(self, victim: Process) -> Sign:
        match victim.role:
            case Role.SAMPLER | Role.STEWARD:
                return lambda: self._leased(victim)
            case Role.TRAINER:
                leaders = self.run.find_processes(Role.TRAINER, lambda one: one.unit == LEADS)
                before = max((one.number for one in leaders), default=victim.number)
                return lambda: self._has_a_lineage(before)
            case Role.ENGINE | Role.TOOLBOX:
                return lambda: self._serves(victim)
            case Role.TOOL_SERVER:
                return lambda: self._serves_tools(victim)
            case Role.MONGOD:
                return lambda: self._another(victim) and self.run.store.answers()
            case Role.COORDINATOR:
                return lambda: self._is_written(self.run.state_dir / "coordinator.json", victim)
            case Role.AGENT:
                (file,) = self.run.state_dir.glob("hosts/*/agent.json")
                return lambda: self._is_written(file, victim)

    def _is_written(self, file: Path, victim: Process) -> bool:
        """Whether another living process has written its file."""
        return any(one.pid == _pid_in(file) for one in self.run.find_processes(victim.role) if one.pid != victim.pid)

    def _another(self, victim: Process) -> bool:
        return any(one.pid != victim.pid for one in self.run.find_processes(victim.role))

    def _leased(self, victim: Process) -> bool:
        alive = self.run.store.find("Owner", {"unit": victim.unit, "expired": False})
        return any(_number(owner["_id"]) > victim.number for owner in alive)

    def _serves(self, victim: Process) -> bool:
        found = self.run.store.find("Service", {"unit": victim.unit, "state": "serving"})
        tools = victim.role is not Role.TOOLBOX
        return any(_number(one["_id"]) > victim.number and (tools or "shop" in one["names"]) for one in found)

    def _has_a_lineage(self, before: int) -> bool:
        """Whether the gang trains again after the death of any rank: a later incarnation of rank 0 has published."""
        if self._is_complete():
            return True
        published = {"first_version": {"$type": "number"}, "owner": {"$regex": f"^{LEADS}\\."}}
        return any(_number(lineage["owner"]) > before for lineage in self.run.store.find("Lineage", published))

    def _is_complete(self) -> bool:
        """After the last step a killed trainer has no successor that trains."""
        return self.run.store.committed() >= self.run.steps and not self.run.find_processes(Role.TRAINER)

    def _serves_tools(self, victim: Process) -> bool:
        """Whether another process of this tool server answers, in any toolbox."""
        others = self.run.find_processes(Role.TOOL_SERVER, lambda one: one.pid != victim.pid)
        serving = self.run.store.find("Service", {"kind": "toolbox", "state": "serving"}) if others else []
        return any(
            server["state"] == "serving"
            for service in serving
            if service["_id"] in {one.incarnation for one in others}
            for server in self.run.ask_toolbox(service["url"])
        )


def _holds(sign: Sign) -> bool:
    """A sign that cannot be read now is not there yet."""
    try:
        return sign()
    except (AwayError, urllib.error.URLError, OSError, ValueError):
        return False


def _number(incarnation: str) -> int:
    return int(incarnation.rpartition(".")[2])


def _pid_in(file: Path) -> int:
    return int(msgspec.json.decode(file.read_bytes()).get("pid", 0)) if file.exists() else 0
