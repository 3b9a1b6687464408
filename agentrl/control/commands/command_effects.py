"""Computes the effects of commands, for previews and at execution.

Invariants:
- An effect is computed from the present desired and actual state and changes neither.
- Computing it raises the errors that the execution would raise.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agentrl.control.state.operations import Operation
from agentrl.errors import ConflictError, RefusedError, UnknownNameError, UsageError
from agentrl.formatting.amounts import utc
from agentrl.formatting.names import nearest
from agentrl.protocol import control_commands, rows
from agentrl.protocol.effects import Effect
from agentrl.protocol.specs import Role, split_unit
from agentrl.supervision.gangs import members_with
from agentrl.supervision.scheduling import victims
from agentrl.supervision.unit_slots import WITH_PROCESS, GroupState, Slot, State
from agentrl.supervision.up_plan import Plan, forecast, new_units

_CHANGES_WORK = frozenset({"scale", "drain", "stop", "pause", "resume", "tune", "undo_tune"})
MOST_UNITS = 10_000
"""A larger number of units in one group counts as a typing error."""


def revisions_of(state: State, effect: Effect) -> dict[str, str]:
    """Return the operation that last changed desired state: for the run, and for each unit in the effect and its
    group.
    """
    found = {"run": state.run.desired_by}
    for unit in (*effect.starts, *effect.drains, *effect.kills):
        group, slot = split_unit(unit)[0], state.slots.get(unit)
        if group in state.groups:
            found[f"group/{group}"] = state.groups[group].counted_by
        if slot is not None:
            found[f"unit/{unit}"] = slot.desired_by
    return found


def of_plan(plan: Plan, settings: Iterable[str] = (), *, reading: bool = False, only_read: bool = False) -> Effect:
    """`settings` are sentences about changed settings. `only_read`: the run was up only for reading. Its steward then
    has no work under way, so replacing it counts as a start and needs no consent."""
    note = f"the run is up {rows.ONLY_READ}; `agentrl up` brings up all of it"
    return Effect(
        starts=(*plan.started, *plan.changed),
        drains=plan.stopped if only_read else (*plan.stopped, *plan.changed),
        changes=(*settings, *(f"the definition of {unit} changed" for unit in plan.changed if not only_read)),
        notes=(*plan.notes, note) if reading else plan.notes,
    )


def refuse_reading(state: State, run: str) -> None:
    """Raise if the whole run is up, because its store can be read already."""
    if state.run.up and not state.run.reading:
        raise ConflictError(
            f"The run {run} is up, so its records can be read as it is.", hint="agentrl records list shows them."
        )


def refuse_change_while_reading(state: State, command: str) -> None:
    """Raise for commands that change sampling or training: the change would show only at the next `up`."""
    if state.run.up and state.run.reading and command in _CHANGES_WORK:
        raise ConflictError(
            f"The run is up {rows.ONLY_READ}, so this command is refused.", hint="agentrl up brings up all of it."
        )


def _refuse_left_alone(state: State, group: str) -> None:
    if state.left_alone(group):
        raise ConflictError(
            f"The run is up {rows.ONLY_READ}, so {group} is left alone.", hint="agentrl up brings up all of it."
        )


def of_scale(state: State, args: control_commands.Scale, idle: frozenset[str]) -> tuple[Effect, int]:
    """The effect, and the absolute count."""
    group = state.groups.get(args.group)
    if group is None or group.removed:
        raise unknown("group", args.group, (g for g, s in state.groups.items() if not s.removed))
    count = args.to if args.to is not None else group.spec.count + (args.by or 0)
    if not 0 <= count <= MOST_UNITS:
        raise UsageError(f"{args.group} cannot have {count} units; 0 to {MOST_UNITS} are possible.")
    members = [s for s in state.of_group(args.group) if s.wanted]
    gang = group.spec.gang
    if gang and group.spec.role is Role.TRAINER and count != group.spec.count:
        raise RefusedError(
            f"{args.group} has as many ranks as training.parallel in the run file says.",
            hint="Change it there, then `agentrl up`.",
        )
    going = tuple(s.unit for s in victims(members, len(members) - count, idle, gang=gang))
    coming = tuple(new_units({s.unit for s in members}, args.group, count - len(members)))
    if not gang or not (going or coming):
        return Effect(starts=coming, drains=going), count
    # All ranks start again, because each rank knows their number.
    staying = tuple(s.unit for s in members if s.unit not in going and s.state in WITH_PROCESS)
    return Effect(starts=(*staying, *coming), drains=(*staying, *going)), count


def refuse_unseen_count(group: GroupState, args: control_commands.Scale, count: int, by: Operation | None) -> None:
    """Raise if the desired count has changed since the caller saw it, unless it equals the new count already."""
    present = group.spec.count
    if args.seen in (None, present) or count == present:
        return
    who = f"by {by.who} at {utc(by.accepted_at)}" if by is not None else "meanwhile"
    how = "brought up with" if by is not None and by.command == "apply" else "scaled to"
    raise ConflictError(
        f"{args.group} was {how} {present} {who} (you saw {args.seen}); nothing was changed.",
        hint="Look at it with `agentrl status` and try again.",
    )


def of_drain(state: State, args: control_commands.DrainUnits) -> Effect:
    if args.host:
        if args.host not in state.hosts:
            raise unknown("host", args.host, state.hosts)
        if args.cancel:
            return Effect(changes=(f"host {args.host} takes units again",))
        return _of_drained_host(state, args.host)
    slot = present(state, args.unit, args.incarnation)
    if args.cancel:
        return Effect(changes=(f"{slot.unit} goes on",))
    return Effect(drains=tuple(s.unit for s in members_with(state, slot) if s.state in WITH_PROCESS))


def of_stop(state: State, args: control_commands.Stop) -> Effect:
    slot = present(state, args.unit, args.incarnation)
    alive = tuple(s.unit for s in members_with(state, slot) if not s.tree_gone)
    if not alive:
        return Effect() if slot.held else Effect(changes=(f"{slot.unit} is not started any more",))
    return Effect(kills=alive) if args.now else Effect(drains=alive)


def of_restart(state: State, args: control_commands.Restart) -> tuple[Effect, tuple[str, ...]]:
    """The effect, and the units that restart."""
    units = targets(state, args.target)
    for group in dict.fromkeys(state.slots[unit].group for unit in units):
        _refuse_left_alone(state, group)
    if args.incarnation:
        present(state, args.target, args.incarnation)
    # A rank of a gang starts again together with all others.
    units = tuple(dict.fromkeys(s.unit for unit in units for s in members_with(state, state.slots[unit])))
    alive = tuple(u for u in units if state.slots[u].state in WITH_PROCESS)
    kills, drains = (alive, ()) if args.now else ((), alive)
    return Effect(starts=units, drains=drains, kills=kills), units


def of_down(state: State, args: control_commands.Down) -> Effect:
    if args.unless_up and state.run.up:
        raise ConflictError("The run is up.", hint="agentrl down ends it.")
    alive = tuple(s.unit for s in state.slots.values() if not s.tree_gone)
    return Effect(kills=alive) if args.now else Effect(drains=alive)


def of_pause(state: State, target: str, paused: bool) -> Effect:
    word = "take no new work" if paused else "take work again"
    if target == "run":
        return Effect(changes=() if state.run.paused is paused else (f"all units {word}",))
    if target in state.groups:
        return Effect(changes=() if state.groups[target].paused is paused else (f"the units of {target} {word}",))
    slot = present(state, target, 0)
    return Effect(changes=() if slot.paused is paused else (f"{slot.unit} is to {word}",))


def of_force(state: State, args: control_commands.ForceStopped) -> Effect:
    slot = present(state, args.unit, args.incarnation)
    if slot.tree_gone or not state.is_out_of_reach(slot):
        raise RefusedError(
            f"{args.unit} is {slot.state.value}, not lost; only a lost unit can be declared dead.",
            hint=f"`agentrl stop {args.unit}` stops it.",
        )
    return Effect(loses=(f"if {slot.name} on {slot.host} still lives, two of it will run",))


def of_remove_host(state: State, host: str) -> Effect:
    """The effect. Refuses a host that is silent, and the host that has the data."""
    if host not in {*state.hosts, *state.run.hosts}:
        raise unknown("host", host, {*state.hosts, *state.run.hosts})
    if host == state.data_host:
        raise RefusedError(f"Host {host} has the data of this run.", hint="`agentrl down` ends the run.")
    known = state.hosts.get(host)
    if known is None or not known.connected:
        raise RefusedError(
            f"Host {host} does not answer, so its units cannot be drained.",
            hint=f"If it is gone for good: `agentrl hosts forget {host}`.",
        )
    drains = _of_drained_host(state, host)
    return msgspec.structs.replace(
        drains,
        changes=(f"host {host} leaves the run",),
        loses=(f"the key of host {host} is refused for good",),
    )


def _of_drained_host(state: State, host: str) -> Effect:
    on_host = [slot for slot in state.slots.values() if slot.host == host and slot.state in WITH_PROCESS]
    with_gangs = {s.unit: s for slot in on_host for s in members_with(state, slot) if s.state in WITH_PROCESS}
    there = list(with_gangs.values())
    specs = [group.spec for group in state.groups.values()]
    moving = [slot.unit for slot in there if slot.wanted and not slot.held]
    notes = forecast(state, specs, moving, (), without=host)
    return Effect(drains=tuple(slot.unit for slot in there), notes=notes)


def of_forget_host(state: State, host: str) -> Effect:
    """The effect. Refuses a host that answers or whose units answer."""
    if host not in {*state.hosts, *state.run.hosts}:
        raise unknown("host", host, {*state.hosts, *state.run.hosts})
    there = [slot for slot in state.slots.values() if slot.host == host and not slot.tree_gone]
    known = state.hosts.get(host)
    if (known is not None and known.connected) or host == state.data_host:
        what = "connected" if known is not None and known.connected else "the host of the data of this run"
        raise RefusedError(f"Host {host} is {what}.", hint=f"agentrl drain --host {host} moves its units away.")
    if reporting := [slot.unit for slot in there if not state.is_out_of_reach(slot)]:
        raise RefusedError(
            f"Host {host} is silent, but {reporting[0]} there is {state.slots[reporting[0]].state.value}, not lost.",
            hint="Wait until its units are lost; `agentrl status` shows them.",
        )
    lives = [slot.name for slot in there]
    lives += [f"{s.unit}.{ghost.incarnation}" for s in state.slots.values() for ghost in s.ghosts if ghost.host == host]
    lost = f"if {', '.join(lives)} on {host} still {'lives' if len(lives) == 1 else 'live'}, two of a unit will run"
    return Effect(changes=(f"host {host} is forgotten",), loses=(lost,) if lives else ())


def targets(state: State, target: str) -> tuple[str, ...]:
    """Return one unit, or all units of a group that desired state has."""
    if target in state.groups and not state.groups[target].removed:
        return tuple(s.unit for s in state.of_group(target) if s.wanted)
    return (present(state, target, 0).unit,)


def present(state: State, unit: str, incarnation: int) -> Slot:
    """The slot, if it exists and still has the incarnation that the caller saw."""
    slot = state.slots.get(unit)
    if slot is None and unit in state.groups:
        raise _is_a_group(state, unit)
    if slot is None or (not slot.wanted and slot.tree_gone):
        known = [u for u, s in state.slots.items() if s.wanted]
        raise unknown("unit", unit, (*known, *state.groups))
    if incarnation and incarnation != slot.incarnation:
        raise ConflictError(
            f"{unit} is {slot.name} now, not {unit}.{incarnation}; nothing was done to it.",
            hint="Look at `agentrl status`, and repeat the command if you still want it.",
        )
    return slot


def _is_a_group(state: State, group: str) -> UnknownNameError:
    names = [s.unit for s in state.of_group(group) if s.wanted]
    hint = f"Its units are {', '.join(names[:12])}{' ...' if len(names) > 12 else ''}." if names else "It has no unit."
    return UnknownNameError(f"The command needs one unit, and {group} is a group.", hint=hint)


def unknown(what: str, name: str, known: Iterable[str]) -> UnknownNameError:
    names = sorted(known)
    if close := nearest(name, names):
        hint = f"Did you mean {close}?"
    else:
        hint = f"Known: {', '.join(names[:12])}{' ...' if len(names) > 12 else ''}." if names else "There is none."
    return UnknownNameError(f"There is no {what} {name!r}.", hint=hint)
