"""For any events in any order, the loop of admission, sampling and training leads to a step or a named end."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentrl.policies.admission_capacity import Plan, batch_records
from agentrl.policies.batch_cut import BatchTarget
from agentrl.policies.freshness import Freshness
from agentrl.policies.outcomes import Outcome
from agentrl.policies.status_tables import TaskStatus
from tests.policies.world import SAMPLERS, World

STEP_AT_MOST = 1500
"""The most ticks until a step or the end: three rounds of the slowest group with all its redraws, and a wait."""

samplers = st.integers(0, SAMPLERS - 1)
freshnesses = st.builds(
    lambda strategy, bound, more, limit: Freshness(strategy, bound, bound + more, limit),
    st.sampled_from(("drop", "wait", "decay")),
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from((0.0, 20.0)),
)

policies = st.sampled_from(([0.0], [0.0, 1.0], [0.0, 0.0, 0.0, 1.0]))


class AnyOrder(RuleBasedStateMachine):
    @initialize(
        sizes=st.lists(st.integers(2, 5), min_size=1, max_size=12),
        chance=st.integers(0, 2**32),
        freshness=freshnesses,
        scores=policies,
    )
    def begin(self, sizes: list[int], chance: int, freshness: Freshness, scores: list[float]) -> None:
        self.world = World(sizes, random.Random(chance))
        self.world.scores = scores
        self.tune(groups=2, every=1, more=5, freshness=freshness, refill=2, last="take")

    # ---- the loop, in any order ----

    @rule()
    def steward(self) -> None:
        self.world.steward()

    @rule(number=samplers, turns=st.integers(1, 6))
    def sample(self, number: int, turns: int) -> None:
        for _ in range(turns):
            self.world.sampler(number)

    @rule()
    def train(self) -> None:
        self.world.start_trainer()
        self.world.trainer()

    @rule(ticks=st.integers(1, 40))
    def all_together(self, ticks: int) -> None:
        for _ in range(ticks):
            self.world.tick()

    @rule(by_s=st.sampled_from((1.0, 15.0, 50.0)))
    def pass_time(self, by_s: float) -> None:
        self.world.now += by_s

    @rule()
    def save_checkpoint(self) -> None:
        self.world.save_checkpoint()

    # ---- weather ----

    @rule(number=samplers, resumable=st.booleans())
    def kill_sampler(self, number: int, resumable: bool) -> None:
        self.world.samplers[number] = False
        self.world.resumable = resumable

    @rule(number=samplers)
    def replace_sampler(self, number: int) -> None:
        self.world.steward()
        self.world.samplers[number] = True

    @rule()
    def kill_trainer(self) -> None:
        self.world.trainer_alive = False

    @rule()
    def kill_trainer_after_its_next_lease(self) -> None:
        self.world.dies_after_lease = True

    @rule(
        outcomes=st.lists(st.sampled_from(Outcome), min_size=1, max_size=4), breaker=st.booleans(), judge=st.booleans()
    )
    def change_weather(self, outcomes: list[Outcome], breaker: bool, judge: bool) -> None:
        self.world.weather = Counter(outcomes)
        self.world.breaker_open, self.world.judge_answers = breaker, judge

    @rule(scores=policies)
    def change_policy(self, scores: list[float]) -> None:
        self.world.scores = scores

    # ---- people ----

    @rule(
        groups=st.integers(1, 3),
        every=st.integers(1, 2),
        more=st.integers(0, 20),
        freshness=freshnesses,
        refill=st.integers(0, 3),
        last=st.sampled_from(("take", "leave")),
    )
    def tune(self, groups: int, every: int, more: int, freshness: Freshness, refill: int, last: str) -> None:
        if self.world.ended:
            return
        sizes = self.world.sizes
        plan = Plan(freshness.bound, batch_records(groups, sizes), max(sizes) + more, every)
        self.world.tune(plan, freshness)
        self.world.wanted = BatchTarget(groups, refill, last)  # type: ignore[arg-type]

    @rule(why=st.sampled_from(("", "too few attempts are valid")))
    def hold(self, why: str) -> None:
        self.world.hold = why

    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        if not self.world.ended:
            self.world.requeue(data.draw(st.sampled_from(self.world.tasks)))

    # ---- promises ----

    @invariant()
    def the_world_is_consistent(self) -> None:
        if hasattr(self, "world"):
            self.world.verify()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.calm()
        for _ in range(200):
            assert world.run_until_step(STEP_AT_MOST), f"neither a step nor an end: {world.story()}"
            world.verify()
            if world.ended:
                break
        assert world.ended == "nothing is left to sample or to train", world.story()
        settled = {TaskStatus.TRAINED, TaskStatus.FILTERED, TaskStatus.DEAD}
        if world.wanted.last_batch == "leave":
            settled.add(TaskStatus.READY)
        assert {task.status for task in world.tasks} <= settled, world.story()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("strategy", ["drop", "wait", "decay"])
@pytest.mark.parametrize("bound", [0, 1, 3])
def test_runs_without_faults_train_nearly_everything(strategy: str, bound: int) -> None:
    world = World([4] * 16, random.Random(bound))
    world.calm()
    freshness = Freshness(strategy, bound, bound + 1, 20.0)  # type: ignore[arg-type]
    world.tune(Plan(bound, 8, max_concurrent=64), freshness)
    for _ in range(1000):
        world.tick()
        world.verify()
        if world.ended:
            break
    assert world.ended
    done = Counter(task.status for task in world.tasks)
    assert done[TaskStatus.TRAINED] >= 10, world.story()


def test_a_judge_that_never_answers_ends_with_dead_tasks_and_no_zero_trains() -> None:
    world = World([3] * 4, random.Random(1))
    world.judge_answers = False
    for _ in range(2000):
        world.tick()
        if world.ended:
            break
    assert world.ended
    assert {task.status for task in world.tasks} == {TaskStatus.DEAD}
    assert not any(record.score is not None for task in world.tasks for record in task.records)


def test_permanent_infrastructure_failure_ends_with_dead_tasks() -> None:
    world = World([3] * 4, random.Random(1))
    world.weather = Counter({Outcome.ENGINE_FAILED: 1})
    for _ in range(2000):
        world.tick()
        if world.ended:
            break
    assert world.ended
    assert all(len(task.records) == 3 * 3 * 3 for task in world.tasks), "three rounds of three seats, each drawn thrice"
