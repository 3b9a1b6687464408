"""Commands that change desired state.

Invariants: `preview` never changes anything and raises what the execution would raise; `execute` may be done twice (the
coordinator died in between) without doing more than once; every act says which units have to come to what.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.config.run import RunConfig
from agentrl.config.show import changes
from agentrl.control.commands import previews
from agentrl.control.commands.active_config import Settings
from agentrl.control.commands.group_specs import specs_of
from agentrl.control.context import Context
from agentrl.control.messaging.pending_requests import PendingRequests
from agentrl.control.state.operations import Goal, Operation, Want
from agentrl.errors import ConflictError
from agentrl.protocol import commands
from agentrl.protocol.effects import Effect
from agentrl.protocol.messages import KnobPreviewed
from agentrl.protocol.rows import KnobValue, UnitState
from agentrl.protocol.specs import GroupSpec
from agentrl.supervision import events
from agentrl.supervision.transitions import MAY_STAY, WITH_PROCESS
from agentrl.supervision.unit_slots import Slot

Goals = dict[str, Goal]


@dataclass(frozen=True, slots=True)
class Act:
    """One command: what it would do, and how it is done. `execute` answers None if it ends the operation itself."""

    preview: Callable[[Any], Effect]
    execute: Callable[[Operation, Any], Goals | None]


class Acts:
    """Acts on units and on the run."""

    def __init__(self, context: Context, settings: Settings) -> None:
        self._context = context
        self._settings = settings
        state = context.state
        self.table: dict[str, Act] = {
            "apply": Act(self._preview_apply, self._apply),
            "down": Act(lambda args: previews.of_down(state, args), self._down),
            "scale": Act(lambda args: self._scale_effect(args)[0], self._scale),
            "drain": Act(lambda args: previews.of_drain(state, args), self._drain),
            "restart": Act(lambda args: previews.of_restart(state, args)[0], self._restart),
            "stop": Act(lambda args: previews.of_stop(state, args), self._stop),
            "pause": Act(lambda args: previews.of_pause(state, args.target, True), self._pause),
            "resume": Act(lambda args: previews.of_pause(state, args.target, False), self._resume),
            "force_stopped": Act(lambda args: previews.of_force(state, args), self._force),
        }

    # ---- up and down ----

    def _preview_apply(self, args: commands.Apply) -> Effect:
        if self._context.ending:
            raise ConflictError(
                f"The run {self._context.run.name} is going down.", hint="Try again in a moment: `agentrl up`."
            )
        if args.reading:
            previews.refuse_reading(self._context.state, self._context.run.name)
        config, before = self._config(args), self._context.config
        plan = self._context.supervisor.plan(self._specs(config, args.reading), reading=args.reading)
        settings = changes(before, config) if before is not None else []
        run = self._context.state.run
        only_read = run.up and run.reading and not args.reading
        return previews.of_plan(plan, settings, reading=args.reading, only_read=only_read)

    def _config(self, args: commands.Apply) -> RunConfig:
        return self._settings.config_to_read() if args.reading else self._settings.config_of(args)

    def _specs(self, config: RunConfig, reading: bool) -> tuple[GroupSpec, ...]:
        run = self._context.run
        return specs_of(config, run_dir=run.run_dir, state_dir=self._settings.state_dir, reading=reading)

    def _apply(self, operation: Operation, args: commands.Apply) -> Goals:
        config = self._config(args)
        specs = self._specs(config, args.reading)
        plan = self._context.supervisor.plan(specs, reading=args.reading)
        slots = self._context.state.slots
        before = {unit: slot.incarnation for unit, slot in slots.items()}
        goals = {unit: Goal(Want.UP, before.get(unit, 0)) for unit in (*plan.started, *plan.changed)}
        goals |= {unit: Goal(Want.ENDED, before[unit]) for unit in plan.stopped}
        goals |= {unit: Goal(Want.UP, shared=True) for unit in plan.kept}
        if not args.reading:
            self._settings.adopt(config, args, operation.who)
        # Whoever waits for the run's end would wait in vain.
        self._supersede("down", operation, "brought the run up again")
        self._context.happened(events.Applied(specs=specs, by=operation.id, reading=args.reading))
        return goals

    def _supersede(self, command: str, operation: Operation, reason: str) -> None:
        self._context.operations.supersede(command, operation, reason, self._context.clock.now())

    def _down(self, operation: Operation, args: commands.Down) -> None:
        operation.by_itself = True
        self._supersede("apply", operation, "took the run down")
        self._context.happened(events.DownWanted(by=operation.id, at_once=args.now))

    # ---- units ----

    def _scale_effect(self, args: commands.Scale) -> tuple[Effect, int]:
        state = self._context.state
        effect, count = previews.of_scale(state, args, self._context.observed.idle(args.group))
        group = state.groups[args.group]
        previews.refuse_unseen_count(group, args, count, self._context.operations.get(group.counted_by))
        return effect, count

    def _scale(self, operation: Operation, args: commands.Scale) -> Goals:
        effect, count = self._scale_effect(args)
        slots = self._context.state.slots
        goals = {u: _started(slots.get(u)) for u in effect.starts}
        goals |= {u: Goal(Want.ENDED, slots[u].incarnation) for u in effect.drains}
        idle = self._context.observed.idle(args.group)
        self._context.happened(events.Scaled(group=args.group, count=count, by=operation.id, idle=idle))
        return goals

    def _drain(self, operation: Operation, args: commands.DrainUnits) -> Goals:
        context = self._context
        if args.host:
            there = [s for s in context.state.slots.values() if s.host == args.host and s.state in WITH_PROCESS]
            context.happened(events.HostDrained(host=args.host, by=operation.id, draining=not args.cancel))
            return {} if args.cancel else {s.unit: Goal(Want.ENDED, s.incarnation) for s in there}
        if args.cancel:
            context.happened(events.DrainCancelled(unit=args.unit, by=operation.id))
            return {}
        incarnation = context.state.slots[args.unit].incarnation
        because = f"drained by {operation.who}"
        context.happened(events.StopWanted(unit=args.unit, by=operation.id, because=because, patient=True))
        return {args.unit: Goal(Want.ENDED, incarnation)}

    def _restart(self, operation: Operation, args: commands.Restart) -> Goals:
        _, units = previews.of_restart(self._context.state, args)
        slots = self._context.state.slots
        goals = {unit: Goal(Want.UP, slots[unit].incarnation) for unit in units}
        self._context.happened(events.RestartWanted(units=units, by=operation.id, at_once=args.now))
        return goals

    def _stop(self, operation: Operation, args: commands.Stop) -> Goals:
        incarnation = self._context.state.slots[args.unit].incarnation
        because = f"stopped by {operation.who}"
        self._context.happened(events.StopWanted(unit=args.unit, by=operation.id, because=because, now=args.now))
        return {args.unit: Goal(Want.ENDED, incarnation)}

    def _pause(self, operation: Operation, args: commands.Pause) -> Goals:
        self._context.happened(events.Paused(target=args.target, paused=True, by=operation.id))
        return {}

    def _resume(self, operation: Operation, args: commands.Resume) -> Goals:
        self._context.happened(events.Paused(target=args.target, paused=False, by=operation.id))
        return {}

    def _force(self, operation: Operation, args: commands.ForceStopped) -> Goals:
        self._context.happened(events.DeathVouched(unit=args.unit, incarnation=args.incarnation, by=operation.id))
        return {}


def _started(slot: Slot | None) -> Goal:
    """One that was scaled down a moment ago and lives still is up with the life that it has."""
    if slot is None:
        return Goal(Want.UP)
    return Goal(Want.UP, shared=True) if slot.state in MAY_STAY else Goal(Want.UP, slot.incarnation)


class Told(Protocol):
    """Adds to the effect of a knob's value what its owner cannot know; `taken` if the owner was there to be asked."""

    def __call__(self, name: str, value: KnobValue, effect: Effect, *, taken: bool) -> Awaitable[Effect]: ...


