"""Handles the end of an incarnation: of its leader, of the rest of its process tree, and of a start that failed.

Invariants:
- A unit is declared dead only if its host cannot be reached.
- Each unplanned end of an incarnation is judged once (`restarts`) and becomes an incident.
- A planned end is complete when no process of the incarnation is left.
"""

from __future__ import annotations

from agentrl.protocol.messages import ExitStatus, ProcessInfo
from agentrl.protocol.rows import UnitState as S
from agentrl.supervision import gang_epochs, restarts
from agentrl.supervision.instructions import Died, Forget, Report
from agentrl.supervision.unit_lifecycle import Lifecycle
from agentrl.supervision.unit_slots import IN_SERVICE, Slot

UNKNOWN_EXIT = ExitStatus(unknown="its host agent has no record of its end", with_host=True)


def leader_ended(life: Lifecycle, slot: Slot, exit: ExitStatus, now: float, dice: float) -> None:
    """Handle the end of the leader, for any reason."""
    if slot.leader_gone:
        return
    if exit.unknown and slot.bye_code is not None:
        exit = ExitStatus(code=slot.bye_code)
    slot.leader_gone, slot.last_exit, slot.pid = True, exit, 0
    life.out.append(Died(slot.unit, slot.incarnation))
    ordered = slot.state in (S.DRAINING, S.STOPPING) and not slot.stopping_because
    if ordered or (slot.state in IN_SERVICE and not life.runs(slot)):
        if slot.state is not S.STOPPING:
            life.move(slot, S.STOPPING, f"{slot.reason}; {exit}", now)
            life.set_timer(slot, now + life.times.kill_again_s)
    elif slot.state is S.LOST and (not life.runs(slot) or life.outdated(slot)):
        pass  # It was about to stop when its host became silent; `tree_gone` completes the stop.
    elif slot.state is not S.STOPPING:
        _judge(life, slot, exit, now, dice)
    life.touch(slot)


def tree_gone(life: Lifecycle, slot: Slot, now: float, dice: float, swept: tuple[ProcessInfo, ...] = ()) -> None:
    """Handle the report that no process of the present incarnation is left."""
    leader_ended(life, slot, UNKNOWN_EXIT, now, dice)
    if slot.tree_gone:
        return
    slot.tree_gone = True
    life.free_devices(slot)
    if slot.state in (S.STOPPING, S.LOST):
        if slot.stopping_because:
            _judge(life, slot, slot.last_exit or UNKNOWN_EXIT, now, dice, swept)
        elif life.runs(slot):
            life.move(slot, S.PENDING, "is replaced", now)
        else:
            life.move(slot, S.STOPPED, slot.held or slot.reason, now)
    life.touch(slot)
    life.recheck_pending()
    life.recheck_stop_order()
    life.out.append(Forget(slot.host, slot.unit, slot.incarnation))


def never_spawned(life: Lifecycle, slot: Slot, reason: str, final: bool, now: float, dice: float) -> None:
    """Handle a start that the host could not execute."""
    slot.leader_gone = slot.tree_gone = True
    life.free_devices(slot)
    slot.last_exit = None  # A sentence of an earlier incarnation would look like the cause.
    verdict = restarts.failed_to_spawn(slot, reason, final, life.times, dice)
    _apply_verdict(life, slot, verdict, ExitStatus(unknown="it was never started"), now, ())
    life.out.append(Forget(slot.host, slot.unit, slot.incarnation))


def declare_dead(life: Lifecycle, slot: Slot, by: str, now: float, *, gone: str = "") -> None:
    """Declare a unit dead. `gone`: what took its host away; empty if an operator declares the death."""
    if slot.tree_gone or not life.state.is_out_of_reach(slot):
        return
    life.abandon(slot)
    slot.desired_by = by
    life.out.append(Died(slot.unit, slot.incarnation))
    if slot.state is not S.LOST:
        return
    because = f"lost with its host: {gone}" if gone else "declared dead by an operator"
    life.move(slot, S.PENDING if life.runs(slot) else S.STOPPED, because, now)


def _judge(
    life: Lifecycle, slot: Slot, exit: ExitStatus, now: float, dice: float, swept: tuple[ProcessInfo, ...] = ()
) -> None:
    """Count an unplanned end and decide what happens to the slot."""
    verdict = restarts.judge(slot, exit, life.times, now, dice)
    if verdict.done:
        slot.done = True
        life.move(slot, S.STOPPED, verdict.reason, now)
    elif verdict.free:
        gang_epochs.break_up(life, slot, verdict.reason)
        if verdict.delay_s:
            life.move(slot, S.BACKOFF, verdict.reason, now)
            life.set_timer(slot, now + verdict.delay_s)
        else:
            life.move(slot, S.PENDING, verdict.reason, now)
    else:
        _apply_verdict(life, slot, verdict, exit, now, swept)


def _apply_verdict(
    life: Lifecycle, slot: Slot, verdict: restarts.Verdict, exit: ExitStatus, now: float, swept: tuple[ProcessInfo, ...]
) -> None:
    if verdict.fatal:
        life.move(slot, S.FATAL, verdict.reason, now)
        done = "given up; `agentrl restart` tries again"
    else:
        life.move(slot, S.BACKOFF, verdict.reason, now)
        life.set_timer(slot, now + verdict.delay_s)
        done = f"starts again in {verdict.delay_s:.1f} s" if verdict.delay_s else "started again at once"
    life.out.append(Report(slot.unit, slot.incarnation, slot.host, verdict.reason, done, exit, swept))
    gang_epochs.break_up(life, slot, verdict.reason)
