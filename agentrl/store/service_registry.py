"""Services: the engines and toolboxes that answer over HTTP, and what they serve.

Invariants: a service reports every two seconds; a service that was silent for longer than `SILENT_S` by the server's
clock is not called; addresses of services that are gone are kept as history and never called.
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
"""The kind of the row that gives a trainer its turn on a device that it shares with engines."""
SILENT_S = 8.0
FORGOTTEN_S = 60.0


async def report(database: Database, service: Service) -> None:
    """Call it every two seconds, and at once when the state of the service changed."""
    fields: dict[str, Any] = to_bson(service)
    for name in ("_id", "seen_at"):
        del fields[name]
    await database.update_one("Service", {"_id": service.id}, setting(fields, seen_at=NOW), upsert=True)


async def alive(database: Database, kind: str, *, state: str = "serving") -> list[Service]:
    """The services that may be called now."""
    return await _reported(database, kind, [state], within_s=SILENT_S)


async def take_turn(database: Database, turn: Service) -> None:
    """Repeat it every two seconds; a turn that is not renewed ends by itself."""
    await report(database, msgspec.structs.replace(turn, state="training"))


async def give_turn(database: Database, turn: Service) -> None:
    await report(database, msgspec.structs.replace(turn, state="gone"))


async def turn_is_taken(database: Database) -> bool:
    """Whether a trainer has its turn on the device of the engines, or wants it."""
    return bool(await alive(database, TURN, state="training"))


async def on_the_device(database: Database) -> bool:
    """Whether any engine has not left for the turn of the trainer."""
    # One query, because between two queries an engine could change from a state of the second to a state of the first.
    return bool(await _reported(database, "engine", ON_THE_DEVICE, within_s=SILENT_S))


async def seen(database: Database, kind: str, states: Sequence[str]) -> list[Service]:
    """The services in one of these states that reported within FORGOTTEN_S."""
    return await _reported(database, kind, states, within_s=FORGOTTEN_S)


async def _reported(database: Database, kind: str, states: Sequence[str], *, within_s: float) -> list[Service]:
    there = {"kind": kind, "state": {"$in": list(states)}, "$expr": {"$gt": ["$seen_at", from_now(-within_s)]}}
    return [load(Service, document) for document in await database.find("Service", there, sort=[("_id", 1)])]


async def declared_effects(database: Database, server: str) -> dict[str, str]:
    """The effect of each tool, as its server declared it last, even if its toolbox has ended since."""
    known = {"kind": "toolbox", "effects": {"$elemMatch": {"0": server}}}
    newest = await database.find_one("Service", known, sort=[("seen_at", -1)])
    effects = load(Service, newest).effects if newest is not None else []
    return {tool: effect for name, tool, effect in effects if name == server}


async def unusable_servers(database: Database) -> dict[str, str]:
    """Tool servers that no toolbox can use now although some toolbox has them, each with the reason."""
    toolboxes = await alive(database, "toolbox")
    usable = {name for box in toolboxes for name in box.names if name not in box.unavailable}
    return {
        name: f"{box.unit}: {trouble}"
        for box in toolboxes
        for name, trouble in zip(box.unavailable, box.troubles, strict=False)
        if name not in usable
    }


async def forget_silent(database: Database) -> int:
    """Mark services as gone that ended without reporting it."""
    silent = {"state": {"$in": PRESENT}, **is_older("seen_at", FORGOTTEN_S)}
    return await database.update_many("Service", silent, {"$set": {"state": "gone"}})
