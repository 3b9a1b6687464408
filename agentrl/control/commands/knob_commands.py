"""Executes commands that change knobs. The unit that owns a knob completes the preview.

Invariants:
- A value that the registry refuses never reaches the owner.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from agentrl.control.commands.active_config import ActiveConfig
from agentrl.control.commands.prepared import Goals, Prepare, Prepared
from agentrl.control.context import Context
from agentrl.control.messaging.pending_requests import PendingRequests
from agentrl.control.state.operations import Operation
from agentrl.protocol.commands import CommandSpec
from agentrl.protocol.control_commands import Tune, UndoTune
from agentrl.protocol.effects import Effect
from agentrl.protocol.knob import KnobValue
from agentrl.protocol.messages import KnobPreviewed, Request
from agentrl.protocol.rows import UnitState

Change = Tune | UndoTune


class CountedPreview(Protocol):
    """Extends the effect of a knob by counts of the steward; `taken`: whether a unit of the knob's group takes the
    value now."""

    def __call__(self, name: str, value: KnobValue, effect: Effect, *, taken: bool) -> Awaitable[Effect]: ...


class Tuning:
    """`tune` and `undo_tune`."""

    def __init__(
        self, context: Context, settings: ActiveConfig, asks: PendingRequests, counted: Sequence[CountedPreview]
    ) -> None:
        self._context = context
        self._settings = settings
        self._asks = asks
        self._counted = counted
        self.table: dict[str, Prepare] = {"tune": self._prepare, "undo_tune": self._prepare}

    async def ask_owner(self, spec: CommandSpec, request: Request, args: Change, who: str) -> Prepared:
        """Like `table`, with the effect completed by the unit that owns the knob."""
        self._prepare(args, preview=request.dry_run)
        name, value = args.name, self._value(args)
        answer = await self._owner_preview(name, value)
        effect = self._effect(name, value, answer)
        for add in self._counted if not effect.empty else ():
            effect = await add(name, value, effect, taken=answer is not None)
        return self._prepare(args, effect, preview=request.dry_run)

    def _prepare(self, args: Change, effect: Effect | None = None, *, preview: bool = False) -> Prepared:
        """A preview needs no note yet, and an undo writes its own."""
        knobs, name, value, seen = self._context.knobs, args.name, self._value(args), args.seen_revision
        note = args.note if isinstance(args, Tune) else ""
        knobs.check(name, value, seen_revision=seen, note=note if isinstance(args, Tune) and not preview else None)

        def execute(operation: Operation) -> Goals:
            who, now = operation.who, self._context.clock.now()
            if isinstance(args, UndoTune):
                change = knobs.undo(name, seen_revision=seen, who=who, at=now)
            else:
                change = knobs.tune(name, value, seen_revision=seen, who=who, at=now, note=note)
            return self._settings.knob_changed(operation, name, change)

        return Prepared(effect or self._effect(name, value), execute, {f"knob/{name}": str(knobs.revision(name))})

    def _value(self, args: Change) -> KnobValue:
        return args.value if isinstance(args, Tune) else self._context.knobs.undo_value(args.name)

    def _effect(self, name: str, value: KnobValue, answer: KnobPreviewed | None = None) -> Effect:
        group = self._context.state.groups.get(self._context.knobs.declaration(name).owner)
        done = group is not None and self._context.observed.group_row(group).done
        return self._context.knobs.preview(name, value, answer, owner_done=done)

    async def _owner_preview(self, name: str, value: KnobValue) -> KnobPreviewed | None:
        """The answer of a unit that owns the knob; None if no such unit is ready and connected."""
        owner = self._context.knobs.declaration(name).owner
        for slot in self._context.state.of_group(owner) if owner else ():
            if slot.state is UnitState.READY and self._context.peers.is_connected(slot.unit):
                return await self._asks.unit(slot.unit, slot.incarnation, name, value)
        return None
