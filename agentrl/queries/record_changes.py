"""Serves the commands that change records: one preview and one execution for all of them.

Invariants:
- A preview says in numbers what would happen, and which records are refused for which reason.
- A record is changed once per operation, however often the operation is requested.
- Records that another operation changed before are never counted as changed by this one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from agentrl.errors import RefusedError, UnknownNameError, UsageError
from agentrl.filters.mongo import Query
from agentrl.formatting.amounts import counted, moment
from agentrl.formatting.sentences import few
from agentrl.protocol.data_changes import ChooseRecords, Done
from agentrl.protocol.effects import Effect
from agentrl.protocol.messages.served_commands import AskUnit
from agentrl.queries.record_verbs import VERBS, Plan, Verb
from agentrl.steward.settings import StewardSettings
from agentrl.store import chosen_records, lists, publications
from agentrl.store.call_writer import CALLS
from agentrl.store.chosen_records import Refused
from agentrl.store.database import Database
from agentrl.store.documents import TRAINS
from agentrl.store.publications import PassedCanary

MOST = 5000
"""Records that one command changes."""


class RecordChanges:
    """The commands that change records, by their names."""

    def __init__(self, database: Database, settings: Callable[[], StewardSettings]) -> None:
        self._database = database
        self._settings = settings
        self.table = {name: _Command(self, verb) for name, verb in VERBS.items()}

    async def preview(self, verb: Verb[Any], args: ChooseRecords) -> Effect:
        canary = await self._canary(args)
        planned = await self._plan(verb, args, canary)
        effect = await verb.effect(self._database, planned, args, self._settings())
        notes = [f"only those that {_since(canary)}"] if canary is not None else []
        notes += [*effect.notes, *_refusals(planned)]
        if verb.tasks is not None and not args.ids and (over := await self._over(verb, args, canary)):
            notes.append(f"{counted(over, 'other records')} match, but trained already or are over: they stay")
        if planned.before:
            notes.append(f"{counted(len(planned.before), 'records')} of them {verb.were_before}")
        if not planned.count:
            return Effect(notes=tuple(notes))
        return Effect(changes=effect.changes, loses=effect.loses, notes=tuple(notes))

    async def carry_out(self, verb: Verb[Any], args: ChooseRecords, operation: AskUnit) -> Done:
        if not (verb.waits and await self._has_begun(verb, operation.id)):
            planned = await self._plan(verb, args, await self._canary(args), by=operation.id)
            outcome: Counter[str] = Counter({verb.done: len(planned.done)})
            for name, ids in _parts(verb, planned):
                try:
                    outcome += await verb.carry_out(
                        self._database, planned.tasks.get(name), ids, args, operation, self._settings().group_rule
                    )
                except (RefusedError, UnknownNameError) as why:
                    for id in ids:
                        planned.refused[id] = Refused("they went on meanwhile", str(why))
            if not verb.waits:
                return _done(verb, outcome, planned)
        assert verb.progress is not None
        return await verb.progress(self._database, operation.id)

    async def _has_begun(self, verb: Verb[Any], by: str) -> bool:
        return await self._database.find_one("Record", {verb.mark: by}, projection=["_id"]) is not None

    # ---- which ----

    async def _canary(self, args: ChooseRecords) -> PassedCanary | None:
        """The canary since which records are chosen; None if the command does not ask for one. Raises RefusedError if
        the engine passed no canary."""
        if not args.since_canary:
            return None
        found = await publications.last_canary(self._database, _of_unit(args.made_by))
        if found is None:
            raise RefusedError(
                f"{args.made_by} passed no canary whose time is known.",
                hint="`agentrl versions list --json` has the canaries of every engine.",
            )
        return found

    async def _plan(
        self, verb: Verb[Any], args: ChooseRecords, canary: PassedCanary | None = None, *, by: str = ""
    ) -> Plan:
        ids = list(dict.fromkeys(args.ids)) or await self._found(verb, args, canary, by)
        chosen = await chosen_records.read(self._database, ids)
        planned = Plan()
        for id in ids:
            if (one := chosen.get(id)) is None:
                planned.refused[id] = Refused("they do not exist", f"There is no record {id}.")
                continue
            standing = verb.standing(one, args, by)
            if standing == "done":
                planned.done.append(id)
            elif standing == "before":
                planned.before.append(id)
            elif why := verb.refusal(one):
                planned.refused[id] = why
            else:
                planned.add(one)
        self._refuse_nothing(verb, planned, canary)
        return planned

    async def _found(self, verb: Verb[Any], args: ChooseRecords, canary: PassedCanary | None, by: str) -> list[str]:
        here = await self._here(verb)
        query: Query = {"status": {"$in": list(verb.statuses)}} if verb.statuses else {}
        made = await self._made_by(args.made_by, canary, here | query) if args.made_by else {}
        also: Query = {"$and": [made, here, query]}
        # Records that this operation changed before an interruption may no longer match the filter, which often names a
        # status.
        begun = await self._database.find("Record", {verb.mark: by}, projection=["_id"]) if by else []
        ids = [record["_id"] for record in begun]
        after: str | None = ""
        while after is not None:
            page = await lists.page(
                self._database, "Record", filter=args.filter, after=after or None, limit=lists.MOST_ROWS, also=also
            )
            ids += [row["id"] for row in page.rows]
            after = page.after
            if len(ids) > MOST:
                raise UsageError(f"More than {MOST} records match.", hint="Name fewer of them with --filter.")
        return list(dict.fromkeys(ids))

    async def _here(self, verb: Verb[Any]) -> Query:
        """Records of tasks that the verb can change."""
        if verb.tasks is None:
            return {}
        wanted = {"status": {"$in": list(verb.tasks)}, "purpose": {"$in": list(TRAINS)}}
        return {
            "task": {"$in": [task["_id"] for task in await self._database.find("Task", wanted, projection=["_id"])]}
        }

    async def _made_by(self, unit: str, canary: PassedCanary | None, among: Query) -> Query:
        """Records that a unit sampled, or whose text an engine generated. With a canary: generated since then."""
        name = _of_unit(unit)
        if canary is not None:
            # A record that ended before the canary has no later text. A record that has not ended has no `finished_at`.
            among = {"$and": [among, {"$nor": [{"finished_at": {"$lt": canary.at}}]}]}
        records = [one["_id"] for one in await self._database.find("Record", among, projection=["_id"])]
        calls: Query = {"record": {"$in": records}, "engine": name}
        if canary is not None:
            calls["$nor"] = [{"done_at": {"$lt": canary.at}}]
        generated: Query = {"_id": {"$in": await self._database.distinct(CALLS, "record", calls)}}
        return generated if canary is not None else {"$or": [{"owner": name}, generated]}

    async def _over(self, verb: Verb[Any], args: ChooseRecords, canary: PassedCanary | None) -> int:
        """How many matching records belong to tasks that the verb cannot change."""
        here = await self._here(verb)
        over: Query = {"task": {"$nin": here["task"]["$in"]}, "purpose": {"$in": list(TRAINS)}}
        over |= {"status": {"$in": list(verb.statuses)}}
        if canary is not None:
            over = {"$and": [over, await self._made_by(args.made_by, canary, over)]}
        elif args.made_by:
            over |= {"owner": _of_unit(args.made_by)}
        return await lists.count(self._database, "Record", args.filter, also=over)

    @staticmethod
    def _refuse_nothing(verb: Verb[Any], planned: Plan, canary: PassedCanary | None) -> None:
        if planned.count or planned.done or planned.before:
            return
        if planned.refused:
            raise RefusedError(" ".join(few(_refusals(planned))))
        if canary is not None:
            raise RefusedError(
                f"No {verb.kind} matches that {_since(canary)}.",
                hint="The incarnation before has a canary of its own: `--made-by UNIT.N`.",
            )
        raise RefusedError(f"No {verb.kind} matches.", hint="See `agentrl records list`.")


class _Command:
    """A verb as the steward serves it."""

    def __init__(self, changes: RecordChanges, verb: Verb[Any]) -> None:
        self._changes = changes
        self._verb = verb

    async def preview(self, args: ChooseRecords) -> Effect:
        return await self._changes.preview(self._verb, args)

    async def carry_out(self, args: ChooseRecords, operation: AskUnit) -> Done:
        return await self._changes.carry_out(self._verb, args, operation)


def _parts(verb: Verb[Any], planned: Plan) -> list[tuple[str, list[str]]]:
    """The tasks with their records, or all records together."""
    if verb.at_once:
        return [("", [record.id for record in planned.all])] if planned.count else []
    return [(task, [record.id for record in records]) for task, records in planned.records.items()]


def _of_unit(unit: str) -> Query:
    """A unit by its name or by that of an incarnation."""
    return {"$regex": f"^{re.escape(unit)}(\\.|$)"}


def _since(canary: PassedCanary) -> str:
    """A clause that says since when records are chosen."""
    at = moment(canary.at.timestamp())
    return f"{canary.engine} generated since it passed its last canary, of version {canary.version} at {at}"


def _refusals(planned: Plan) -> Sequence[str]:
    """One sentence for each reason, with how many records have it."""
    kinds: dict[str, list[str]] = {}
    for kind, sentence in planned.refused.values():
        kinds.setdefault(kind, []).append(sentence)
    return [
        sentences[0] if len(sentences) == 1 else f"{len(sentences)} records are refused because {kind}: {sentences[0]}"
        for kind, sentences in kinds.items()
    ]


def _done(verb: Verb[Any], outcome: Counter[str], planned: Plan) -> Done:
    lines = [f"{counted(outcome[verb.done], 'records')} {verb.done.replace('_', ' ')}"]
    lines += [verb.also[name].format(amount) for name, amount in outcome.items() if amount and name in verb.also]
    also = {name: outcome[name] for name in verb.also}
    return Done((*lines, *_refusals(planned)), {verb.done: outcome[verb.done], **also, "refused": len(planned.refused)})
