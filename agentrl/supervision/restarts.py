"""Decides whether a dead unit restarts at once, later or never.

Invariants:
- Starts that never became ready are counted apart from deaths in service.
- The first death in a window causes no delay.
- Every `fatal` has a reason.
- An end with the host, such as a power loss, does not count.
- Kills for memory have a counter of their own, because a restart rarely cures the cause.
"""

from __future__ import annotations

import msgspec

from agentrl.config.supervision_times import SupervisionTimes
from agentrl.protocol.messages import ExitStatus
from agentrl.protocol.specs import Life
from agentrl.supervision.unit_slots import Slot

EXIT_TEMPORARY = 75
EXIT_CONFIG = 78


class Verdict(msgspec.Struct, frozen=True):
    """The decision about an unplanned end: at most one of fatal, done, free; else a restart after `delay_s`."""

    reason: str
    delay_s: float = 0.0
    fatal: bool = False
    done: bool = False
    free: bool = False
    """Restart after `delay_s` without counting a death."""


def judge(slot: Slot, exit: ExitStatus, times: SupervisionTimes, now: float, dice: float) -> Verdict:
    """Count this end in the slot and decide. `slot` is as it was when the process ended."""
    life = slot.spec.life if slot.spec else Life.SERVICE
    hung = slot.stopping_because
    if not hung:
        if exit.code == 0 and life is Life.JOB:
            return Verdict(f"done: {slot.bye_reason}" if slot.bye_reason else "done", done=True)
        if exit.code == EXIT_TEMPORARY:
            return _as_asked(slot, times, now, dice)
        if exit.code == EXIT_CONFIG:
            said = slot.bye_reason.removesuffix(".") or "see its log"
            return Verdict(f"configuration error (exit 78): {said}", fatal=True)
    slot.restarts += 1
    if exit.with_host and not hung:
        return Verdict(str(exit))
    story = hung or str(exit)
    if exit.oom:
        return _after_oom(slot, times, now, dice)
    if not slot.came_up:
        return _after_failed_start(slot, story, times, dice)
    return _after_death(slot, story, times, now, dice)


def _as_asked(slot: Slot, times: SupervisionTimes, now: float, dice: float) -> Verdict:
    """Decide on a restart that the unit requested. It is not a death and never fatal; repeated requests within about a
    minute are delayed.
    """
    slot.asked = [*(t for t in slot.asked if 0 <= now - t < times.backoff_max_s), now]
    n = len(slot.asked)
    often = f", {n} times in {times.backoff_max_s:g} s" if n > 1 else ""
    return Verdict(f"asked to be started again (exit 75){often}", delay_s=backoff_s(n, times, dice), free=True)


def failed_to_spawn(slot: Slot, reason: str, final: bool, times: SupervisionTimes, dice: float) -> Verdict:
    """Decide on a process that could not be started. If its host may be able to start it later, it is tried without
    limit, because a full disk is not the unit's fault.
    """
    if final:
        return Verdict(f"cannot be started: {reason}", fatal=True)
    slot.refused_starts += 1
    return Verdict(f"cannot be started now: {reason}", delay_s=backoff_s(slot.refused_starts, times, dice))


def _after_failed_start(slot: Slot, story: str, times: SupervisionTimes, dice: float) -> Verdict:
    slot.failed_starts += 1
    n = slot.failed_starts
    if n > times.max_failed_starts:
        return Verdict(f"never came up, {n} times in a row; last: {story}", fatal=True)
    return Verdict(f"never came up ({story})", delay_s=backoff_s(n, times, dice))


def _after_death(slot: Slot, story: str, times: SupervisionTimes, now: float, dice: float) -> Verdict:
    slot.deaths = [*_in_window(slot.deaths, times, now), now]
    n = len(slot.deaths)
    if n > times.max_deaths:
        return Verdict(f"died {n} times in {times.restart_window_s:g} s; last: {story}", fatal=True)
    return Verdict(f"died while ready ({story})", delay_s=backoff_s(n, times, dice))


def _after_oom(slot: Slot, times: SupervisionTimes, now: float, dice: float) -> Verdict:
    slot.oom_deaths = [*_in_window(slot.oom_deaths, times, now), now]
    n = len(slot.oom_deaths)
    if n > times.max_oom_deaths:
        advice = "raise resources.memory_max or give it less to do"
        return Verdict(f"killed for memory {n} times in {times.restart_window_s:g} s: {advice}", fatal=True)
    return Verdict("killed for memory", delay_s=backoff_s(n, times, dice))


def share_history(dead: Slot, other: Slot) -> None:
    """Gives the ranks of a gang one common history, so the limit on deaths is the same whether one rank dies repeatedly
    or a different rank each time."""
    other.deaths, other.oom_deaths, other.asked = list(dead.deaths), list(dead.oom_deaths), list(dead.asked)
    other.failed_starts, other.refused_starts = dead.failed_starts, dead.refused_starts


def some_aged(slot: Slot, times: SupervisionTimes, now: float) -> bool:
    """Return whether some remembered deaths no longer count. A death with a time in the future, from before the clock
    was set back, does not count.
    """
    return not all(_is_in_window(died, times, now) for died in (*slot.deaths, *slot.oom_deaths))


def forget_aged(slot: Slot, times: SupervisionTimes, now: float) -> bool:
    """Drop the deaths that no longer count; returns whether there were any."""
    if not some_aged(slot, times, now):
        return False
    slot.deaths, slot.oom_deaths = (_in_window(each, times, now) for each in (slot.deaths, slot.oom_deaths))
    return True


def _in_window(deaths: list[float], times: SupervisionTimes, now: float) -> list[float]:
    return [died for died in deaths if _is_in_window(died, times, now)]


def _is_in_window(died: float, times: SupervisionTimes, now: float) -> bool:
    return 0 <= now - died < times.restart_window_s


def backoff_s(deaths: int, times: SupervisionTimes, dice: float) -> float:
    """Return the delay: 0 after the first death, then 0.5, 1, 2 … s up to the maximum, each with jitter."""
    if deaths <= 1:
        return 0.0
    # 60 doublings exceed any maximum; more would overflow.
    base = min(times.backoff_first_s * 2.0 ** min(deaths - 2, 60), times.backoff_max_s)
    return float(base * (1.0 + times.backoff_jitter * (2.0 * dice - 1.0)))
