"""The account: every task, record, seat and step, and sums that must agree.

Invariants: it only reads; it counts the documents themselves and never uses another count; a problem names the first
documents that show it. A change that is under way while it reads is not a problem, because each problem must show in
two looks.
"""

from __future__ import annotations

import asyncio

import msgspec

from agentrl.policies.status_tables import (
    CHECKPOINT,
    DISPATCHED_SAMPLING_TASK,
    PUBLICATION,
    RECORD,
    REPLAY,
    STEP,
    TASK,
    TOOL_CALL,
    StepStatus,
)
from agentrl.store.audit import calls, groups, seats, steps, trained_records, versions
from agentrl.store.audit.problems import SEATED, Checks, Problem, each, each_if
from agentrl.store.database import Database, Plain

LOOK_AGAIN_S = 0.5
AT_ONCE = 2
"""Checks that run side by side; the server also serves the run meanwhile."""
UNKNOWN = "unknown"


class Account(msgspec.Struct, frozen=True, kw_only=True):
    tasks: dict[str, dict[str, int]]
    """By purpose and status."""
    records: dict[str, dict[str, int]]
    """By purpose and status."""
    seats: dict[str, int]
    """Seats of present rounds: `wanted`, `held` and `empty`."""
    steps: dict[str, int]
    """By status."""
    trained_records: int
    """Records trained in committed Steps that were not rolled back."""
    outcomes: dict[str, int]
    """Ended attempts by class."""
    problems: tuple[Problem, ...]

    @property
    def balanced(self) -> bool:
        return not self.problems


async def account(database: Database, *, max_trained_count: int = 1) -> Account:
    problems = await _problems(database, max_trained_count)
    if problems:
        # A change that spans documents may have been half done. A real problem shows again, in the same documents.
        await asyncio.sleep(LOOK_AGAIN_S)
        before = {problem.what: problem for problem in problems}
        again = [problem for problem in await _problems(database, max_trained_count) if problem.what in before]
        problems = [left.cut() for problem in again if (left := problem.still(before[problem.what])) is not None]
    return await _sums(database, tuple(problems))


async def _problems(database: Database, max_trained_count: int) -> list[Problem]:
    turns = asyncio.Semaphore(AT_ONCE)

    async def result(checks: Checks) -> list[Problem]:
        async with turns:
            return await checks(database)

    results = await asyncio.gather(*map(result, _checks(max_trained_count)))
    return [problem for problems in results for problem in problems]


def _checks(max_trained_count: int) -> list[Checks]:
    """The slowest checks begin first, so that they run in parallel with all others."""
    return [
        each_if(calls.tokens_may_be_wrong, calls.calls_that_do_not_fit, calls.tokens_that_do_not_add_up),
        trained_records.trained_records,
        each(groups.wrong_baselines),
        seats.seats_and_attempts,
        each_if(
            seats.statuses_of_calls_may_be_unknown, *map(seats.unknown_statuses, (DISPATCHED_SAMPLING_TASK, TOOL_CALL))
        ),
        each(
            *map(seats.unknown_statuses, (TASK, RECORD, STEP, CHECKPOINT, PUBLICATION, REPLAY)),
            seats.rows_that_are_not_tasks,
            seats.records_of_the_dead,
            seats.units_with_two_owners,
            steps.leases_that_disagree,
            steps.ends_that_disagree,
            steps.steps_that_stand_twice,
            steps.leases_of_the_closed,
            steps.steps_outside_of_their_lineage,
            steps.wrong_trained_counts,
            steps.trained_too_often(max_trained_count),
            versions.lineages_open_at_once,
            versions.versions_out_of_order,
            versions.steps_from_strange_versions,
            calls.ended_and_still_waiting,
            calls.replays_that_disagree,
        ),
    ]


# ---- sums ----


async def _sums(database: Database, problems: tuple[Problem, ...]) -> Account:
    tasks, records, held, steps, trained, outcomes = await asyncio.gather(
        _by_purpose(database, "Task"),
        _by_purpose(database, "Record"),
        _seats(database),
        _counted(database, "Step", {"status": "$status"}),
        _trained_records(database),
        _counted(database, "Record", {"class": "$outcome_class"}),
    )
    return Account(
        tasks=tasks,
        records=records,
        seats=held,
        steps={group["status"]: count for group, count in steps},
        trained_records=trained,
        outcomes={group["class"]: count for group, count in outcomes if group["class"]},
        problems=problems,
    )


async def _counted(database: Database, collection: str, key: Plain) -> list[tuple[dict[str, str], int]]:
    documents = await database.aggregate(collection, [{"$group": {"_id": key, "count": {"$sum": 1}}}])
    return [(group["_id"], int(group["count"])) for group in documents]


async def _by_purpose(database: Database, collection: str) -> dict[str, dict[str, int]]:
    sums: dict[str, dict[str, int]] = {}
    for group, count in await _counted(database, collection, {"purpose": "$purpose", "status": "$status"}):
        # A document without a purpose was written by another program: it is counted, but apart from the others.
        of_purpose = sums.setdefault(group.get("purpose", UNKNOWN), {})
        of_purpose[group.get("status", UNKNOWN)] = count
    return sums


async def _seats(database: Database) -> dict[str, int]:
    wanted = held = 0
    async for task in seats.by_task(database):
        of = task["of"]
        if of is not None and of.get("status") in SEATED:
            wanted += of["n"]
            held += sum(each["held"] for each in task["rounds"] if each.get("round") == of.get("round"))
    return {"wanted": wanted, "held": held, "empty": wanted - held}


async def _trained_records(database: Database) -> int:
    committed = {"$match": {"status": StepStatus.COMMITTED}}
    documents = await database.aggregate(
        "Step", [committed, {"$group": {"_id": None, "count": {"$sum": {"$size": "$records"}}}}]
    )
    return int(documents[0]["count"]) if documents else 0
