"""Plans the replay of a tool call: where it runs, and which earlier calls rebuild its session.

A preview and the execution use the same plan, so what is shown is what runs.

Invariants:
- A call that never ran, or has not ended, is refused.
- The plan names every tool with effects outside of the session that it calls, in the replayed call or before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agentrl.config.data_plane import ToolServer
from agentrl.errors import RefusedError, UnknownNameError
from agentrl.policies.replay_verdicts import RAN, ToolEffect, effect_of, merged_effects, rebuilding_calls
from agentrl.policies.status_tables import ToolCallStatus
from agentrl.store import replays, service_registry
from agentrl.store.database import Database
from agentrl.store.replays import RecordedCall


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    call: RecordedCall
    server: str
    effect: ToolEffect
    rebuild: tuple[RecordedCall, ...]
    """Earlier calls that run again, in their order."""
    fresh_session: bool
    """Each run needs its own session, because the call may change the session."""
    outside: tuple[str, ...]
    """Tools that act outside of the session, as `server.tool`."""

    @property
    def took_s(self) -> float:
        """How long the same calls took when they were recorded."""
        return sum(one.call.latency_s for one in (*self.rebuild, self.call))

    def acts_outside(self, tool: str) -> bool:
        return f"{self.server}.{tool}" in self.outside


class ReplayPlanner:
    """Makes plans from the record and from what the run file declares of tool servers."""

    def __init__(self, database: Database, servers: Mapping[str, ToolServer]) -> None:
        self._database = database
        self._servers = servers

    async def plan(self, id: str, server: str = "") -> ReplayPlan:
        """`server` is the server that runs the replay; empty means the server of the recorded call. Raises
        UnknownNameError or RefusedError."""
        call = await replays.recorded(self._database, id)
        _refuse_if_it_never_ran(call)
        name = server or call.call.server
        if name not in self._servers:
            known = ", ".join(self._servers) or "none"
            raise UnknownNameError(f"There is no tool server {name!r}; known are: {known}.")
        declared = self._servers[name]
        effects = merged_effects(await service_registry.declared_effects(self._database, name), declared.effects)
        effect = effect_of(effects, call.call.tool)
        stateless = declared.session == "shared"
        others = {one.call.id: one for one in await replays.calls_of_record(self._database, call.record)}
        places = [one.place for one in others.values()]
        earlier = rebuilding_calls(call.place, places, effects, stateless=stateless)
        rebuild = tuple(others[one.id] for one in earlier)
        tools = dict.fromkeys(one.call.tool for one in (*rebuild, call))
        outside = tuple(f"{name}.{tool}" for tool in tools if effect_of(effects, tool) == "outside")
        return ReplayPlan(call, name, effect, rebuild, effect != "pure" and not stateless, outside)


def _refuse_if_it_never_ran(recorded: RecordedCall) -> None:
    call = recorded.call
    if call.status in (ToolCallStatus.REQUESTED, ToolCallStatus.RUNNING):
        raise RefusedError(f"{call.id} has not ended yet.", hint="Replay it when it has.")
    if call.status not in RAN or not call.server:
        raise RefusedError(f"{call.id} never ran: {call.result or call.status}.", hint="There is nothing to replay.")
