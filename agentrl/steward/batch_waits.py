"""What a trainer's batch or evaluation waits for: the group that was admitted first, its record that has run longest,
and the present call of that record.

Invariants: it only reads; each thing that is waited for has one entry, from the present documents; every wait has a
limit from the configuration, so none is unbounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from agentrl.formatting.amounts import counted
from agentrl.policies.outcomes import AROUND_A_DEADLINE_S, tool_call_within_s
from agentrl.policies.status_tables import IN_FLIGHT, CallStatus, RecordStatus, TaskStatus, ToolCallStatus
from agentrl.protocol.messages import Wait
from agentrl.steward.admission import Admitted
from agentrl.steward.settings import StewardSettings
from agentrl.store import calls, service_registry, tasks
from agentrl.store.database import Database
from agentrl.store.document_ids import within
from agentrl.store.documents import TRAINS, DispatchedSamplingTask, Record, Task, ToolCall, load, load_if

ADMITS_WITHIN_S = 600.0
TRIES_WITHIN_S = 1.0
"""While most attempts fail, a wait is overdue after this short time."""
_OPEN_TOOL_CALLS = [ToolCallStatus.REQUESTED, ToolCallStatus.RUNNING]


@dataclass(frozen=True, slots=True)
class Group:
    """A Task that is not closed, and what it still waits for."""

    task: Task
    records: Sequence[Record] = ()
    """The records that are under way."""
    call: DispatchedSamplingTask | None = None
    """The model call in which the longest-running record waits."""
    tool_call: ToolCall | None = None
    """The oldest of its tool calls without an answer."""
    unusable: Mapping[str, str] = field(default_factory=dict)
    """Tool servers that cannot be used now, each with the reason."""

    @property
    def longest(self) -> Record | None:
        """The record that began first; if none has begun, one that no sampler has claimed."""
        return min(self.records, key=_order, default=None)


async def look(database: Database, settings: StewardSettings, admitted: Admitted) -> list[Wait]:
    """The waits, for `Unit.publish_waits`. `admitted` is the last result of admission."""
    now = await database.now()
    training = await _oldest(database, {"$in": list(TRAINS)}, now)
    evaluation = await _oldest(database, {"$in": ["eval"]}, now)
    if training is not None and not admitted.trial:
        found = list(of_group("batch", training, settings, now))
    else:
        found = [of_admission(admitted, await tasks.since_last_admission_s(database))]
    return found + (list(of_group("evaluation", evaluation, settings, now)) if evaluation else [])


async def _oldest(database: Database, purpose: dict[str, list[str]], now: datetime) -> Group | None:
    """The open group that was admitted first."""
    open_one = {"status": TaskStatus.ADMITTED, "purpose": purpose}
    left_out = {"query": 0, "answer": 0, "extra": 0, "shares": 0}
    task = load_if(
        Task, await database.find_one("Task", open_one, sort=[("admitted_order", 1), ("_id", 1)], projection=left_out)
    )
    if task is None:
        return None
    flying = {"task": task.id, "round": task.round, "status": {"$in": sorted(IN_FLIGHT)}}
    records = [load(Record, document) for document in await database.find("Record", flying)]
    longest = Group(task, records).longest
    if longest is None or longest.status != RecordStatus.RUNNING:
        return Group(task, records)
    documents = await database.find("DispatchedSamplingTask", {"_id": within(longest.id)}, projection=calls.UNDER_WAY)
    under_way = [load(DispatchedSamplingTask, one) for one in documents]
    # The record's own count of turns is written only every few seconds.
    longest.turns = max([longest.turns, *(one.turn for one in under_way)])
    call = next((one for one in under_way if one.status == CallStatus.SENT), None)
    open_calls = [tool for one in under_way for tool in one.tool_calls if tool.status in _OPEN_TOOL_CALLS]
    tool_call = min(open_calls, key=lambda tool: tool.requested_at or now, default=None)
    unusable = await service_registry.unusable_servers(database) if call is None and tool_call is None else {}
    return Group(task, records, call, tool_call, unusable)


def of_group(what: str, group: Group, settings: StewardSettings, now: datetime) -> Iterator[Wait]:
    """The chain from `batch` or `evaluation` to the call that holds it up."""
    task, record = group.task, group.longest
    name = f"task {task.id}"
    age_s = _since(task.admitted_at, now)
    if record is None:
        yield Wait(name, "has no record under way and is not closed yet", age_s, settings.group_s, what)
        return
    yield Wait(
        name, f"{len(group.records)} of its {counted(task.n, 'records')} are not done", age_s, settings.group_s, what
    )
    yield from _of_record(name, record, group, settings, now)


def _of_record(task: str, record: Record, group: Group, settings: StewardSettings, now: datetime) -> Iterator[Wait]:
    owner = record.owner.partition(".")[0]
    if record.status == RecordStatus.OPEN:
        name, age_s = f"record {record.id}", _since(record.created_at, now)
        yield Wait(name, "is open, and no sampler has claimed it", age_s, settings.group_s, task)
        yield Wait("sampler", "to be claimed", age_s, settings.group_s, name)
        return
    name, age_s = f"record {record.id} on {owner}" if owner else f"record {record.id}", _since(record.started_at, now)
    episode_s = settings.episode_s + AROUND_A_DEADLINE_S
    if record.status != RecordStatus.RUNNING:
        scored_s = _since(record.finished_at, now)
        waits = "the scorer cannot answer" if record.status == RecordStatus.UNSCORED else "it waits for its score"
        yield Wait(name, f"has ended, and {waits}", scored_s, episode_s, task)
        if owner:
            yield Wait(owner, "scores it", scored_s, episode_s, name)
        return
    yield Wait(name, f"is under way, in turn {record.turns + 1}", age_s, episode_s, task)
    if owner:
        yield Wait(owner, "runs it", age_s, episode_s, name)
    yield from _of_calls(name, group, settings, now)


def _of_calls(record: str, group: Group, settings: StewardSettings, now: datetime) -> Iterator[Wait]:
    if (tool := group.tool_call) is not None:
        name, age_s = f"tool {tool.server}.{tool.tool}", _since(tool.requested_at, now)
        limit_s = tool_call_within_s(settings.tools_s.get(tool.server, 0.0))
        yield Wait(name, f"has not answered the call {tool.id}", age_s, limit_s, record)
        yield Wait("toolbox", "runs it", age_s, limit_s, name)
    elif (call := group.call) is not None:
        engine = call.engine.partition(".")[0]
        name, age_s = f"model call c{call.index} on {engine}", _since(call.sent_at, now)
        limit_s = settings.call_s + AROUND_A_DEADLINE_S
        yield Wait(name, "has no answer yet", age_s, limit_s, record)
        yield Wait(engine or "engine", "generates", age_s, limit_s, name)
    elif needed := [server for server in group.task.servers if server in group.unusable]:
        yield Wait(f"tool server {needed[0]}", group.unusable[needed[0]], 0.0, settings.group_s, record)


def of_admission(admitted: Admitted, since_s: float) -> Wait:
    """The wait if no group is under way for a batch, or if no step is taken because most attempts fail."""
    numbers = admitted.counts.sentence()
    if admitted.trial:
        return Wait("admission", f"tries only a few: {admitted.trial} ({numbers})", since_s, TRIES_WITHIN_S, "batch")
    why = admitted.why_not or "it has just admitted a group"
    return Wait("admission", f"admits nothing: {why} ({numbers})", since_s, ADMITS_WITHIN_S, "batch")


def _order(record: Record) -> tuple[bool, bool, str, str]:
    began = record.started_at if record.status != RecordStatus.OPEN else record.created_at
    return (record.status == RecordStatus.OPEN, began is None, began.isoformat() if began else "", record.id)


def _since(then: datetime | None, now: datetime) -> float:
    return 0.0 if then is None else max(0.0, (now - then).total_seconds())
