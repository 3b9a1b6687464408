"""Stops one unit: in order, at once, or because it hangs.

Invariants:
- A stop always ends: drain, then SIGTERM, then SIGKILL until nothing is left.
- A unit on a silent host becomes lost instead, because no order reaches it.
"""

from __future__ import annotations

import signal

from agentrl.protocol.messages import CancelDrain, Drain
from agentrl.protocol.rows import UnitState as S
from agentrl.supervision import gangs
from agentrl.supervision.instructions import KillTree, SendToUnit, Signal
from agentrl.supervision.stop_order import before_its_host_leaves
from agentrl.supervision.unit_lifecycle import Lifecycle
from agentrl.supervision.unit_slots import Slot


def begin(life: Lifecycle, slot: Slot, now: float) -> None:
    why = _why(life, slot)
    assert slot.spec is not None
    if slot.stop_now or life.state.run.stop_now:
        kill(life, slot, "killed", now)
    elif slot.spec.speaks and slot.state is not S.STARTING and not gangs.lacks_a_rank(life.state, slot):
        grace = life.times.drain_patience_s if slot.patient else slot.spec.drain_grace_s
        until = before_its_host_leaves(life.state, slot, now + grace, now)
        life.move(slot, S.DRAINING, why, now)
        life.set_timer(slot, until)
        life.out.append(SendToUnit(slot.unit, slot.incarnation, Drain(until - now)))
    else:
        terminate(life, slot, why, now)


def _why(life: Lifecycle, slot: Slot) -> str:
    if not life.state.run.up:
        return "the run goes down"
    if slot.held:
        return slot.held
    if not slot.wanted:
        return "scaled down"
    if life.state.is_leaving(slot.host):
        return f"host {slot.host} leaves ({life.state.hosts[slot.host].leaving})"
    if slot.host in life.state.run.draining_hosts:
        return f"host {slot.host} is drained"
    group = life.state.groups.get(slot.group)
    if group is not None and group.gang_epoch != slot.started_epoch:
        return f"its gang starts again: {group.gang_why}"
    return "is replaced"


def reconsider_drain(life: Lifecycle, slot: Slot, now: float) -> None:
    if slot.stop_now or life.state.run.stop_now:
        kill(life, slot, "killed", now)
    elif life.runs(slot) and not life.outdated(slot):
        life.out.append(SendToUnit(slot.unit, slot.incarnation, CancelDrain()))
        slot.patient = False
        life.move(slot, S.READY, "drain cancelled", now)


def terminate(life: Lifecycle, slot: Slot, why: str, now: float) -> None:
    """SIGTERM; after the grace the whole tree is killed."""
    assert slot.spec is not None
    if _lose_on_silent_host(life, slot, why, now):
        return
    life.move(slot, S.STOPPING, why, now)
    life.set_timer(slot, now + slot.spec.term_grace_s)
    _signal(life, slot, signal.SIGTERM, leader_only=slot.spec.speaks)


def go_on(life: Lifecycle, slot: Slot, now: float) -> None:
    """Repeat the stop, because its host reports that it still lives and SIGTERM may have been lost. The grace is
    unchanged.
    """
    if slot.stopping_because or slot.stop_now or life.state.run.stop_now or slot.timer <= now:
        life.set_timer(slot, now)
    else:
        assert slot.spec is not None
        _signal(life, slot, signal.SIGTERM, leader_only=slot.spec.speaks)


def _lose_on_silent_host(life: Lifecycle, slot: Slot, why: str, now: float) -> bool:
    """Mark the unit as lost: a silent host executes no order, so a wait for its end could last for ever."""
    if not life.state.is_silent(slot.host):
        return False
    life.lose(slot, f"{why}; host {slot.host} is silent", now)
    return True


def kill(life: Lifecycle, slot: Slot, why: str, now: float) -> None:
    if _lose_on_silent_host(life, slot, why, now):
        return
    if slot.state is S.STOPPING:
        slot.reason = why
        life.touch(slot)
    else:
        life.move(slot, S.STOPPING, why, now)
    life.set_timer(slot, now + life.times.kill_again_s)
    life.out.append(KillTree(slot.host, slot.unit, slot.incarnation))


def hang(life: Lifecycle, slot: Slot, because: str, now: float) -> None:
    """Replace a unit that hangs: first its stacks (SIGABRT), then SIGKILL for its process tree."""
    if slot.state not in (S.READY, S.SUSPECT):
        return
    if _lose_on_silent_host(life, slot, because, now):
        return
    if slot.host not in life.state.hosts:
        # The coordinator is new, and its host has not connected yet.
        if not slot.timer:
            life.set_timer(slot, now + life.times.kill_again_s)
        return
    slot.stopping_because = f"hung: {because}"
    if slot.spec is not None and slot.spec.speaks:
        life.move(slot, S.STOPPING, slot.stopping_because, now)
        life.set_timer(slot, now + life.times.stacks_grace_s)
        _signal(life, slot, signal.SIGABRT, leader_only=True)
    else:
        kill(life, slot, slot.stopping_because, now)


def _signal(life: Lifecycle, slot: Slot, number: int, leader_only: bool) -> None:
    life.out.append(Signal(slot.host, slot.unit, slot.incarnation, int(number), leader_only))
