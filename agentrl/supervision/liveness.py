"""Who has been silent for how long, and who stands still.

Invariants: a peer inside an announced phase is judged by the phase's deadline alone (code that holds the GIL silences
its heartbeat too), as long as its host agent is there to see that it lives; a phase's deadline counts from its begin or
its last progress; if the judge itself was late, all leases are extended by as much. Looking at ten thousand leases
costs a pass over plain floats.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator

import msgspec


class Health(enum.Enum):
    WELL = enum.auto()
    SUSPECT = enum.auto()
    HUNG = enum.auto()


class Finding(msgspec.Struct, frozen=True):
    name: str
    health: Health
    because: str = ""


class Lease(msgspec.Struct):
    """What is known of one speaking peer."""

    heard: float
    progress: int = 0
    progressed: float = 0.0
    phase: str = ""
    phase_began: float = 0.0
    at_most_s: float | None = None
    loop_lag_s: float = 0.0
    health: Health = Health.WELL

    @property
    def phase_ends(self) -> float | None:
        """When the present phase is overdue; None outside any phase with a deadline."""
        if not self.phase or self.at_most_s is None:
            return None
        return max(self.phase_began, self.progressed) + self.at_most_s


class Leases:
    """All peers that send heartbeats: units and host agents alike."""

    def __init__(self, suspect_after_s: float, dead_after_s: float) -> None:
        self.suspect_after_s = suspect_after_s
        self.dead_after_s = dead_after_s
        self._leases: dict[str, Lease] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._leases

    def __len__(self) -> int:
        return len(self._leases)

    def get(self, name: str) -> Lease | None:
        return self._leases.get(name)

    def begin(self, name: str, now: float, health: Health = Health.WELL) -> Lease:
        """`health` is what whoever judged before thought of a peer that is new here; one that was not well then is so
        once it is heard."""
        lease = self._leases.get(name)
        if lease is None:
            heard = now if health is Health.WELL else now - self.suspect_after_s
            self._leases[name] = Lease(heard=heard, progressed=now, health=health)
            return self._leases[name]
        lease.heard = now
        return lease

    def end(self, name: str) -> None:
        self._leases.pop(name, None)

    def beat(self, name: str, now: float, *, progress: int = 0, loop_lag_s: float = 0.0) -> None:
        """The hot path: every heartbeat of every peer comes through here."""
        lease = self._leases.get(name)
        if lease is None:
            return
        lease.heard = now
        if progress != lease.progress:
            lease.progress, lease.progressed = progress, now
        lease.loop_lag_s = loop_lag_s

    def phase(self, name: str, now: float, *, phase: str, age_s: float, at_most_s: float | None) -> None:
        """The peer told which phase it is in, and since how long."""
        lease = self._leases.get(name)
        if lease is None:
            return
        lease.heard = now
        lease.phase, lease.phase_began, lease.at_most_s = phase, now - age_s, at_most_s

    def progress(self, name: str, now: float, *, progress: int, age_s: float) -> None:
        """The peer told how far it is, and when it last got on: nobody may have been there to see that."""
        lease = self._leases.get(name)
        if lease is not None:
            lease.progress, lease.progressed = progress, now - age_s

    def extend_all(self, by_s: float) -> None:
        """The judge was late by so much: nobody is to pay for it."""
        for lease in self._leases.values():
            lease.heard += by_s
            lease.progressed += by_s
            lease.phase_began += by_s

    def scan(self, now: float, unseen: Collection[str] = ()) -> Iterator[Finding]:
        """Those whose health changed since the last look; of `unseen` ones no host agent knows whether they live."""
        suspect_after_s, well = self.suspect_after_s, Health.WELL
        alarm = now - suspect_after_s
        for name, lease in self._leases.items():
            heard_well = lease.heard >= alarm and lease.health is well
            if heard_well and not lease.phase and lease.loop_lag_s < suspect_after_s:
                continue
            health, because = self._judge(lease, now, unseen=name in unseen)
            # Who hangs is told of at every look: the unit may have been lost when it was told for the first time.
            if health is not lease.health or health is Health.HUNG:
                lease.health = health
                yield Finding(name, health, because)

    def _judge(self, lease: Lease, now: float, *, unseen: bool) -> tuple[Health, str]:
        ends = None if unseen else lease.phase_ends
        if ends is not None:
            if now <= ends:
                return Health.WELL, ""
            stood = now - max(lease.phase_began, lease.progressed)
            return Health.HUNG, f"phase {lease.phase!r} stands still for {stood:.1f} s, {lease.at_most_s:g} s allowed"
        silent, lag = now - lease.heard, lease.loop_lag_s
        if silent >= self.dead_after_s:
            return Health.HUNG, f"silent for {silent:.1f} s outside any announced phase"
        if lag >= self.dead_after_s:
            return Health.HUNG, f"its event loop has not turned for {lag:.1f} s outside any announced phase"
        if silent >= self.suspect_after_s:
            return Health.SUSPECT, f"silent for {silent:.1f} s"
        if lag >= self.suspect_after_s:
            return Health.SUSPECT, f"its event loop has not turned for {lag:.1f} s"
        return Health.WELL, ""
