"""Plans a fork: where it begins, whether it repairs or branches off, and what that means.

A preview and the execution use the same plan, so what is shown is what happens.

Invariants:
- A record that has not ended, or whose details were removed, is refused.
- A trunk is refused if its sessions cannot be rebuilt without a call that acts outside of them.
- The result of a replay is refused if the model could not have read it, or if it is cut.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agentrl.config.data_plane import ToolServer
from agentrl.errors import RefusedError, UnknownNameError, UsageError
from agentrl.formatting.amounts import counted
from agentrl.policies import fork_rules
from agentrl.policies.fork_rules import NOT_ENDED, ForkCase, ForkDecision, ForkKind
from agentrl.policies.outcomes import OutcomeClass
from agentrl.policies.replay_verdicts import EarlierCall, ToolEffect, effect_of, merged_effects
from agentrl.policies.status_tables import HOLDS_SEAT, RecordStatus, ReplayStatus, TaskStatus, ToolCallStatus
from agentrl.policies.version_tree import VersionTree
from agentrl.steward.admission import largest_group, reported_plan
from agentrl.steward.replays import MOST_RESULT_CHARS
from agentrl.steward.settings import StewardSettings
from agentrl.store import chosen_records, forks, publications, replays, service_registry, tasks
from agentrl.store.database import Database, Plain
from agentrl.store.documents import Fork, Record, Task, load, load_if
from agentrl.store.replay_documents import Replay
from agentrl.store.replays import RecordedCall

_INFRASTRUCTURE = OutcomeClass.INFRASTRUCTURE.value
MOST_TURNS = 1_000_000
Effects = Mapping[str, Mapping[str, ToolEffect]]
"""By server and tool."""


class ForkRequest(NamedTuple):
    """What an operator wants to fork."""

    target: str = ""
    replay: Replay | None = None
    result: str | None = None
    message: str | None = None
    times: int = 0


@dataclass(frozen=True, slots=True)
class ForkPlan:
    base: Record
    task: Task
    fork: Fork
    decision: ForkDecision
    message: str | None
    calls: int
    """Tool calls of the trunk."""
    rebuilt: int
    """How many of these calls run again."""
    superseded: str
    """An unended attempt at the seat, which a repair ends."""

    @property
    def repairs(self) -> bool:
        return self.decision.kind is ForkKind.REPAIR


class ForkPlanner:
    def __init__(self, database: Database, settings: StewardSettings, servers: Mapping[str, ToolServer]) -> None:
        self._database = database
        self._settings = settings
        self._servers = servers

    async def plan(self, wanted: ForkRequest) -> ForkPlan:
        """Raises UnknownNameError, UsageError or RefusedError."""
        replay = wanted.replay
        fork = await self.place(wanted)
        base = load_if(Record, await self._database.find_one("Record", {"_id": fork.base}))
        if base is None:
            raise UnknownNameError(f"There is no record {fork.base}.", hint="See `agentrl records list`.")
        task = await tasks.get(self._database, base.task)
        if base.status in NOT_ENDED:
            raise RefusedError(f"{base.id} is {base.status}.", hint="Fork it when it has ended.")
        trunk = await self._trunk(task, fork, wanted)
        calls = _tool_calls(trunk)
        kept = [call.place for call in calls if call.call.id != fork.call or not _is_made_again(call, fork)]
        effects = await self._effects(calls)
        self._refuse_outside(kept, calls, fork, effects)
        reported = await reported_plan(self._database)
        stale = await self._is_too_old(task, trunk, reported)
        later = await self._later_attempts(base)
        decision = fork_rules.decide(
            ForkCase(
                status=RecordStatus(base.status),
                purpose=base.purpose,
                outcome_class=base.outcome_class,
                fault=replay.fault if replay else "",
                verdict=replay.verdict if replay else "",
                task_status=TaskStatus(task.status),
                same_round=task.round == base.round,
                step=await chosen_records.step_with(self._database, base.id),
                edited=fork.edited,
                seat_taken_by=next((one.id for one in later if one.fork or one.status not in NOT_ENDED), ""),
                too_old=stale,
                times=wanted.times,
                n=self._settings.n,
                min_valid=self._settings.group_rule.min_valid,
                largest=largest_group(self._settings, reported, task.environment),
            )
        )
        fork.kind, fork.times = decision.kind.value, decision.times
        rebuilt = fork_rules.rebuilding_trunk(kept, self._of_sessions(effects))
        superseded = next((one.id for one in later if one.status in NOT_ENDED), "")
        return ForkPlan(base, task, fork, decision, wanted.message, len(kept), len(rebuilt), superseded)

    # ---- the place ----

    async def place(self, wanted: ForkRequest) -> Fork:
        """Where the fork begins, before it is decided whether it repairs or branches off."""
        if wanted.replay is not None:
            return await self._place_of_replay(wanted.replay)
        record, place = _parted(wanted.target)
        edited = wanted.result is not None or wanted.message is not None
        fork = Fork(base=record, edited=edited, result=wanted.result, status=ToolCallStatus.OK if wanted.result else "")
        if wanted.message is not None:
            if place not in ("", "0"):
                raise RefusedError("Only the message that a record begins with can be edited.")
            return fork
        if "." in place:
            call = await self._call_at(record, place)
            fork.turns, fork.call = call.turn, call.call.id
            return fork
        if wanted.result is not None:
            raise UsageError("A result belongs to a tool call: name RECORD/TURN.CALL.")
        if place:
            fork.turns = int(place)
            return fork
        await self._find_end(fork)
        return fork

    async def _place_of_replay(self, replay: Replay) -> Fork:
        if replay.status not in (ReplayStatus.JUDGED, ReplayStatus.FORKED, ReplayStatus.KEPT):
            raise RefusedError(f"{replay.id} is {replay.status}.", hint="Fork it when it has a verdict.")
        readable = [run for run in replay.runs if run.error_class != _INFRASTRUCTURE]
        run = next((run for run in readable if run.status == ToolCallStatus.OK), next(iter(readable), None))
        if run is None:
            raise RefusedError(f"{replay.id} ({replay.verdict}) has no result that the model could read.")
        if replay.id:  # Stored replays are read without results; a supposed one has no id.
            run = (await replays.get(self._database, replay.id)).runs[replay.runs.index(run)]
        if len(run.result) >= MOST_RESULT_CHARS:
            raise RefusedError(
                f"The result of {replay.id} is too long to be stored whole.",
                hint=f"agentrl fork {replay.call} makes the call again.",
            )
        return Fork(
            base=replay.record,
            turns=replay.turn,
            call=replay.call,
            result=run.result,
            status=run.status,
            edited=replay.edited,
            replay=replay.id,
        )

    async def _call_at(self, record: str, place: str) -> RecordedCall:
        """Finds the call by its id, or by turn and number."""
        turn, _, number = place.partition(".")
        found = await replays.calls_of_record(self._database, record)
        by_id = [one for one in found if one.call.id == f"{record}/{place}"]
        by_place = [one for one in found if (one.turn, one.place.number) == (int(turn), int(number))]
        if not (by_id or by_place):
            raise UnknownNameError(
                f"There is no tool call {record}/{place}.", hint="`agentrl records show RECORD` has its tool calls."
            )
        return (by_id or by_place)[0]

    async def _find_end(self, fork: Fork) -> None:
        """The place that a failed record had reached."""
        base = load_if(Record, await self._database.find_one("Record", {"_id": fork.base}))
        if base is not None and base.status not in (RecordStatus.FAILED, RecordStatus.ABANDONED, RecordStatus.EXCLUDED):
            raise UsageError(f"{base.id} did not fail: name the turn or the tool call.", hint=f"{base.id}/1")
        documents = await forks.trunk(self._database, Fork(base=fork.base, turns=MOST_TURNS))
        whole = forks.whole_turns(documents)
        if not whole:
            return
        last = max(whole)
        fork.turns = last
        if calls := [tool_call for tool_call in _tool_calls(documents) if tool_call.turn == last]:
            failed = [call for call in calls if _failed_for_infrastructure(call)]
            fork.call = (failed or calls)[-1].call.id

    # ---- the trunk ----

    async def _trunk(self, task: Task, fork: Fork, wanted: ForkRequest) -> list[Plain]:
        if task.pruned:
            raise RefusedError(f"The details of {fork.base} were removed, so nothing can go on from it.")
        turns = fork.turns + bool(fork.call)
        if not turns and wanted.message is None:
            raise RefusedError(
                f"{fork.base} has no turn before that place.",
                hint=f"To sample it again: agentrl tasks requeue {task.id}",
            )
        documents = await forks.trunk(self._database, fork)
        if missing := sorted({*range(turns)} - forks.whole_turns(documents)):
            raise UnknownNameError(
                f"{fork.base} has {counted(missing[0], 'turns')}, so nothing can go on with turn {turns}.",
                hint=f"`agentrl records show {fork.base}` has its turns.",
            )
        return documents

    async def _effects(self, calls: Sequence[RecordedCall]) -> Effects:
        """The effects of the tools on the servers of these calls, as the servers and the run file declare them."""
        names = sorted({call.call.server for call in calls} & self._servers.keys())
        return {
            name: merged_effects(
                await service_registry.declared_effects(self._database, name), self._servers[name].effects
            )
            for name in names
        }

    def _of_sessions(self, effects: Effects) -> Effects:
        """The effects for servers that keep state in a session."""
        return {name: found for name, found in effects.items() if self._servers[name].session != "shared"}

    def _refuse_outside(
        self, kept: Sequence[EarlierCall], calls: Sequence[RecordedCall], fork: Fork, effects: Effects
    ) -> None:
        given = fork.call if fork.result is not None else ""
        lost = fork_rules.lost_with_session(kept, self._of_sessions(effects), given)
        outside = [f"{one.server}.{one.tool}" for one in lost]
        again = [call.call for call in calls if call.call.id == fork.call and _is_made_again(call, fork)]
        acts = (
            f"{one.server}.{one.tool}" for one in again if effect_of(effects.get(one.server, {}), one.tool) == "outside"
        )
        outside += acts
        for tool in outside:
            raise RefusedError(
                f"{tool} acts outside of the session, so the trunk cannot be repeated.",
                hint="Replay the call with --allow, and fork from the replay, or fork before the call.",
            )

    async def _is_too_old(self, task: Task, trunk: Sequence[Plain], reported: Mapping[str, object]) -> bool:
        versions = {int(run[0]) for one in trunk if not one.get("context") for run in one.get("versions", ())}
        newest = await publications.newest(self._database)
        if newest is None or not versions:
            return False
        bound = self._settings.plan(reported, task.environment).bound
        return VersionTree(await publications.parents(self._database)).staleness(versions, newest.id) > bound

    async def _later_attempts(self, base: Record) -> list[Record]:
        """Later attempts that hold the seat of the base."""
        seat = {"task": base.task, "round": base.round, "seat": base.seat, "attempt": {"$gt": base.attempt}}
        held = seat | {"status": {"$in": sorted(HOLDS_SEAT)}}
        return [load(Record, one) for one in await self._database.find("Record", held)]


def _parted(target: str) -> tuple[str, str]:
    """Splits a target into the record and the place in it."""
    task, _, rest = target.partition("#")
    attempt, _, place = rest.partition("/")
    if not attempt or (place and not re.fullmatch(r"\d+(\.\d+)?", place)):
        raise UsageError(
            f"{target!r} is no place in a record.",
            hint="Name RECORD, RECORD/TURN or RECORD/TURN.CALL; `agentrl records list` has the ids.",
        )
    return f"{task}#{attempt}", place


def _tool_calls(documents: Sequence[Plain]) -> list[RecordedCall]:
    return [one for document in documents for one in replays.calls_of(document)]


def _failed_for_infrastructure(one: RecordedCall) -> bool:
    return one.call.error_class == _INFRASTRUCTURE or one.call.status in _NEVER_ENDED


def _is_made_again(one: RecordedCall, fork: Fork) -> bool:
    """Whether the fork makes the call again, because it gave the model no result."""
    return fork.result is None and _failed_for_infrastructure(one)


_NEVER_ENDED = (ToolCallStatus.REQUESTED, ToolCallStatus.RUNNING, ToolCallStatus.LOST)
