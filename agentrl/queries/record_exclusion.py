"""Serves `records exclude`: finds the records, says what follows for their groups, and excludes them."""

from __future__ import annotations

import re
from collections.abc import Callable

from agentrl.errors import AgentrlError, RefusedError, UsageError
from agentrl.filters.mongo import Query
from agentrl.formatting.amounts import counted
from agentrl.formatting.sentences import few
from agentrl.policies.status_tables import RecordStatus
from agentrl.protocol.data_commands import Done, ExcludeRecords
from agentrl.protocol.effects import Effect
from agentrl.protocol.messages.served_commands import AskUnit
from agentrl.steward.settings import StewardSettings
from agentrl.store import exclusions, lists
from agentrl.store.call_writer import CALLS
from agentrl.store.database import Database
from agentrl.store.documents import TRAINS
from agentrl.store.exclusions import Exclusion

MOST = 5000
"""Records that one command excludes."""


class RecordExclusion:
    def __init__(self, database: Database, settings: Callable[[], StewardSettings]) -> None:
        self._database = database
        self._settings = settings

    async def preview(self, args: ExcludeRecords) -> Effect:
        planned, others = await self._plan(args)
        _refuse_nothing(args, planned)
        again = await exclusions.sampled_again(self._database, planned, self._settings().group_rule)
        changes = [
            f"{counted(planned.count, 'records')} of {counted(len(planned.tasks), 'groups')} will not train",
            "the baselines of these groups are computed again without them",
        ]
        loses = [f"{counted(again, 'groups')} would have too few records: sampled again in the next round"]
        notes = [*few(list(planned.refused.values()))]
        if others:
            notes.append(f"{counted(others, 'other records')} match, but trained already or are over: they stay")
        if planned.done:
            notes.append(f"{counted(len(planned.done), 'records')} of them were excluded before")
        if not planned.count:
            return Effect(notes=tuple(notes))
        return Effect(changes=tuple(changes), loses=tuple(loses) if again else (), notes=tuple(notes))

    async def carry_out(self, args: ExcludeRecords, operation: AskUnit) -> Done:
        planned, _ = await self._plan(args, by=operation.id)
        _refuse_nothing(args, planned)
        rule = self._settings().group_rule
        excluded, again = len(planned.done), 0
        for id, task in planned.tasks.items():
            records = planned.records[id]
            try:
                enough = await exclusions.exclude(self._database, task, records, args.note, by=operation.id, rule=rule)
            except AgentrlError as why:
                planned.refused[id] = str(why)
                continue
            excluded += len(records)
            again += not enough
        lines = [f"{counted(excluded, 'records')} excluded"]
        if again:
            lines.append(f"{counted(again, 'groups')} with too few records left: sampled again")
        lines += few(list(planned.refused.values()))
        return Done(tuple(lines), {"excluded": excluded, "sampled_again": again, "refused": len(planned.refused)})

    async def _plan(self, args: ExcludeRecords, *, by: str = "") -> tuple[Exclusion, int]:
        """With how many other records match."""
        if args.ids:
            return await exclusions.plan(self._database, args.ids, by=by), 0
        open_tasks = await self._database.find("Task", _CHANGEABLE, projection=["_id"])
        here: Query = {"task": {"$in": [task["_id"] for task in open_tasks]}}
        made = await self._made_by(args.made_by, here) if args.made_by else {}
        ids: list[str] = []
        scored: Query = {"status": RecordStatus.SCORED}
        begun: Query = {"excluded_by": by} if by else {"_id": None}
        also: Query = {"$and": [here, made, {"$or": [scored, begun]}]}
        after: str | None = ""
        while after is not None:
            page = await lists.page(
                self._database, "Record", filter=args.filter, after=after or None, limit=lists.MOST_ROWS, also=also
            )
            ids += [row["id"] for row in page.rows]
            after = page.after
            if len(ids) > MOST:
                raise UsageError(f"More than {MOST} records match.", hint="Name fewer of them with --filter.")
        others = await lists.count(self._database, "Record", args.filter, also=_over(here, args.made_by))
        return await exclusions.plan(self._database, ids, by=by), others

    async def _made_by(self, unit: str, here: Query) -> Query:
        """Records that a unit sampled, or whose text an engine generated."""
        name = {"$regex": f"^{re.escape(unit)}(\\.|$)"}
        records = [one["_id"] for one in await self._database.find("Record", here, projection=["_id"])]
        generated = await self._database.distinct(CALLS, "record", {"record": {"$in": records}, "engine": name})
        return {"$or": [{"owner": name}, {"_id": {"$in": generated}}]}


_CHANGEABLE = {"status": {"$in": list(exclusions.CHANGEABLE)}, "purpose": {"$in": list(TRAINS)}}


def _over(here: Query, made_by: str) -> Query:
    over: Query = {"task": {"$nin": here["task"]["$in"]}, "purpose": {"$in": list(TRAINS)}}
    return over | ({"owner": {"$regex": f"^{re.escape(made_by)}(\\.|$)"}} if made_by else {})


def _refuse_nothing(args: ExcludeRecords, planned: Exclusion) -> None:
    if planned.count or planned.done:
        return
    if args.ids:
        raise RefusedError(" ".join(few(list(planned.refused.values()))))
    raise RefusedError("No scored record that could still train matches.", hint="See `agentrl records list`.")
