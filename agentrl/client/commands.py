"""One method per command of the table.

Invariant: a method takes what the command's arguments take, by the same names, and answers what the table says (but for
`snapshot`, which the client itself has). Commands that change something also take `request_id` (the same id is carried
out once) and `deadline_s`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from agentrl.client.data_commands import DataMethods
from agentrl.errors import UsageError
from agentrl.protocol import commands, wire
from agentrl.protocol.commands import Accepted, Happenings, KeyRow, StatusReport, WhyReport
from agentrl.protocol.knob import KnobValue
from agentrl.protocol.messages import LogChunk, Permission
from agentrl.protocol.rows import AlertRow, AuditRow, KnobRow, OperationRow


class CommandMethods(DataMethods):
    # ---- queries ----

    async def status(self) -> StatusReport:
        """Everything about the run at this moment."""
        return cast(StatusReport, await self.call("status"))

    async def why(self) -> WhyReport:
        """Who waits for whom, and who is the culprit."""
        return cast(WhyReport, await self.call("why"))

    async def show_operation(self, id: str) -> OperationRow:
        """One operation as it is now."""
        return cast(OperationRow, await self.call("show_operation", commands.ShowOperation(id)))

    async def events(self, kinds: Iterable[str] = (), *, after_at: float = 0.0, limit: int = 200) -> Happenings:
        """What happened, oldest first."""
        return cast(Happenings, await self.call("events", commands.Events(tuple(kinds), after_at, limit)))

    async def read_logs(self, unit: str, *, incarnation: int = 0, offset: int = -65536, limit: int = 65536) -> LogChunk:
        """A range of a unit's log; a negative offset counts from the end."""
        args = commands.ReadLogs(unit, incarnation, offset, limit)
        return cast(LogChunk, await self.call("read_logs", args))

    async def knobs(self, name: str = "") -> list[KnobRow]:
        """One knob, or all."""
        return cast(list[KnobRow], await self.call("knobs", commands.Knobs(name)))

    async def knob_history(self, name: str) -> list[AuditRow]:
        """Who changed a knob, when, from what to what."""
        return cast(list[AuditRow], await self.call("knob_history", commands.KnobHistory(name)))

    async def alerts(self, *, all: bool = False) -> list[AlertRow]:
        """Alerts that are not resolved, or all."""
        return cast(list[AlertRow], await self.call("alerts", commands.Alerts(all)))

    async def list_keys(self) -> list[KeyRow]:
        """Keys and what they may do; for admins."""
        return cast(list[KeyRow], await self.call("list_keys"))

    # ---- the run ----

    async def apply(
        self,
        config: Mapping[str, Any],
        *,
        source: str = "",
        given: Iterable[str] = (),
        reading: bool = False,
        request_id: str | None = None,
        deadline_s: float | None = None,
    ) -> Accepted:
        """Make the run equal to this configuration; with `reading`, bring up only what its records are read from."""
        args = self.apply_args(config, source=source, given=given, reading=reading)
        return await self._act("apply", args, request_id, deadline_s)

    @staticmethod
    def apply_args(
        config: Mapping[str, Any], *, source: str = "", given: Iterable[str] = (), reading: bool = False
    ) -> commands.Apply:
        """The arguments of `apply`, for a preview."""
        return commands.Apply({key: wire.raw(value) for key, value in config.items()}, source, tuple(given), reading)

    async def down(
        self,
        *,
        now: bool = False,
        unless_up: bool = False,
        request_id: str | None = None,
        deadline_s: float | None = None,
    ) -> Accepted:
        """Stop everything and prove that nothing is left; with `unless_up` only where nobody wants the run up."""
        return await self._act("down", commands.Down(now, unless_up), request_id, deadline_s)

    async def scale(
        self,
        group: str,
        to: int | None = None,
        *,
        by: int | None = None,
        seen: int | None = None,
        request_id: str | None = None,
        deadline_s: float | None = None,
    ) -> Accepted:
        """Change how many units a group has: `to` a number, or `by` a difference; refused if it is not as `seen`."""
        if (to is None) == (by is None):
            raise UsageError("Say either how many units there shall be or how many more.", hint="to=3 or by=-1")
        return await self._act("scale", commands.Scale(group, to, by, seen), request_id, deadline_s)

    # ---- units ----

    async def drain(
        self,
        unit: str = "",
        *,
        host: str = "",
        incarnation: int = 0,
        cancel: bool = False,
        request_id: str | None = None,
        deadline_s: float | None = None,
    ) -> Accepted:
        """Let a unit, or all units of a host, finish and stop; or take that back."""
        if bool(unit) == bool(host):
            raise UsageError("Say either which unit or which host is to be drained.")
        args = commands.DrainUnits(unit, host, incarnation, cancel)
        return await self._act("drain", args, request_id, deadline_s)

    async def restart(
        self,
        target: str,
        *,
        incarnation: int = 0,
        now: bool = False,
        request_id: str | None = None,
        deadline_s: float | None = None,
    ) -> Accepted:
        """Replace a unit, or all units of a group, by new incarnations."""
        return await self._act("restart", commands.Restart(target, incarnation, now), request_id, deadline_s)

    async def stop(
        self,
        unit: str,
        *,
        incarnation: int = 0,
        now: bool = False,
        request_id: str | None = None,
        deadline_s: float | None = None,
    ) -> Accepted:
        """Stop one unit."""
        return await self._act("stop", commands.Stop(unit, incarnation, now), request_id, deadline_s)

    async def pause(
        self, target: str = "run", *, request_id: str | None = None, deadline_s: float | None = None
    ) -> Accepted:
        """A unit, a group or the run takes no new work."""
        return await self._act("pause", commands.Pause(target), request_id, deadline_s)

    async def resume(
        self, target: str = "run", *, request_id: str | None = None, deadline_s: float | None = None
    ) -> Accepted:
        """A unit, a group or the run takes work again."""
        return await self._act("resume", commands.Resume(target), request_id, deadline_s)

    async def force_stopped(
        self, unit: str, incarnation: int, *, request_id: str | None = None, deadline_s: float | None = None
    ) -> Accepted:
        """Vouch that a lost unit is dead."""
        return await self._act("force_stopped", commands.ForceStopped(unit, incarnation), request_id, deadline_s)

    async def stacks(
        self, units: Iterable[str] = (), *, request_id: str | None = None, deadline_s: float | None = None
    ) -> Accepted:
        """Stacks of these units, or of all, into one file."""
        return await self._act("stacks", commands.CollectStacks(tuple(units)), request_id, deadline_s)

    # ---- knobs ----

    async def tune(
        self,
        name: str,
        value: KnobValue,
        *,
        seen_revision: int | None = None,
        note: str = "",
        request_id: str | None = None,
        deadline_s: float | None = None,
    ) -> Accepted:
        """Change a knob; refused if somebody changed it since `seen_revision`."""
        return await self._act("tune", commands.Tune(name, value, seen_revision, note), request_id, deadline_s)

    async def undo_tune(
        self,
        name: str,
        *,
        seen_revision: int | None = None,
        request_id: str | None = None,
        deadline_s: float | None = None,
    ) -> Accepted:
        """Take back the last change of a knob."""
        return await self._act("undo_tune", commands.UndoTune(name, seen_revision), request_id, deadline_s)

    # ---- alerts ----

    async def acknowledge(self, id: str, *, request_id: str | None = None, deadline_s: float | None = None) -> Accepted:
        """Say that somebody is on it."""
        return await self._act("acknowledge", commands.Acknowledge(id), request_id, deadline_s)

    async def silence(
        self,
        id: str,
        *,
        for_s: float = 3600.0,
        why: str = "",
        request_id: str | None = None,
        deadline_s: float | None = None,
    ) -> Accepted:
        """No notifications of an alert, or of a rule, for a while."""
        return await self._act("silence", commands.Silence(id, for_s, why), request_id, deadline_s)

    async def test_alert(self, *, request_id: str | None = None, deadline_s: float | None = None) -> Accepted:
        """Send a test through every sink."""
        return await self._act("test_alert", commands.SendTestAlert(), request_id, deadline_s)

    # ---- keys ----

    async def add_key(
        self,
        name: str,
        public: str,
        permission: Permission,
        *,
        request_id: str | None = None,
        deadline_s: float | None = None,
    ) -> Accepted:
        """Admit a key; for admins."""
        return await self._act("add_key", commands.AddKey(name, public, permission), request_id, deadline_s)

    async def revoke_key(
        self, name: str, *, request_id: str | None = None, deadline_s: float | None = None
    ) -> Accepted:
        """Refuse a key from now on; for admins."""
        return await self._act("revoke_key", commands.RevokeKey(name), request_id, deadline_s)
