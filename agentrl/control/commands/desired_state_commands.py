"""Executes commands that change the desired state of the run and its units.

Invariants:
- Preparing a command changes nothing and raises what the execution would raise.
- Executing a command again after the coordinator died has no further effect.
- Every command names the state that its units have to reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from agentrl.config.placement import starts
from agentrl.config.show import changes
from agentrl.control.commands import command_effects
from agentrl.control.commands.active_config import ActiveConfig
from agentrl.control.commands.group_specs import specs_of
from agentrl.control.commands.past_batches_effect import not_counted
from agentrl.control.commands.prepared import Goals, Prepare, Prepared
from agentrl.control.context import Context
from agentrl.control.state.operations import Goal, Operation, Want
from agentrl.errors import ConflictError
from agentrl.protocol import control_commands
from agentrl.protocol.effects import Effect
from agentrl.supervision import events
from agentrl.supervision.unit_slots import MAY_STAY, Slot


class DesiredState:
    """Commands on units and on the run, by name in `table`."""

    def __init__(self, context: Context, settings: ActiveConfig) -> None:
        self._context = context
        self._settings = settings
        self.table: dict[str, Prepare] = {
            "apply": self._apply,
            "down": self._down,
            "scale": self._scale,
            "drain": self._drain,
            "restart": self._restart,
            "stop": self._stop,
            "pause": lambda args: self._pause(args, paused=True),
            "resume": lambda args: self._pause(args, paused=False),
            "force_stopped": self._force_stopped,
        }

    def _prepared(
        self, effect: Effect, event: Callable[[Operation], events.Event], goals: Goals | None = None
    ) -> Prepared:
        """Prepares a command that is one event for the supervisor."""

        def execute(operation: Operation) -> Goals | None:
            self._context.happened(event(operation))
            return goals

        return Prepared(effect, execute, command_effects.revisions_of(self._context.state, effect))

    # ---- up and down ----

    def _apply(self, args: control_commands.Apply) -> Prepared:
        context, run = self._context, self._context.state.run
        if context.ending:
            raise ConflictError(
                f"The run {context.run.name} is going down.", hint="Try again in a moment: `agentrl up`."
            )
        if args.reading:
            command_effects.refuse_reading(context.state, context.run.name)
        config = self._settings.config_to_read() if args.reading else self._settings.config_of(args)
        specs = specs_of(config, run_dir=context.run.run_dir, state_dir=self._settings.state_dir, reading=args.reading)
        plan = context.supervisor.plan(specs, reading=args.reading)
        changed = changes(context.config, config) if context.config is not None else []
        only_read = run.up and run.reading and not args.reading
        effect = command_effects.of_plan(plan, changed, reading=args.reading, only_read=only_read)
        if not args.reading:
            effect = msgspec.structs.replace(effect, notes=(*effect.notes, *not_counted(changed)))
            absent = {name: host for name, host in config.all_hosts.items() if not context.is_connected(name)}
            effect = msgspec.structs.replace(effect, notes=(*effect.notes, *starts(config.placement, absent)))
        before = {unit: slot.incarnation for unit, slot in context.state.slots.items()}
        goals = {unit: Goal(Want.UP, before.get(unit, 0)) for unit in (*plan.started, *plan.changed)}
        goals |= {unit: Goal(Want.ENDED, before[unit]) for unit in plan.stopped}
        goals |= {unit: Goal(Want.UP, shared=True) for unit in plan.kept}

        def execute(operation: Operation) -> Goals:
            if not args.reading:
                self._settings.adopt(config, args, operation.who)
            # A caller that waits for the end of the run would wait forever.
            self._supersede("down", operation, "brought the run up again")
            context.happened(events.Applied(specs=specs, by=operation.id, reading=args.reading))
            return goals

        return Prepared(effect, execute, command_effects.revisions_of(context.state, effect))

    def _down(self, args: control_commands.Down) -> Prepared:
        def event(operation: Operation) -> events.Event:
            operation.by_itself = True
            self._supersede("apply", operation, "took the run down")
            return events.DownWanted(by=operation.id, at_once=args.now)

        return self._prepared(command_effects.of_down(self._context.state, args), event)

    def _supersede(self, command: str, operation: Operation, reason: str) -> None:
        self._context.operations.supersede(command, operation, reason, self._context.clock.now())

    # ---- units ----

    def _scale(self, args: control_commands.Scale) -> Prepared:
        context, slots = self._context, self._context.state.slots
        idle = context.observed.idle(args.group)
        effect, count = command_effects.of_scale(context.state, args, idle)
        group = context.state.groups[args.group]
        command_effects.refuse_unseen_count(group, args, count, context.operations.get(group.counted_by))
        goals = {unit: _started(slots.get(unit), again=unit in effect.drains) for unit in effect.starts}
        return self._prepared(
            effect,
            lambda operation: events.Scaled(group=args.group, count=count, by=operation.id, idle=idle),
            goals | self._ended(unit for unit in effect.drains if unit not in effect.starts),
        )

    def _drain(self, args: control_commands.DrainUnits) -> Prepared:
        effect = command_effects.of_drain(self._context.state, args)
        if args.host:
            return self._prepared(
                effect,
                lambda operation: events.HostDrained(host=args.host, by=operation.id, draining=not args.cancel),
                self._ended(effect.drains),
            )
        if args.cancel:
            return self._prepared(effect, lambda operation: events.DrainCancelled(unit=args.unit, by=operation.id))
        return self._prepared(
            effect,
            lambda operation: events.StopWanted(
                unit=args.unit, by=operation.id, because=f"drained by {operation.who}", patient=True
            ),
            self._ended((args.unit, *effect.drains)),
        )

    def _restart(self, args: control_commands.Restart) -> Prepared:
        effect, units = command_effects.of_restart(self._context.state, args)
        slots = self._context.state.slots
        return self._prepared(
            effect,
            lambda operation: events.RestartWanted(units=units, by=operation.id, at_once=args.now),
            {unit: Goal(Want.UP, slots[unit].incarnation) for unit in units},
        )

    def _stop(self, args: control_commands.Stop) -> Prepared:
        effect = command_effects.of_stop(self._context.state, args)
        return self._prepared(
            effect,
            lambda operation: events.StopWanted(
                unit=args.unit, by=operation.id, because=f"stopped by {operation.who}", now=args.now
            ),
            self._ended((args.unit, *effect.drains, *effect.kills)),
        )

    def _pause(self, args: control_commands.Pause | control_commands.Resume, *, paused: bool) -> Prepared:
        return self._prepared(
            command_effects.of_pause(self._context.state, args.target, paused),
            lambda operation: events.Paused(target=args.target, paused=paused, by=operation.id),
        )

    def _force_stopped(self, args: control_commands.ForceStopped) -> Prepared:
        return self._prepared(
            command_effects.of_force(self._context.state, args),
            lambda operation: events.DeathConfirmed(unit=args.unit, incarnation=args.incarnation, by=operation.id),
        )

    def _ended(self, units: Iterable[str]) -> Goals:
        return {unit: Goal(Want.ENDED, self._context.state.slots[unit].incarnation) for unit in units}


def _started(slot: Slot | None, *, again: bool) -> Goal:
    """Return the goal of a unit that a command starts. A unit that was scaled down and still runs keeps its
    incarnation.
    """
    if slot is None:
        return Goal(Want.UP)
    if again:
        return Goal(Want.UP, slot.incarnation)
    return Goal(Want.UP, shared=True) if slot.state in MAY_STAY else Goal(Want.UP, slot.incarnation)
