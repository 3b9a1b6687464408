"""Decides which peers are silent for too long, and which make no progress.

Invariants:
- A peer in an announced phase is judged by the deadline of the phase alone, as long as its heartbeats arrive or its
  host agent reports that it lives: code that holds the GIL silences its heartbeat too.
- The deadline of a phase counts from its start or its last progress.
- If the check itself was late, all leases are extended by the delay.
- A peer that may still be connecting again is suspect, and never hangs because of its silence.

A check looks at silent and unusual leases only, so ten thousand healthy ones cost nothing.
"""

from __future__ import annotations

import enum
import itertools
from collections import OrderedDict
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
    """Holds the facts about one peer that sends heartbeats."""

    last_received: float
    progress: int = 0
    progressed: float = 0.0
    phase: str = ""
    phase_began: float = 0.0
    at_most_s: float | None = None
    loop_lag_s: float = 0.0
    health: Health = Health.WELL
    connects_until: float = 0.0
    """Until then its silence may be due to its connection."""

    @property
    def phase_ends(self) -> float | None:
        """The time at which the present phase is overdue; None outside any phase with a deadline."""
        if not self.phase or self.at_most_s is None:
            return None
        return max(self.phase_began, self.progressed) + self.at_most_s


class Leases:
    """All peers that send heartbeats: units and host agents alike."""

    def __init__(self, suspect_after_s: float, dead_after_s: float) -> None:
        self.suspect_after_s = suspect_after_s
        self.dead_after_s = dead_after_s
        self._leases: OrderedDict[str, Lease] = OrderedDict()
        """The peer with the oldest heartbeat comes first."""
        self._unusual: set[str] = set()
        """Names of peers whose health depends on more than silence: inside a phase, with a late event loop, or not
        well.
        """

    def __contains__(self, name: str) -> bool:
        return name in self._leases

    def __len__(self) -> int:
        return len(self._leases)

    def get(self, name: str) -> Lease | None:
        return self._leases.get(name)

    def begin(self, name: str, now: float, health: Health = Health.WELL) -> Lease:
        """`health` is the earlier verdict on a peer that is new here; a peer that was unwell becomes well with its next
        heartbeat."""
        lease = self._leases.get(name)
        if lease is None:
            last_received = now if health is Health.WELL else now - self.suspect_after_s
            self._leases[name] = Lease(last_received=last_received, progressed=now, health=health)
            self._unusual.add(name)
            return self._leases[name]
        self._received(name, lease, now)
        return lease

    def connects_again(self, name: str, now: float, within_s: float) -> None:
        """Note that the network of the peer is back, so its connection will return."""
        if (lease := self._leases.get(name)) is not None:
            lease.connects_until = now + within_s

    def is_reporting(self, name: str, now: float) -> bool:
        """Whether the heartbeats of the peer arrive."""
        lease = self._leases.get(name)
        return lease is not None and now - lease.last_received < self.suspect_after_s

    def end(self, name: str) -> None:
        self._leases.pop(name, None)
        self._unusual.discard(name)

    def _received(self, name: str, lease: Lease, now: float) -> None:
        lease.last_received = now
        self._leases.move_to_end(name)

    def beat(self, name: str, now: float, *, progress: int = 0, loop_lag_s: float = 0.0) -> None:
        """Take in a heartbeat. This is the hot path: it runs for every heartbeat of every peer."""
        lease = self._leases.get(name)
        if lease is None:
            return
        lease.last_received = now
        self._leases.move_to_end(name)
        if progress != lease.progress:
            lease.progress, lease.progressed = progress, now
        lease.loop_lag_s = loop_lag_s
        if loop_lag_s >= self.suspect_after_s:
            self._unusual.add(name)

    def phase(self, name: str, now: float, *, phase: str, age_s: float, at_most_s: float | None) -> None:
        """Take in the phase that the peer reported, and its beginning."""
        lease = self._leases.get(name)
        if lease is None:
            return
        self._received(name, lease, now)
        self._unusual.add(name)
        lease.phase, lease.phase_began, lease.at_most_s = phase, now - age_s, at_most_s

    def progress(self, name: str, now: float, *, progress: int, age_s: float) -> None:
        """Take in the progress that the peer reported, and its time. An earlier report may have been lost."""
        lease = self._leases.get(name)
        if lease is not None:
            lease.progress, lease.progressed = progress, now - age_s

    def extend_all(self, by_s: float, now: float) -> None:
        """Extend all leases by the delay of this check.

        No time lies in the future afterwards: a peer that sent a heartbeat during the delay would otherwise hide the
        silence of peers that send one later.
        """
        for lease in self._leases.values():
            lease.last_received = min(lease.last_received + by_s, now)
            lease.progressed = min(lease.progressed + by_s, now)
            lease.phase_began = min(lease.phase_began + by_s, now)

    def scan(self, now: float, unseen: Collection[str] = ()) -> Iterator[Finding]:
        """Return the peers whose health changed since the last check. No host agent can report on `unseen` peers."""
        suspect_after_s, well = self.suspect_after_s, Health.WELL
        alarm = now - suspect_after_s
        silent = itertools.takewhile(lambda name: self._leases[name].last_received < alarm, self._leases)
        for name in sorted({*silent, *self._unusual}):
            lease = self._leases[name]
            recently_well = lease.last_received >= alarm and lease.health is well
            if recently_well and not lease.phase and lease.loop_lag_s < suspect_after_s:
                self._unusual.discard(name)
                continue
            self._unusual.add(name)
            health, because = self._judge(lease, now, unseen=name in unseen)
            # A peer that hangs is returned at every check: at the first one the unit may have been lost.
            if health is not lease.health or health is Health.HUNG:
                lease.health = health
                yield Finding(name, health, because)

    def _judge(self, lease: Lease, now: float, *, unseen: bool) -> tuple[Health, str]:
        silent, lag = now - lease.last_received, lease.loop_lag_s
        ends = lease.phase_ends
        if ends is not None and not (unseen and silent >= self.suspect_after_s):
            if now <= ends:
                return Health.WELL, ""
            stood = now - max(lease.phase_began, lease.progressed)
            return Health.HUNG, f"phase {lease.phase!r} stands still for {stood:.1f} s, {lease.at_most_s:g} s allowed"
        if silent >= self.dead_after_s and now >= lease.connects_until:
            return Health.HUNG, f"silent for {silent:.1f} s outside any announced phase"
        if lag >= self.dead_after_s:
            return Health.HUNG, f"its event loop has not turned for {lag:.1f} s outside any announced phase"
        if silent >= self.suspect_after_s:
            return Health.SUSPECT, f"silent for {silent:.1f} s"
        if lag >= self.suspect_after_s:
            return Health.SUSPECT, f"its event loop has not turned for {lag:.1f} s"
        return Health.WELL, ""
