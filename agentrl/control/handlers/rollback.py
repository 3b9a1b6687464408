"""Executes `rollback`: the steward stores the choice, scientific knobs go back, and the trainer restarts.

Invariants:
- The preview names the steps that are undone, the records that become free and the knobs that change.
- A scientific knob gets the value that the checkpoint contains. A checkpoint has no knobs of the sampler: those get the
  value that they had at its last step.
- The order is: the choice is stored, knobs are set, the trainer restarts; so no trainer starts with only a part of it.
- An operation that was begun before the coordinator died does not restart the trainer twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from agentrl.control.commands import command_effects
from agentrl.control.commands.active_config import ActiveConfig
from agentrl.control.commands.prepared import Goals, Prepare, Prepared
from agentrl.control.context import Context
from agentrl.control.handlers.command_forwarding import ServedCommands
from agentrl.control.state.operations import Goal, Operation, Want
from agentrl.errors import RefusedError
from agentrl.protocol.commands import CommandSpec
from agentrl.protocol.control_commands import Restart
from agentrl.protocol.data_changes import RollBack, RollbackPreview
from agentrl.protocol.effects import Effect
from agentrl.protocol.knob import KnobValue, plain_value
from agentrl.protocol.messages import Request
from agentrl.protocol.specs import Role
from agentrl.protocol.wire import decode_as
from agentrl.supervision import events

_OF_THE_CHECKPOINT = ("checkpoint", "version")
"""Keys of the result that are not settings."""
_TRAINED_AT = "trained_at"


class _Difference(NamedTuple):
    name: str
    now: KnobValue
    then: KnobValue

    def sentence(self) -> str:
        return f"{self.name}: {plain_value(self.now)} -> {plain_value(self.then)}"


class Rollback:
    def __init__(self, context: Context, settings: ActiveConfig, served: ServedCommands) -> None:
        self._context = context
        self._settings = settings
        self._served = served
        self.table: dict[str, Prepare] = {"rollback": lambda args: Prepared(Effect(), self._carry_out)}

    async def ask_steward(self, spec: CommandSpec, request: Request, args: RollBack, who: str) -> Prepared:
        if not request.dry_run and not args.note.strip():
            raise RefusedError("A rollback needs a reason.", hint="Say why: `agentrl rollback ... --reason TEXT`.")
        question = msgspec.structs.replace(request, dry_run=True)
        preview = decode_as(RollbackPreview, await self._served.ask(spec, question, who))
        differences = list(self._differences(preview.settings, preview.trained_at))
        said = [difference.sentence() for difference in differences]
        kept = [f"{one.name} stays at {plain_value(one.now)}, it was {plain_value(one.then)}" for one in differences]
        restart, _ = self._restart()
        effect = msgspec.structs.replace(
            preview.effect,
            starts=restart.starts,
            drains=restart.drains,
            changes=(*preview.effect.changes, *(() if args.keep_knobs else said)),
            notes=(*preview.effect.notes, *(kept if args.keep_knobs else ())),
            scientific=True,
        )
        return Prepared(effect, self._carry_out, command_effects.revisions_of(self._context.state, restart))

    def _carry_out(self, operation: Operation) -> Goals | None:
        if operation.goals:
            # An earlier coordinator has already restarted the trainer.
            operation.by_itself = False
            return operation.goals
        self._served.carry_out(operation, then=self._continue)
        return None

    def _continue(self, operation: Operation) -> None:
        """Continues after the choice is stored: sets the knobs and restarts the trainer."""
        args = decode_as(RollBack, msgspec.Raw(operation.args))
        settings = {name: value for name, value in operation.result.items() if name not in _OF_THE_CHECKPOINT}
        trained_at = settings.pop(_TRAINED_AT, None)
        result = {name: operation.result[name] for name in _OF_THE_CHECKPOINT if name in operation.result}
        for difference in () if args.keep_knobs else list(self._differences(settings, trained_at)):
            change = self._context.knobs.tune(
                difference.name,
                difference.then,
                seen_revision=None,
                who=operation.who,
                at=self._context.clock.now(),
                note=f"rollback: {args.note}",
            )
            self._settings.knob_changed(operation, difference.name, change)
            operation.lines.append(difference.sentence())
        operation.result = result
        _, units = self._restart()
        slots = self._context.state.slots
        goals = {unit: Goal(Want.UP, slots[unit].incarnation) for unit in units}
        operation.by_itself = False
        self._context.happened(events.RestartWanted(units=units, by=operation.id, at_once=False))
        self._context.operations.begin(operation, goals)

    def _restart(self) -> tuple[Effect, tuple[str, ...]]:
        groups = self._context.state.groups.values()
        trainers = [group.spec.name for group in groups if group.spec.role is Role.TRAINER]
        if not trainers:
            raise RefusedError("This run has no trainer, so there is nothing to roll back.")
        return command_effects.of_restart(self._context.state, Restart(trainers[0]))

    def _differences(self, settings: Mapping[str, KnobValue], trained_at: KnobValue) -> Iterator[_Difference]:
        """Scientific knobs whose value was different at the checkpoint."""
        knobs = self._context.knobs
        if isinstance(trained_at, float) and trained_at > 0:
            settings = {**knobs.scientific_then(trained_at), **settings}
        for name in sorted(settings.keys() & set(knobs.names())):
            if knobs.declaration(name).scientific and knobs.value(name) != settings[name]:
                yield _Difference(name, knobs.value(name), settings[name])
