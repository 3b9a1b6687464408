"""Lists: pages of documents, and what the records among them are doing now.

Invariants: a row has the field names of its document; fields that only programs read (tokens, manifests, files) and
long fields (`extra`, the records of a step) are left to `show`; a text in a row is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from agentrl.errors import UnknownNameError
from agentrl.policies.status_tables import CallStatus, RecordStatus, ToolCallStatus
from agentrl.protocol.data_commands import ListRows, Page
from agentrl.store import calls, list_cursors, lists, service_registry
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database, Plain

LONGEST_TEXT = 500
_OPEN_TOOLS = [ToolCallStatus.REQUESTED, ToolCallStatus.RUNNING]
COUNTED = {"Step": ("tasks", "filtered", "records"), "Replay": ("rebuilt", "runs")}
"""Lists of ids that a row only counts."""
LEFT_OUT = {
    "Task": ("extra",),
    "ToolCall": ("arguments",),
    "Checkpoint": ("files",),
    "Replay": ("arguments", "then", "sent", "session"),
}


async def page(database: Database, kind: str, args: ListRows, *, among: Sequence[str] | None = None) -> Page:
    found = await lists.page(
        database, kind, filter=args.filter, sort=args.sort, after=_last(kind, args.after), limit=args.limit, among=among
    )
    rows = [shortened(kind, row) for row in found.rows]
    if kind == "Record":
        await add_activity(database, rows)
    if kind == "Publication":
        await _add_serving_engines(database, rows)
    return Page(tuple(rows), found.after or "")


def _last(kind: str, after: str) -> str | int | None:
    if kind != "Publication" or not after or list_cursors.is_place(after):
        return after or None
    if not after.isdecimal():
        raise UnknownNameError(f"There is no version {after!r} to go on from.", hint="Begin at the first page.")
    return int(after)


def shortened(kind: str, row: Plain) -> Plain:
    """A document as a row of a list."""
    left_out, counted = LEFT_OUT.get(kind, ()), COUNTED.get(kind, ())
    short = {name: cut(value) for name, value in row.items() if name not in left_out and name not in counted}
    return short | ({"counts": {name: len(row.get(name, ())) for name in counted}} if counted else {})


def cut(value: Any, most: int = LONGEST_TEXT) -> Any:
    return f"{value[: most - 1]}…" if type(value) is str and len(value) > most else value


async def add_activity(database: Database, rows: list[Plain]) -> None:
    """Adds to running records how long they have been running, and the call that they are in."""
    running = [row for row in rows if row["status"] == RecordStatus.RUNNING]
    if not running:
        return
    now = await database.now()
    doing = await _calls_under_way(database, [row["id"] for row in running], now)
    for row in running:
        row["age_s"] = age_s(row.get("started_at"), now)
        row["doing"] = doing.get(row["id"])


async def _add_serving_engines(database: Database, rows: list[Plain]) -> None:
    engines = await database.find(
        "Service", {"kind": "engine", "state": {"$in": service_registry.PRESENT}}, projection=["version", "state"]
    )
    for row in rows:
        row["engines"] = {engine["_id"]: engine["state"] for engine in engines if engine.get("version") == row["id"]}


async def _calls_under_way(database: Database, records: list[str], now: datetime) -> dict[str, Plain]:
    """The oldest call under way of each record, which is the one that the record waits for."""
    of_them = {"record": {"$in": records}}
    found = []
    for call in await database.find(CALLS, of_them | {"status": CallStatus.SENT}, projection=calls.UNDER_WAY):
        at = f" at {call['engine']}" if call.get("engine") else ""
        found.append((call["sent_at"], call["record"], f"model call{at}", call["_id"]))
    wanted = of_them | {"tool_calls.status": {"$in": _OPEN_TOOLS}}
    for call in await database.find(CALLS, wanted, projection=calls.UNDER_WAY):
        for tool in call["tool_calls"]:
            if tool["status"] in _OPEN_TOOLS:
                what = f"tool call {tool['server']}.{tool['tool']}"
                found.append((tool["requested_at"], call["record"], what, tool["id"]))
    doing: dict[str, Plain] = {}
    for since, record, what, id in sorted(found, key=lambda one: one[0]):
        doing.setdefault(record, {"what": what, "call": id, "since": since, "age_s": age_s(since, now)})
    return doing


def age_s(since: datetime | None, now: datetime) -> float | None:
    return None if since is None else round(max(0.0, (now - since).total_seconds()), 1)