class KnobActs:
    """Tuning. A knob that a unit owns is previewed by that unit."""

    def __init__(self, context: Context, settings: Settings, asks: PendingRequests, told: Told) -> None:
        self._context = context
        self._settings = settings
        self._asks = asks
        self._told = told
        self.table: dict[str, Act] = {
            "tune": Act(self._preview_tune, self._tune),
            "undo_tune": Act(self._preview_undo, self._undo),
        }

    async def asked_preview(self, name: str, args: Any) -> Effect:
        """The effect, with the words of the unit that owns the knob."""
        knobs = self._context.knobs
        knobs.compare(args.name, args.seen_revision)
        value = args.value if name == "tune" else knobs.undo_value(args.name)
        self._preview(args.name, value)  # refuses a value that the unit must not even be asked about
        said = await self._ask_owner(args.name, value)
        effect = self._preview(args.name, value, said)
        return effect if effect.empty else await self._told(args.name, value, effect, taken=said is not None)

    def _preview(self, name: str, value: KnobValue, said: KnobPreviewed | None = None) -> Effect:
        owner = self._context.knobs.declaration(name).owner
        group = self._context.state.groups.get(owner)
        done = group is not None and self._context.observed.group_row(group).done
        return self._context.knobs.preview(name, value, said, owner_done=done)

    async def _ask_owner(self, name: str, value: KnobValue) -> KnobPreviewed | None:
        owner = self._context.knobs.declaration(name).owner
        for slot in self._context.state.of_group(owner) if owner else ():
            if slot.state is UnitState.READY and self._context.peers.is_heard(slot.unit):
                return await self._asks.unit(slot.unit, slot.incarnation, name, value)
        return None

    def _preview_tune(self, args: commands.Tune) -> Effect:
        knobs = self._context.knobs
        knobs.check(args.name, args.value, seen_revision=args.seen_revision, note=args.note)
        return self._preview(args.name, args.value)

    def _preview_undo(self, args: commands.UndoTune) -> Effect:
        knobs = self._context.knobs
        value = knobs.undo_value(args.name)
        # An undo brings its own note.
        knobs.check(args.name, value, seen_revision=args.seen_revision, note="undo")
        return self._preview(args.name, value)

    def _tune(self, operation: Operation, args: commands.Tune) -> Goals:
        change = self._context.knobs.tune(
            args.name,
            args.value,
            seen_revision=args.seen_revision,
            who=operation.who,
            at=self._context.clock.now(),
            note=args.note,
        )
        return self._settings.knob_changed(operation, args.name, change)

    def _undo(self, operation: Operation, args: commands.UndoTune) -> Goals:
        change = self._context.knobs.undo(
            args.name, seen_revision=args.seen_revision, who=operation.who, at=self._context.clock.now()
        )
        return self._settings.knob_changed(operation, args.name, change)
