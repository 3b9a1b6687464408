"""A small world around the policies: a steward, samplers and a trainer over one list of tasks, with a fake clock.

They make only the moves that the conditional updates of the store allow; every move is checked against the tables. Each
acts in short turns that may come in any order, and each may die between two turns. So a property that holds here holds
for any order of events.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from agentrl.policies import admission_capacity, group_closing, outcomes, status_tables
from agentrl.policies.batch_cut import BatchTarget, Decision, ReadyGroup, ReadyRecord, Situation, UnderWay, decide
from agentrl.policies.freshness import Freshness
from agentrl.policies.outcomes import Outcome, OutcomeClass
from agentrl.policies.status_tables import NEW, Actor, RecordStatus, StepStatus, TaskStatus, check
from agentrl.policies.version_tree import VersionTree

GROUP_DEADLINE_S = 40
JUDGE_DEADLINE_S = 10
ROUNDS_MAX = 3
SAMPLERS = 3

R, T = RecordStatus, TaskStatus


@dataclass(eq=False)
class Record:
    task: Task
    round: int
    seat: int
    attempt: int
    status: str = R.OPEN
    owner: int | None = None
    versions: set[int] = field(default_factory=set)
    kind: OutcomeClass | None = None
    score: float | None = None
    finished_at: float = 0.0
    free: bool = False
    """The attempt failed on an open circuit breaker, so it does not count."""
    late: bool = False
    trains: bool = False
    trained_by: list[Step] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.task.name}#r{self.round}.s{self.seat}.a{self.attempt}"

    def move(self, to: RecordStatus, actor: Actor) -> None:
        check(status_tables.RECORD, self.status, to, actor, self.name)
        self.status = to


@dataclass(eq=False)
class Task:
    name: str
    n: int
    status: str = NEW
    round: int = 1
    order: int = 0
    deadline: float = 0.0
    signal: bool = False
    step: Step | None = None
    records: list[Record] = field(default_factory=list)

    def move(self, to: TaskStatus, actor: Actor) -> None:
        check(status_tables.TASK, self.status, to, actor, self.name)
        self.status = to

    def seats(self) -> list[list[Record]]:
        """The attempts of each seat in the current round."""
        now = [record for record in self.records if record.round == self.round]
        return [[record for record in now if record.seat == seat] for seat in range(self.n)]


@dataclass(eq=False)
class Step:
    number: int
    base: int
    tasks: list[Task]
    records: list[Record]
    status: str = NEW

    def move(self, to: StepStatus, actor: Actor) -> None:
        check(status_tables.STEP, self.status, to, actor, f"step {self.number}")
        self.status = to


class World:
    def __init__(self, sizes: list[int], chance: random.Random) -> None:
        self.chance = chance
        self.now = 0.0
        self.sizes = sizes
        self.tasks = [Task(f"t{row}", n) for row, n in enumerate(sizes)]
        for task in self.tasks:
            task.move(T.QUEUED, Actor.STEWARD)
        self.plan = admission_capacity.Plan(
            1, admission_capacity.batch_records(2, sizes), max_concurrent=2 * max(sizes)
        )
        self.freshness = Freshness("drop", 1)
        self.wanted = BatchTarget(groups=2, max_refill=2)
        self.admitted = 0
        self.samplers = dict.fromkeys(range(SAMPLERS), True)
        self.resumable = False
        self.weather = Counter({Outcome.ANSWERED: 1})
        self.breaker_open = False
        self.judge_answers = True
        self.scores = [0.0, 1.0]
        self.hold = ""
        # The memory of the trainer, which is lost when it dies.
        self.trainer_alive = False
        self.dies_after_lease = False
        """The trainer dies after its next lease."""
        self.version = 0
        self.unpublished = 0
        self.held_since: float | None = None
        # The store, which survives all deaths.
        self.tree = VersionTree()
        self.steps: list[Step] = []
        self.checkpoint = (0, 0)
        """The number of committed steps that it covers, and its version."""
        self.ended = ""

    # ---- the steward ----

    def steward(self) -> None:
        for task in self.tasks:
            self._expire(task)
            if task.status == T.ADMITTED:
                self._redraw(task)
                self.close_group(task, Actor.STEWARD)
        self._admit()

    def _expire(self, task: Task) -> None:
        for record in task.records:
            if record.status == R.RUNNING and not self.samplers[record.owner or 0]:
                record.move(R.OPEN if self.resumable else R.ABANDONED, Actor.STEWARD)
                record.owner = None
            if record.status == R.UNSCORED and self.now - record.finished_at > JUDGE_DEADLINE_S:
                record.move(R.UNSCORABLE, Actor.SCORER)

    def may_redraw(self, attempts: list[Record]) -> bool:
        redraws = sum(not record.free for record in attempts) - 1
        return outcomes.may_redraw(redraws, breaker_open=attempts[-1].free)

    def _redraw(self, task: Task) -> None:
        for attempts in task.seats():
            last = attempts[-1]
            # While the breaker is open, no attempt is made or counted.
            if last.status in (R.FAILED, R.ABANDONED) and self.may_redraw(attempts) and not self.breaker_open:
                self._open(task, last.seat, last.attempt + 1)

    def _open(self, task: Task, seat: int, attempt: int) -> None:
        check(status_tables.RECORD, NEW, R.OPEN, Actor.STEWARD)
        task.records.append(Record(task, task.round, seat, attempt))

    def close_group(self, task: Task, actor: Actor) -> None:
        seats = task.seats()
        settled = [
            group_closing.seat_settled(RecordStatus(attempts[-1].status), may_redraw=self.may_redraw(attempts))
            for attempts in seats
        ]
        if not group_closing.may_close(settled, past_deadline=self.now >= task.deadline):
            return
        last = [attempts[-1] for attempts in seats]
        known = [record for record in last if record.status == R.SCORED and record.kind is not None]
        members = [
            group_closing.Member(record.name, record.kind or OutcomeClass.UNSCORED, record.score) for record in known
        ]
        closed = group_closing.close(members, task.n, group_closing.GroupRule())
        if not closed.enough:
            if actor is Actor.STEWARD:
                self._next_round(task, actor)
            return
        assert closed.baseline is not None
        assert closed.baseline.valid == len(known)
        task.move(T.READY, actor)
        task.signal = closed.signal
        for record in last:
            record.late = record not in known
            record.trains = not record.late and closed.shares[record.name].advantage is not None

    def _next_round(self, task: Task, actor: Actor) -> None:
        for record in task.records:
            if record.status in status_tables.HOLDS_SEAT:
                record.move(R.SUPERSEDED, actor)
        if group_closing.another_round(task.round, ROUNDS_MAX):
            task.move(T.QUEUED, actor)
            task.round += 1
        else:
            task.move(T.DEAD, actor)

    def counts(self) -> admission_capacity.Counts:
        """The counts that the steward queries."""
        by_status = Counter(record.status for task in self.tasks for record in task.records)
        ready = sum(
            record.status == R.SCORED and record.round == task.round
            for task in self.tasks
            for record in task.records
            if task.status == T.ADMITTED or (task.status == T.READY and task.signal)
        )
        leased = sum(len(task.seats()) for task in self.tasks if task.status == T.LEASED)
        flying = {status.value: by_status[status] for status in status_tables.IN_FLIGHT}
        return admission_capacity.Counts(**flying, ready=ready, leased=leased)

    def _admit(self) -> None:
        queue = [task for task in self.tasks if task.status == T.QUEUED]
        room = admission_capacity.capacity(self.plan, self.counts())
        for task in queue[: admission_capacity.granted((room, task.n) for task in queue)]:
            task.move(T.ADMITTED, Actor.STEWARD)
            self.admitted += 1
            task.order, task.deadline = self.admitted, self.now + GROUP_DEADLINE_S
            for seat in range(task.n):
                self._open(task, seat, 1)
            now = self.counts()
            assert now.in_flight <= self.plan.max_concurrent
            assert now.in_flight + now.ready + now.leased <= self.plan.ahead

    # ---- samplers ----

    def sampler(self, number: int) -> None:
        """One short act: continues its record, or claims one."""
        # Before the first publication, no engine gets calls.
        if not self.samplers[number] or not self.version:
            return
        records = [record for task in self.tasks for record in task.records]
        mine = [record for record in records if record.status == R.RUNNING and record.owner == number]
        for record in records:
            if record.status in (R.FINISHED, R.UNSCORED):
                self._score(record)
        if mine and self.chance.random() < 0.8:
            self._turn(self.chance.choice(mine))
        elif opened := [record for record in records if record.status == R.OPEN]:
            opened[0].move(R.RUNNING, Actor.SAMPLER)
            opened[0].owner = number

    def _turn(self, record: Record) -> None:
        record.versions.add(self.version)
        if self.chance.random() < 0.5:
            return
        outcome = self.chance.choices(list(self.weather), list(self.weather.values()))[0]
        record.kind = outcomes.class_of(outcome)
        record.finished_at = self.now
        if record.kind is OutcomeClass.INFRASTRUCTURE or self.breaker_open:
            record.free = self.breaker_open
            record.move(R.FAILED, Actor.SAMPLER)
        else:
            record.move(R.FINISHED, Actor.SAMPLER)

    def _score(self, record: Record) -> None:
        if not self.judge_answers:
            if record.status == R.FINISHED:
                record.move(R.UNSCORED, Actor.SCORER)
            return
        record.score = self.chance.choice(self.scores)
        record.move(R.SCORED, Actor.SCORER)
        if record.task.status == T.ADMITTED and record.round == record.task.round:
            self.close_group(record.task, Actor.SAMPLER)

    # ---- the trainer ----

    def start_trainer(self) -> None:
        """Everything a new lineage does before it leases."""
        if self.trainer_alive or self.ended:
            return
        kept, version = self.checkpoint
        committed = [step for step in self.steps if step.status == StepStatus.COMMITTED]
        for step in committed[kept:]:
            step.move(StepStatus.ROLLED_BACK, Actor.TRAINER)
            self._free(step)
        for step in self.steps:
            if step.status == StepStatus.LEASED:
                step.move(StepStatus.RELEASED, Actor.TRAINER)
                self._free(step)
        self.trainer_alive, self.unpublished, self.held_since = True, 0, None
        self._publish(version or None)
        if not version:
            self.checkpoint = (0, self.version)

    def _free(self, step: Step) -> None:
        for task in step.tasks:
            if task.step is step:
                task.move(T.READY, Actor.TRAINER)
                task.step = None

    def _publish(self, parent: int | None) -> None:
        newest = max((version for version in range(1, 1000) if version in self.tree), default=0) + 1
        self.tree.add(newest, parent)
        self.version = newest

    def trainer(self) -> Decision | None:
        if not self.trainer_alive or self.ended:
            return None
        decision = decide(self._situation(), self.wanted, self.freshness)
        for task in self._named(decision.stale_groups):
            self._next_round(task, Actor.TRAINER)
        if decision.act == "end":
            self.ended = decision.why
        elif decision.act == "wait":
            if decision.held and self.held_since is None:
                self.held_since = self.now
        else:
            self._take(decision)
        return decision

    def _situation(self) -> Situation:
        unclosed = [record for task in self.tasks if task.status == T.ADMITTED for record in task.records]
        under_way = [
            UnderWay(self.tree.staleness(record.versions, self.version))
            for record in unclosed
            if record.status in status_tables.HOLDS_SEAT and record.versions
        ]
        return Situation(
            ready=[self._ready(task) for task in self.tasks if task.status == T.READY],
            under_way=under_way,
            publishes=self.unpublished + 1 >= self.plan.publish_every,
            waited_s=0.0 if self.held_since is None else self.now - self.held_since,
            exhausted=not any(task.status in (T.QUEUED, T.ADMITTED) for task in self.tasks),
            hold=self.hold,
        )

    def _ready(self, task: Task) -> ReadyGroup:
        trainable = [attempts[-1] for attempts in task.seats() if attempts[-1].trains]
        records = tuple(
            ReadyRecord(record.name, self.tree.staleness(record.versions, self.version)) for record in trainable
        )
        return ReadyGroup(task.name, task.order, task.signal, records)

    def _named(self, names: tuple[str, ...]) -> list[Task]:
        return [task for task in self.tasks if task.name in names]

    def _take(self, decision: Decision) -> None:
        flat = self._named(decision.filtered)
        training = self._named(tuple(group.task for group in decision.groups))
        chosen = {record.record for group in decision.groups for record in group.records}
        records = [record for task in training for record in task.records if record.name in chosen]
        step = Step(len(self.steps), self.version, [*training, *flat], records)
        step.move(StepStatus.LEASED, Actor.TRAINER)
        self.steps.append(step)
        for task in step.tasks:
            task.move(T.LEASED, Actor.TRAINER)
            task.step = step
        if self.dies_after_lease:
            self.trainer_alive = self.dies_after_lease = False
        else:
            self._commit(step, flat)

    def _commit(self, step: Step, flat: list[Task]) -> None:
        for record in step.records:
            assert self.tree.staleness(record.versions, step.base) <= self.freshness.oldest, record.name
            assert record.kind is not OutcomeClass.INFRASTRUCTURE
            assert not record.late
            record.trained_by.append(step)
        step.move(StepStatus.COMMITTED, Actor.TRAINER)
        for task in step.tasks:
            task.move(T.FILTERED if task in flat else T.TRAINED, Actor.TRAINER)
        self.held_since = None
        self.unpublished += bool(step.records)
        if self.unpublished >= self.plan.publish_every:
            self._publish(self.version)
            self.unpublished = 0

    def save_checkpoint(self) -> None:
        if self.trainer_alive and self.unpublished == 0:
            committed = sum(step.status == StepStatus.COMMITTED for step in self.steps)
            self.checkpoint = (committed, self.version)

    # ---- people ----

    def tune(self, plan: admission_capacity.Plan, freshness: Freshness) -> None:
        admission_capacity.refuse_impossible(plan, self.sizes)
        self.plan, self.freshness = plan, freshness

    def requeue(self, task: Task) -> None:
        if task.status not in status_tables.TASK.sources(T.QUEUED, Actor.OPERATOR):
            return
        for record in task.records:
            if record.status in status_tables.HOLDS_SEAT:
                record.move(R.SUPERSEDED, Actor.OPERATOR)
        leaves_a_round = task.status != T.QUEUED
        task.move(T.QUEUED, Actor.OPERATOR)
        task.round += leaves_a_round

    # ---- calm ----

    def calm(self) -> None:
        """Removes all faults; the behavior of the policy stays."""
        self.samplers = dict.fromkeys(self.samplers, True)
        self.breaker_open, self.judge_answers, self.hold = False, True, ""
        self.weather = Counter({Outcome.ANSWERED: 9, Outcome.TURN_LIMIT: 1})
        self.scores = [0.0, 0.5, 1.0]
        self.freshness = replace(self.freshness, wait_limit_s=min(self.freshness.wait_limit_s, 20.0))

    def tick(self) -> None:
        self.now += 1.0
        self.steward()
        for number in self.samplers:
            for _ in range(2):
                self.sampler(number)
        self.start_trainer()
        self.trainer()

    def run_until_step(self, at_most: int) -> bool:
        """Whether a step was committed, or the run has a named end."""
        before = len(self.steps)
        for _ in range(at_most):
            self.tick()
            if self.ended or len(self.steps) > before:
                return True
        return False

    def story(self) -> str:
        tasks = ", ".join(f"{task.name}(n={task.n}) {task.status} r{task.round}" for task in self.tasks)
        return f"{self.now:.0f} s: {tasks}; {self.counts()}; {self.plan}; {self.freshness}"

    def verify(self) -> None:
        for task in self.tasks:
            for attempts in task.seats():
                assert sum(record.status in status_tables.HOLDS_SEAT for record in attempts) <= 1, task.name
                paid = sum(not record.free for record in attempts)
                assert paid <= 1 + outcomes.MAX_REDRAWS, f"{task.name} was drawn {paid} times"
            of_step = task.step.status if task.step else ""
            assert (task.status == T.LEASED) == (of_step == StepStatus.LEASED), task.name
            assert (task.status in (T.TRAINED, T.FILTERED)) == (of_step == StepStatus.COMMITTED), task.name
            for record in task.records:
                counting = [step for step in record.trained_by if step.status == StepStatus.COMMITTED]
                assert len(counting) <= 1, f"{record.name} was trained {len(counting)} times"
