"""The order in which units stop when the run goes down, or when a host leaves.

Invariants:
- A unit stops after the units that depend on it.
- A unit ends before its host does, with time for SIGTERM after its drain.
"""

from __future__ import annotations

from agentrl.supervision.unit_slots import Slot, State


class StopOrder:
    def __init__(self, state: State) -> None:
        self._state = state
        self._least: dict[str, int] = {}
        """The least stop rank of the units that have not ended: of all units, and of the units of each host. Computed
        once between two changes."""
        self.waiting: set[str] = set()
        """Units that stop after others."""

    def changed(self) -> None:
        """Note that a unit ended, started, was lost or was found."""
        self._least.clear()

    def is_next(self, slot: Slot) -> bool:
        """Return whether the unit may stop now, and remember it if not."""
        run, state = self._state.run, self._state
        leaving = run.up and state.is_leaving(slot.host)
        at_once = run.stop_now or (run.up and not leaving)
        if at_once or slot.spec is None or slot.spec.stop_rank <= self._least_rank(slot.host if leaving else ""):
            self.waiting.discard(slot.unit)
            return True
        self.waiting.add(slot.unit)
        return False

    def _least_rank(self, host: str) -> int:
        least = self._least.get(host)
        if least is None:
            alive = [
                slot.spec.stop_rank
                for slot in self._state.slots.values()
                if slot.spec is not None and not slot.tree_gone and not self._state.is_out_of_reach(slot)
                if not host or slot.host == host
            ]
            least = self._least[host] = min(alive, default=0)
        return least


def before_its_host_leaves(state: State, slot: Slot, until: float, now: float) -> float:
    """Return when the drain of the unit ends."""
    host = state.hosts.get(slot.host)
    if host is None or not host.leaving or slot.spec is None:
        return until
    # On a host that leaves within seconds the drain still has half of them.
    left = max(0.0, host.leaves_at - now)
    return min(until, now + max(left / 2, left - slot.spec.term_grace_s))
