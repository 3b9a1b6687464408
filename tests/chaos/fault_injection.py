"""Blows against a run, and the log of them: when, whom, and what came back when.

Invariants: a blow that is struck is followed until what it hit works again, by signs that the victim itself gives (a
lease, a service, a lineage with its first version); a victim that does not come back in time fails the test with the
whole story.
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
from tests.chaos.run_under_test import Arena
from tests.chaos.store_reader import AwayError

BACK_WITHIN_S = 300.0
ASKED_AFTER_S = 30.0
LOOK_EVERY_S = 0.1
Sign = Callable[[], bool]


class LostError(AssertionError):
    """Something did not come back, or a state was not reached."""


@dataclass(slots=True)
class Pending:
    """Somebody who has to come back."""

    whom: str
    role: Role
    unit: str
    since: float
    sign: Sign


@dataclass(slots=True)
class Storm:
    arena: Arena
    chance: random.Random
    file: Path
    began: float = field(default_factory=time.monotonic)
    pending: list[Pending] = field(default_factory=list)
    recoveries: dict[Role, list[float]] = field(default_factory=dict)
    blows: dict[str, int] = field(default_factory=dict)

    # ---- the log ----

    def say(self, text: str) -> None:
        line = f"{time.monotonic() - self.began:7.1f} s  {text}"
        print(line, flush=True)
        with self.file.open("a") as file:
            file.write(line + "\n")

    def struck(self, name: str) -> None:
        self.blows[name] = self.blows.get(name, 0) + 1

    def figures(self) -> list[str]:
        """Recoveries by role: how many, median, longest."""
        return [
            f"{role}: {len(times)} deaths, back after {median(times):.1f} s, at most {max(times):.1f} s"
            for role, times in sorted(self.recoveries.items())
        ]

    # ---- whom ----

    def anybody(self, role: Role) -> Process:
        """One of this role who is there; waits for one."""
        found: list[Process] = []

        def there() -> bool:
            found[:] = self.arena.who(role)
            return bool(found)

        self.until(there, f"a living {role}", within_s=BACK_WITHIN_S)
        return self.chance.choice(found)

    # ---- blows ----

    def kill(self, victim: Process) -> bool:
        """kill -9, and from now on it is waited for. False if it was dead already."""
        sign = self._sign(victim)
        if not victim.kill():
            return False
        self.say(f"killed {victim}")
        self.pending.append(Pending(str(victim), victim.role, victim.unit, time.monotonic(), sign))
        return True

    def expect(self, victim: Process) -> None:
        """It ends by itself, or is ended by its supervisor, and comes back."""
        self.pending.append(Pending(str(victim), victim.role, victim.unit, time.monotonic(), self._sign(victim)))

    # ---- waiting ----

    def look(self) -> None:
        """Who has come back?"""
        for one in list(self.pending):
            took_s = time.monotonic() - one.since
            if _is_there(one.sign):
                self.pending.remove(one)
                self.recoveries.setdefault(one.role, []).append(took_s)
                self.say(f"  back after {took_s:.1f} s: {one.whom}")
            elif took_s > BACK_WITHIN_S:
                raise LostError(f"{one.whom} did not come back within {BACK_WITHIN_S:g} s: {self._standing(one)}")
            elif took_s > ASKED_AFTER_S and self._standing(one).startswith(UnitState.FATAL):
                raise LostError(f"{one.whom} will not come back: {self._standing(one)}")

    def until(self, condition: Sign, what: str, *, within_s: float, every_s: float = LOOK_EVERY_S) -> None:
        """Wait, and note meanwhile who comes back."""
        deadline = time.monotonic() + within_s
        while not _is_there(condition):
            if time.monotonic() > deadline:
                raise LostError(f"{what}: not within {within_s:g} s")
            self.look()
            time.sleep(every_s)
        self.look()

    def calm(self, *roles: Role) -> None:
        """Until everybody is back, or everybody of these roles."""
        self.until(
            lambda: not any(one.role in (roles or Role) for one in self.pending),
            "everybody back",
            within_s=2 * BACK_WITHIN_S,
        )

    def steps(self, number: int, *, within_s: float) -> None:
        """Until so many steps stand."""
        self.until(
            lambda: self.arena.books.committed() >= number, f"{number} committed steps", within_s=within_s, every_s=0.2
        )

    def _standing(self, one: Pending) -> str:
        """What its supervisor says of it; nothing, while there is none."""
        if not one.unit or any(other.role is Role.COORDINATOR for other in self.pending):
            return ""
        row = self.arena.unit_row(one.unit)
        return f"{row.state}: {row.reason}"

    # ---- signs of life ----

    def _sign(self, victim: Process) -> Sign:
        match victim.role:
            case Role.SAMPLER | Role.STEWARD:
                return lambda: self._leased(victim)
            case Role.TRAINER:
                return lambda: self._has_a_lineage(victim)
            case Role.ENGINE | Role.TOOLBOX:
                return lambda: self._serves(victim)
            case Role.TOOL_SERVER:
                return lambda: self._serves_tools(victim)
            case Role.MONGOD:
                return lambda: self._another(victim) and self.arena.books.answers()
            case Role.COORDINATOR:
                return lambda: self._is_written(self.arena.state_dir / "coordinator.json", victim)
            case Role.AGENT:
                (file,) = self.arena.state_dir.glob("hosts/*/agent.json")
                return lambda: self._is_written(file, victim)

    def _is_written(self, file: Path, victim: Process) -> bool:
        """Another one, who is there, has said where it is."""
        return any(one.pid == _pid_in(file) for one in self.arena.who(victim.role) if one.pid != victim.pid)

    def _another(self, victim: Process) -> bool:
        return any(one.pid != victim.pid for one in self.arena.who(victim.role))

    def _leased(self, victim: Process) -> bool:
        alive = self.arena.books.find("Owner", {"unit": victim.unit, "expired": False})
        return any(_number(owner["_id"]) > victim.number for owner in alive)

    def _serves(self, victim: Process) -> bool:
        found = self.arena.books.find("Service", {"unit": victim.unit, "state": "serving"})
        tools = victim.role is not Role.TOOLBOX
        return any(_number(one["_id"]) > victim.number and (tools or "shop" in one["names"]) for one in found)

    def _has_a_lineage(self, victim: Process) -> bool:
        if self._is_complete():
            return True
        published = {"first_version": {"$type": "number"}, "owner": {"$regex": f"^{victim.unit}\\."}}
        return any(_number(lineage["owner"]) > victim.number for lineage in self.arena.books.find("Lineage", published))

    def _is_complete(self) -> bool:
        """A trainer that died at the very end has no successor that trains."""
        return self.arena.books.committed() >= self.arena.steps and not self.arena.who(Role.TRAINER)

    def _serves_tools(self, victim: Process) -> bool:
        """Some other process of this server answers, in whichever toolbox."""
        others = self.arena.who(Role.TOOL_SERVER, lambda one: one.pid != victim.pid)
        serving = self.arena.books.find("Service", {"kind": "toolbox", "state": "serving"}) if others else []
        return any(
            server["state"] == "serving"
            for service in serving
            if service["_id"] in {one.incarnation for one in others}
            for server in self.arena.ask_toolbox(service["url"])
        )


def _is_there(sign: Sign) -> bool:
    """What cannot be asked now is not there yet."""
    try:
        return sign()
    except (AwayError, urllib.error.URLError, OSError, ValueError):
        return False


def _number(incarnation: str) -> int:
    return int(incarnation.rpartition(".")[2])


def _pid_in(file: Path) -> int:
    return int(msgspec.json.decode(file.read_bytes()).get("pid", 0)) if file.exists() else 0
