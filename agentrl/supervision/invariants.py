"""Checks all invariants of the supervisor's state. Tests check them after each event, the coordinator now and then.

Invariants:
- A check changes nothing.
- Every violation names its unit, with the history of the unit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from agentrl.protocol.rows import UnitState as S
from agentrl.supervision.unit_lifecycle import Lifecycle
from agentrl.supervision.unit_slots import IN_SERVICE, WITH_PROCESS, Slot

_TIMED = frozenset({S.STARTING, S.DRAINING, S.STOPPING})
_LEADER_LIVES = frozenset({*IN_SERVICE, S.DRAINING})


class Violation(NamedTuple):
    unit: str
    """The unit, group or host."""
    what: str
    story: tuple[str, ...] = ()
    """The last moves of the unit."""


def violations(life: Lifecycle, now: float) -> list[Violation]:
    """Return what does not hold after an event; `now` is the time of that event."""
    broken: list[Violation] = []
    fresh = Lifecycle(life.state, life.times)
    for unit, slot in life.state.slots.items():
        checks = (_of_process(slot), _of_ghosts(slot), _of_desired_state(life, slot), _of_gang(life, slot))
        sentences = [sentence for check in checks for sentence in check]
        if slot.state is S.PENDING and life.runs(slot) and (where := fresh.where(slot, now)) != ("", slot.reason):
            sentences.append(f"the reason {slot.reason!r} is out of date: {where}")
        story = (*slot.story, f"{slot.name} is {slot.state}: {slot.reason}")
        broken += [Violation(unit, sentence, story) for sentence in sentences]
    return [*broken, *_of_placement(life, fresh)]


def _of_process(slot: Slot) -> Iterator[str]:
    if not slot.reason and slot.story:
        yield "it has no reason"
    if slot.tree_gone and not slot.leader_gone:
        yield "no process is left, but its leader lives"
    if slot.state in _LEADER_LIVES and slot.leader_gone:
        yield "its leader has ended"
    if slot.state in WITH_PROCESS and slot.tree_gone:
        yield "no process of it is left"
    if slot.state not in WITH_PROCESS and not slot.leader_gone:
        yield "its leader may live"
    if slot.state in WITH_PROCESS and slot.incarnation < 1:
        yield "it has no incarnation"
    if slot.state in _TIMED and not slot.timer:
        yield "nothing ends this state"
    if slot.tree_gone and slot.devices:
        yield f"it keeps {', '.join(slot.devices)}"


def _of_ghosts(slot: Slot) -> Iterator[str]:
    ghosts = Counter((ghost.host, ghost.incarnation) for ghost in slot.ghosts)
    if doubled := [ghost for ghost, times in ghosts.items() if times > 1]:
        yield f"it has the ghosts {doubled} twice"
    if not slot.tree_gone and (slot.host, slot.incarnation) in ghosts:
        yield "its present incarnation is a ghost"


def _of_desired_state(life: Lifecycle, slot: Slot) -> Iterator[str]:
    """After an event every move that is possible has been made."""
    runs, group = life.runs(slot), life.state.groups.get(slot.group)
    if slot.state is S.STOPPED and runs and not slot.done:
        yield "it is stopped, and should run"
    if slot.state is S.FATAL and (not runs or slot.generation != slot.started_generation):
        yield "it is fatal, and should have moved"
    if slot.state is S.PENDING and not runs and slot.tree_gone:
        yield "it waits, and should not run"
    if slot.state not in IN_SERVICE:
        return
    if not runs or life.outdated(slot):
        if slot.unit not in life.stop_order.waiting:
            yield "it should stop, and waits for nothing"
    elif slot.spec is None or group is None or slot.spec.fingerprint() != group.spec.fingerprint():
        yield "it runs an old definition"


def _of_gang(life: Lifecycle, slot: Slot) -> Iterator[str]:
    """A rank in service has its whole gang, or has to go."""
    if slot.rank is None or slot.state not in IN_SERVICE or not life.runs(slot) or life.outdated(slot):
        return
    members = [member for member in life.state.of_group(slot.group) if life.runs(member)]
    ranks = [member for member in members if member.rank is not None and member.rank.epoch == slot.rank.epoch]
    if not len(ranks) == len(members) == slot.rank.ranks:
        yield f"it waits for ranks that do not exist: {len(ranks)} of {slot.rank.ranks}, {len(members)} members"
    if ended := [rank.name for rank in ranks if not rank.done and rank.state not in WITH_PROCESS]:
        yield f"its epoch goes on without {', '.join(ended)}"


def _of_placement(life: Lifecycle, fresh: Lifecycle) -> Iterator[Violation]:
    """What is updated at each start and end equals a computation from nothing."""
    state = life.state
    slots = list(state.slots.values())
    for host in {*life.host_use.by_host, *fresh.host_use.by_host}:
        use, computed = life.host_use.by_host.get(host), fresh.host_use.by_host.get(host)
        if use != computed:
            yield Violation(host, f"its use is {computed}, not {use}")
    for host in state.hosts:
        holders, computed_holders = life.devices.holders(host), fresh.devices.holders(host)
        if holders != computed_holders:
            yield Violation(host, f"its devices are held by {computed_holders}, not {holders}")
        if devices := fresh.devices.given_twice(host):
            yield Violation(host, f"these devices are given twice: {', '.join(devices)}")
    for group in state.groups:
        if list(state.of_group(group)) != [slot for slot in slots if slot.group == group]:
            yield Violation(group, "its list of units is out of date")
