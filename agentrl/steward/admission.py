"""Admits what may be sampled now: whole groups, in a mix of environments, as far as the formula allows.

Invariants: the place in the order is read before anything is counted, and each place is given once, so if two stewards
count the same capacity, only one uses it; evaluation and probes need no capacity; the mix depends only on the place in
the order of admission, and on the stage of the curriculum. Nothing is admitted for an environment whose tool server
cannot be used, because it could only fail. While most attempts fail, a few are tried.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from agentrl.policies import admission_capacity
from agentrl.policies.admission_capacity import Counts
from agentrl.policies.status_tables import TaskStatus
from agentrl.steward.settings import StewardSettings
from agentrl.store import admission_counts as counts
from agentrl.store import lineages, service_registry, tasks
from agentrl.store.database import Database, Plain
from agentrl.store.documents import TRAINS, Task, load

MOST_AT_ONCE = 16
"""The most groups of one turn; if more may be admitted, the next turn follows at once."""
MOST_EVALUATIONS = 64
NONE_HELD: Mapping[str, str] = MappingProxyType({})
_IN_ORDER = [("epoch", 1), ("place", 1)]
_READ = [
    *("environment", "purpose", "status", "reason", "round", "rounds_max", "lineage", "step", "fork"),
    *("scorer", "scorer_of_row"),
]
_GOLDEN = 0.6180339887498949
"""The fractional parts of its multiples spread evenly over 0 to 1, however many there are."""


class Admitted(NamedTuple):
    groups: int
    capacity: int
    counts: Counts
    why_not: str = ""
    held: Mapping[str, str] = NONE_HELD
    """Environments for which nothing is admitted, and why."""
    trial: str = ""
    """Why only a few groups are tried, one after another."""


async def admit(database: Database, settings: StewardSettings, held: Mapping[str, str] = NONE_HELD) -> Admitted:
    """One turn of admission. `held`: an earlier result of `held_environments`, which is read again if there is room."""
    reported = await reported_plan(database)
    hold = settings.hold or str(reported.get("hold", ""))
    tries = bool(reported.get("trial")) and not settings.hold
    order = await tasks.last_order(database) + 1
    # Counted after the place was read: a group that another steward admits meanwhile is either counted or takes the
    # place.
    counted = await counts.of_admission(database)
    rooms = _rooms(settings, reported, counted)
    room = max(rooms.values())
    queue: list[Task] = []
    # The usual turn finds no room, so the queue is read last.
    if room >= settings.n and (tries or not hold):
        held = await held_environments(database, settings)
        queue = await _queue(database, settings, held, order)
    sizes = [(rooms[task.environment], _size(task, settings, reported)) for task in queue]
    granted = admission_capacity.granted(sizes)
    if tries:
        waited_s = await tasks.since_last_admission_s(database)
        granted = min(granted, admission_capacity.groups_on_trial(settings.n, counted, waited_s))
    # Ends if another steward admits too, because the counts are out of date then.
    done = await tasks.admit(
        database,
        queue[:granted],
        n=settings.n,
        sampling=settings.sampling(),
        scorers={task.id: settings.scorer_of(task) for task in queue},
        deadline_s=settings.group_s,
        rounds_max=settings.rounds_max,
        first_order=order,
        closing=settings.group_rule.kept(),
    )
    why_not = (
        "another steward admitted at the same moment" if granted else _why_none(hold, room < settings.n, held, queue)
    )
    return Admitted(done, room, counted, "" if done else why_not, held, hold if tries else "")


def _why_none(hold: str, is_full: bool, held: Mapping[str, str], queue: Sequence[Task]) -> str:
    if hold or is_full or queue:
        return hold or "there is no room"
    return "; ".join(held.values()) or "the queue is empty"


async def held_environments(database: Database, settings: StewardSettings) -> dict[str, str]:
    """Environments that need a tool server that exists but cannot be used: its circuit breaker is open, or it does not
    start."""
    unusable = await service_registry.unusable_servers(database)
    return {
        name: f"{name} needs {next(why for server, why in unusable.items() if server in environment.servers)}"
        for name, environment in settings.environments.items()
        if not unusable.keys().isdisjoint(environment.servers)
    }


async def admit_evaluations(database: Database, settings: StewardSettings) -> int:
    """Admit evaluation and probes, which need no capacity."""
    waiting: Plain = {"status": TaskStatus.QUEUED, "purpose": {"$in": ["eval", "probe"]}}
    documents = await database.find("Task", waiting, sort=_IN_ORDER, limit=MOST_EVALUATIONS)
    if documents and (held := await held_environments(database, settings)):
        waiting["environment"] = {"$nin": list(held)}
        documents = await database.find("Task", waiting, sort=_IN_ORDER, limit=MOST_EVALUATIONS)
    queued = [load(Task, document) for document in documents]
    # A fork shows how the policy acts in training, so it is sampled with those settings.
    sampled = (
        ([task for task in queued if task.fork], settings.sampling()),
        ([task for task in queued if not task.fork], settings.sampling_of_evaluation()),
    )
    done = 0
    for left, sampling in sampled:
        while left:
            ready = await tasks.admit(
                database,
                left,
                n=settings.evaluation_samples,
                sampling=sampling,
                deadline_s=settings.group_s,
                rounds_max=settings.rounds_max,
            )
            done += ready
            # A task that another steward took does not block the others.
            left = left[ready + 1 :]
    return done


async def reported_plan(database: Database) -> Mapping[str, object]:
    lineage = await lineages.current(database)
    return {} if lineage is None else lineage.plan


def _rooms(settings: StewardSettings, reported: Mapping[str, object], counted: Counts) -> dict[str, int]:
    """How many more records the bound of each environment allows."""
    if settings.frozen:
        return dict.fromkeys(settings.environments, settings.max_in_flight - counted.in_flight)
    return {name: admission_capacity.capacity(settings.plan(reported, name), counted) for name in settings.environments}


def _size(task: Task, settings: StewardSettings, reported: Mapping[str, object]) -> int:
    """How much room a group needs. If a setting was lowered, a branch may be larger than the largest group that always
    fits; then it counts as that size, or it would block everything behind it."""
    if task.fork is None:
        return settings.n
    return min(task.fork.times, largest_group(settings, reported, task.environment))


def largest_group(settings: StewardSettings, reported: Mapping[str, object], environment: str) -> int:
    """The most records of a group that can always be admitted."""
    if settings.frozen:
        return settings.max_in_flight
    return admission_capacity.largest_group(settings.plan(reported, environment), settings.n)


async def _queue(database: Database, settings: StewardSettings, held: Collection[str], place: int) -> list[Task]:
    """The groups to admit next, if there is room, from this place in the order on."""
    weights = {name: weight for name, weight in settings.weights.items() if name not in held}
    waiting = {name: await _waiting(database, name) for name in weights}
    queue: list[Task] = []
    while len(queue) < MOST_AT_ONCE and (left := _left(weights, waiting)):
        queue.append(waiting[chosen(left, place + len(queue))].pop(0))
    return queue


def _left(weights: Mapping[str, float], waiting: Mapping[str, Sequence[Task]]) -> dict[str, float]:
    """The environments that have something queued. Those that a stage leaves out are used only if there is nothing
    else."""
    left = {name: weight for name, weight in weights.items() if waiting[name]}
    return {name: weight for name, weight in left.items() if weight} or dict.fromkeys(left, 1.0)


async def _waiting(database: Database, environment: str) -> list[Task]:
    queued = {"status": TaskStatus.QUEUED, "purpose": {"$in": list(TRAINS)}, "environment": environment}
    documents = await database.find(
        "Task",
        queued,
        sort=_IN_ORDER,
        limit=MOST_AT_ONCE,
        projection=_READ,
    )
    return [load(Task, document) for document in documents]


def chosen(weights: Mapping[str, float], place: int) -> str:
    """Which environment has this place in the order of admission: mixed evenly, without chance or memory."""
    names = sorted(weights)
    at = (place * _GOLDEN) % 1.0 * sum(weights.values())
    for name in names:
        at -= weights[name]
        if at < 0:
            return name
    return names[-1]
