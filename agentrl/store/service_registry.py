"""Services: who answers over HTTP, and for what.

Invariants: a service tells of itself every two seconds; one that was silent for longer than `SILENT_S` is not called,
by the server's clock; addresses of the gone are kept as history, never as a choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agentrl.store.database import Database
from agentrl.store.documents import Service, load, to_bson
from agentrl.store.update_expressions import NOW, from_now, is_older, setting

PRESENT = ["starting", "loading", "serving", "parked", "draining"]
ON_THE_DEVICE = ("starting", "loading", "serving")
TURN = "turn"
"""The kind of the row by which a trainer has its turn on a device that it shares with engines."""
SILENT_S = 8.0
FORGOTTEN_S = 60.0


async def report(database: Database, service: Service) -> None:
    """To be called every two seconds, and at once when its state changed."""
    fields: dict[str, Any] = to_bson(service)
    for name in ("_id", "seen_at"):
        del fields[name]
    await database.update_one("Service", {"_id": service.id}, setting(fields, seen_at=NOW), upsert=True)


async def alive(database: Database, kind: str, *, state: str = "serving") -> list[Service]:
    """Those that may be called now."""
    return await _reported(database, kind, [state], within_s=SILENT_S)


async def take_turn(database: Database, turn: Service) -> None:
    """To be repeated every two seconds; a turn that is not ends by itself."""
    await report(database, msgspec.structs.replace(turn, state="training"))


async def give_turn(database: Database, turn: Service) -> None:
    await report(database, msgspec.structs.replace(turn, state="gone"))


async def turn_is_taken(database: Database) -> bool:
    """Whether a trainer has its turn on the device of the engines, or wants it."""
    return bool(await alive(database, TURN, state="training"))


async def on_the_device(database: Database) -> bool:
    """Whether any engine has not left for the turn of the trainer."""
    # One query: between two of them an engine can change from a state of the second to one of the first.
    return bool(await _reported(database, "engine", ON_THE_DEVICE, within_s=SILENT_S))


async def seen(database: Database, kind: str, states: Sequence[str]) -> list[Service]:
    """Those in one of these states that reported within FORGOTTEN_S."""
    return await _reported(database, kind, states, within_s=FORGOTTEN_S)


async def _reported(database: Database, kind: str, states: Sequence[str], *, within_s: float) -> list[Service]:
    there = {"kind": kind, "state": {"$in": list(states)}, "$expr": {"$gt": ["$seen_at", from_now(-within_s)]}}
    return [load(Service, document) for document in await database.find("Service", there, sort=[("_id", 1)])]


async def declared_effects(database: Database, server: str) -> dict[str, str]:
    """What calls of each tool change, as the server declared it last, also if its toolbox has ended since."""
    known = {"kind": "toolbox", "effects": {"$elemMatch": {"0": server}}}
    newest = await database.find_one("Service", known, sort=[("seen_at", -1)])
    effects = load(Service, newest).effects if newest is not None else []
    return {tool: effect for name, tool, effect in effects if name == server}


async def unusable_servers(database: Database) -> dict[str, str]:
    """Tool servers that toolboxes have and none of them can use now, each with the reason."""
    toolboxes = await alive(database, "toolbox")
    usable = {name for box in toolboxes for name in box.names if name not in box.unavailable}
    return {
        name: f"{box.unit}: {trouble}"
        for box in toolboxes
        for name, trouble in zip(box.unavailable, box.troubles, strict=False)
        if name not in usable
    }


async def forget_silent(database: Database) -> int:
    """Mark those as gone that did not say so themselves."""
    silent = {"state": {"$in": PRESENT}, **is_older("seen_at", FORGOTTEN_S)}
    return await database.update_many("Service", silent, {"$set": {"state": "gone"}})
