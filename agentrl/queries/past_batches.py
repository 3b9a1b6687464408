"""What another value of a knob of groups or curricula would have changed over the last batches: the steward's previews.

Invariants:
- Batches are the newest committed steps with their tasks, including tasks that were left out because they had no
  signal.
- The settings "before" are those in force now, not those with which the groups were closed, so only the knob makes a
  difference.
- Rows that an epoch leaves out come back in the next one, so they are not counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from agentrl.errors import RefusedError
from agentrl.formatting.amounts import counted
from agentrl.policies import curriculum, past_batches
from agentrl.policies.advantages import Trained
from agentrl.policies.curriculum import Window
from agentrl.policies.past_batches import BatchChanges, GroupChanges, PastGroup, StepChanges, WindowChanges
from agentrl.policies.status_tables import StepStatus
from agentrl.protocol.data_commands import PastChange, PastPreview
from agentrl.protocol.knob import KnobValue
from agentrl.steward import epochs
from agentrl.steward.curriculum import scores_of_stage
from agentrl.steward.settings import KEPT_BY_GROUPS, OF_ROWS, StewardSettings
from agentrl.store import groups
from agentrl.store.database import Database, Plain
from agentrl.store.documents import Record, load

STEPS = 20
_SCALINGS = ("normalise", "balance")
NOTHING_YET = "no step was committed yet, so nothing can be counted"


async def preview(database: Database, settings: Callable[[], StewardSettings], args: PastPreview) -> PastChange:
    """Raises RefusedError if nothing can be counted for this knob."""
    now = settings()
    part, dot, key = args.name.rpartition(".")
    if args.name in KEPT_BY_GROUPS:
        return await _of_groups(database, now, args)
    if args.name == "groups":
        return await _of_steps(database, args)
    if args.name in _SCALINGS:
        return await _of_batches(database, args)
    if key in OF_ROWS and part in now.environments:
        return await _of_rows(database, now, part, key, float(args.value or 0.0))
    if dot and part.startswith("stage_"):
        return await _of_stage(database, now, int(part.removeprefix("stage_")), float(args.value or 0.0))
    raise RefusedError(f"What {args.name} would have changed cannot be counted.")


# ---- groups ----


async def _of_groups(database: Database, settings: StewardSettings, args: PastPreview) -> PastChange:
    before = settings.group_rule
    after = settings.with_knobs({args.name: args.value}).group_rule
    steps = await _steps(database)
    if not steps:
        return PastChange(NOTHING_YET)
    found = past_batches.compare_groups(await _past_groups(database, steps), before, after)
    return PastChange(f"over {_those(steps)}, {_groups_in_words(found)}", _numbers(found))


def _groups_in_words(found: GroupChanges) -> str:
    parts = []
    if found.lost:
        lost = f"{counted(found.lost, 'groups')} more" if found.without_signal else counted(found.lost, "groups")
        parts.append(f"{lost} would have had no signal, and {counted(found.dropped, 'records')} would not have trained")
    elif found.dropped:
        parts.append(f"{counted(found.dropped, 'records')} would not have trained")
    if found.gained:
        parts.append(
            f"{counted(found.gained, 'groups')} more with {counted(found.added, 'records')} would have trained"
        )
    elif found.added:
        parts.append(f"{counted(found.added, 'records')} more would have trained")
    if found.changed:
        sign = f", {found.turned} of them of the other sign" if found.turned else ""
        parts.append(f"{counted(found.changed, 'records')} would have had another advantage{sign}")
    total = f"of {counted(found.groups, 'groups')} ({found.without_signal} without signal) with "
    total += f"{counted(found.records, 'records')} that train"
    return f"{total}: {'; '.join(parts) or 'nothing would have changed'}"


async def _past_groups(database: Database, steps: list[Plain]) -> list[PastGroup]:
    ids = [task for step in steps for task in (*step["tasks"], *step["filtered"])]
    fields = ["n", "shares.record"]
    tasks = {one["_id"]: one for one in await database.find("Task", {"_id": {"$in": ids}}, projection=fields)}
    members = {share["record"] for task in tasks.values() for share in task.get("shares", ())}
    known = {"_id": {"$in": sorted(members)}, "score": {"$ne": None}}
    by_task: dict[str, list[Record]] = defaultdict(list)
    for document in await database.find("Record", known, projection=groups.READ):
        by_task[document["task"]].append(load(Record, document))
    return [
        PastGroup(int(task["n"]), tuple(map(groups.member_of, by_task[name])))
        for name, task in tasks.items()
        if by_task[name]
    ]


# ---- advantages of whole batches ----


async def _of_batches(database: Database, args: PastPreview) -> PastChange:
    steps = await _steps(database)
    if not steps:
        return PastChange(NOTHING_YET)
    now: dict[str, KnobValue] = {name: bool(args.now.get(name)) for name in _SCALINGS}
    then = now | {args.name: bool(args.value)}
    before, after = ((bool(each["normalise"]), bool(each["balance"])) for each in (now, then))
    found = past_batches.compare_batches(await _past_batches(database, steps), before, after)
    return PastChange(f"over {_those(steps)}, {_batches_in_words(found)}", _numbers(found))


def _batches_in_words(found: BatchChanges) -> str:
    total = f"of {counted(found.records, 'records')}"
    if not found.changed:
        return f"{total}: nothing would have changed"
    sign = f", {found.turned} of them of the other sign" if found.turned else ""
    sums = f"positive advantages times {found.up:.3g}, negative ones times {found.down:.3g}, summed over their tokens"
    return f"{total} {found.changed} would have had another advantage{sign}: {sums}"


async def _past_batches(database: Database, steps: list[Plain]) -> list[list[Trained]]:
    ids = [record for step in steps for record in step["records"]]
    fields = ["task", "advantage", "capped", "trained_tokens"]
    trained = {"_id": {"$in": ids}, "advantage": {"$ne": None}}
    data = {one["_id"]: one for one in await database.find("DBRecordData", trained, projection=fields)}
    tasks = {"_id": {"$in": [task for step in steps for task in step["tasks"]]}}
    environments = {
        one["_id"]: str(one["environment"]) for one in await database.find("Task", tasks, projection=["environment"])
    }
    return [
        [
            Trained(
                environments.get(one["task"], ""),
                one["task"],
                float(one["advantage"]),
                int(one["trained_tokens"]),
                bool(one.get("capped")),
            )
            for record in step["records"]
            if (one := data.get(record)) is not None
        ]
        for step in steps
    ]


# ---- groups of a step ----


async def _of_steps(database: Database, args: PastPreview) -> PastChange:
    steps = await _steps(database)
    if not steps:
        return PastChange(NOTHING_YET)
    without = {task for step in steps for task in step["filtered"]}
    ids = without.union(*(step["tasks"] for step in steps))
    in_order = [("admitted_order", 1)]
    documents = await database.find("Task", {"_id": {"$in": sorted(ids)}}, sort=in_order, projection=["_id"])
    before, after = int(args.now.get("groups") or 1), int(args.value or 1)
    changes = past_batches.compare_steps([task["_id"] not in without for task in documents], before, after)
    return PastChange(f"over {_those(steps)}, {_steps_in_words(changes)}", _numbers(changes))


def _steps_in_words(found: StepChanges) -> str:
    def parts(steps: int, short: int) -> str:
        return f"{counted(steps, 'steps')}" + (f" ({short} of them short, for want of signal)" if short else "")

    total = f"{counted(found.groups, 'groups')} ({found.without_signal} without signal)"
    now, before = parts(found.steps, found.short), parts(found.steps_before, found.short_before)
    return f"{total} would have made {now}, and with the present value {before}"


# ---- rows and stages ----


async def _of_rows(
    database: Database, settings: StewardSettings, environment: str, key: str, value: float
) -> PastChange:
    before = settings.environments[environment].window or Window(0.0, 1.0)
    after = settings.with_knobs({f"{environment}.{key}": value}).environments[environment].window
    assert after is not None
    closed = {"environment": environment, "purpose": "train", "split": "train", "baseline": {"$ne": None}}
    last: list[Plain] = [
        {"$match": closed},
        {"$sort": {"epoch": 1}},
        {"$group": {"_id": "$row", "mean": {"$last": "$baseline.mean"}}},
    ]
    left_out = await epochs.left_out(database, environment)
    measured = {
        number: float(row["mean"])
        for row in await database.aggregate("Task", last)
        if (number := int(row["_id"])) not in left_out
    }
    if not measured:
        return PastChange(f"no row of {environment} was measured yet, so nothing can be counted")
    changes = past_batches.compare_windows(measured, before, after)
    return PastChange(_rows_in_words(environment, changes), _numbers(changes))


def _rows_in_words(environment: str, found: WindowChanges) -> str:
    def parts(hard: int, easy: int) -> str:
        return f"{hard + easy} ({hard} too hard, {easy} too easy)"

    rows = counted(found.rows, f"rows of {environment} that were measured")
    would = parts(found.hard, found.easy)
    return f"by their last scores the next epoch would leave out {would} of {rows}, and now leaves out " + parts(
        found.hard_before, found.easy_before
    )


async def _of_stage(database: Database, settings: StewardSettings, number: int, value: float) -> PastChange:
    found = await scores_of_stage(database, settings.stages)
    if found is None:
        return PastChange("the curriculum has not begun, so nothing can be counted")
    at, scores = found
    if number - 1 < at:
        return PastChange(f"stage {number} is over, so nothing changes: stages do not go back")
    if number - 1 > at:
        return PastChange(f"stage {number} has not begun; stage {at + 1} is under way")
    stage = settings.stages[at].ending_at(value)
    assert stage.until is not None
    if why := curriculum.reached(stage, scores):
        return PastChange(f"stage {number} would be over at once: {why}", {"groups": len(scores)})
    mean = f" with a mean of {sum(scores) / len(scores):.3g}" if scores else ""
    have = f"{len(scores)} of {counted(stage.until.groups, 'groups')} of {stage.until.environment}"
    return PastChange(f"stage {number} would go on: it has {have}{mean}", {"groups": len(scores)})


async def _steps(database: Database) -> list[Plain]:
    """The newest committed steps."""
    committed = {"status": StepStatus.COMMITTED}
    fields = ["tasks", "filtered", "records"]
    return await database.find("Step", committed, sort=[("step", -1)], limit=STEPS, projection=fields)


def _those(steps: list[Plain]) -> str:
    return f"the last {counted(len(steps), 'steps')}" if len(steps) > 1 else "the last step"


def _numbers(found: Any) -> dict[str, float]:
    names: Mapping[str, Any] = {name: getattr(found, name) for name in type(found).__slots__}
    return {name: float(value) for name, value in names.items()}
