"""A trainer without steps: when it counts as standing still, and when it is only slow."""

from __future__ import annotations

import pytest

from agentrl.control.state.progress import Pipeline, ProgressTracker


class Trainer:
    def __init__(self) -> None:
        self.tracker = ProgressTracker()
        self.now = 0.0
        self.step: float | None = 0.0
        self.pipeline: Pipeline | None = None

    def wait(self, seconds: float, *, works: bool = True) -> list[int]:
        """Observe the trainer once a second. Returns how long it stands still at the end; empty if it does not."""
        for _ in range(round(seconds)):
            self.now += 1
            self.tracker.observe("trainer-0", self.step, self.now, works=works, pipeline=self.pipeline)
        return [round(found.for_s) for found in self.tracker.standing_still(self.now)]

    def steps(self, count: int, every_s: float) -> None:
        for _ in range(count):
            assert self.wait(every_s) == []
            self.step += 1


def test_a_fast_trainer_stands_still_after_a_minute() -> None:
    trainer = Trainer()
    trainer.steps(10, 5)
    assert trainer.wait(61) == []
    assert trainer.wait(1) == [61]
    trainer.step += 1
    assert trainer.wait(1) == []


def test_a_slow_trainer_gets_ten_times_its_usual_time() -> None:
    trainer = Trainer()
    trainer.steps(6, 200)
    assert trainer.wait(2000) == []
    (found,) = trainer.wait(10)
    assert found > 2000


def test_a_trainer_of_unknown_pace_gets_a_quarter_of_an_hour() -> None:
    trainer = Trainer()
    assert trainer.wait(900) == []
    assert trainer.wait(10) != []


@pytest.mark.parametrize(
    ("pipeline", "stage"),
    [
        (Pipeline(engines=2), "no engine serves a version"),
        (Pipeline(engines=2, serving=1), "no record is admitted"),
        (Pipeline(engines=2, serving=2, under_way=8), "no sampler claims a record, and 8 records are admitted"),
        (Pipeline(engines=2, serving=2, under_way=8, running=4), "4 records are sampled, and none is done"),
        (Pipeline(engines=1, serving=1, ready=1), "the trainer waits with 1 ready record, and 0 are sampled"),
    ],
)
def test_stage_without_a_result_is_named_three_minutes_after_anything_moved(pipeline: Pipeline, stage: str) -> None:
    trainer = Trainer()
    trainer.pipeline = Pipeline()
    assert trainer.wait(100) == []
    trainer.pipeline = pipeline
    assert trainer.wait(180) == [], "the pipeline moved meanwhile"
    assert trainer.wait(3) != []
    (found,) = trainer.tracker.standing_still(trainer.now)
    assert found.stage == stage
    trainer.step += 1
    assert trainer.wait(1) == []


def test_slow_first_step_of_a_run_that_samples_raises_no_alert() -> None:
    trainer = Trainer()
    trainer.pipeline = Pipeline(engines=1, serving=1, running=8, works=True)
    assert trainer.wait(890) == []
    assert trainer.wait(20) != []


def test_time_of_the_first_step_is_the_pace_until_there_are_more() -> None:
    trainer = Trainer()
    trainer.step = None
    trainer.pipeline = Pipeline(engines=1, serving=1, running=8, works=True)
    trainer.wait(20)
    trainer.step = 1.0
    assert trainer.wait(200) == []
    assert trainer.wait(20) != []


def test_coordinator_that_finds_a_trainer_at_work_knows_no_pace() -> None:
    trainer = Trainer()
    trainer.step = 120.0
    assert trainer.wait(890) == []
    assert trainer.wait(20) != []


def test_a_pause_and_a_restart_do_not_count() -> None:
    trainer = Trainer()
    trainer.steps(10, 5)
    assert trainer.wait(5000, works=False) == []
    assert trainer.wait(55) == [], "counted from the resumption"
    assert trainer.wait(10) != []
    trainer.steps(5, 5) if trainer.wait(1, works=False) == [] else None
    assert trainer.wait(70) != [], "a restart keeps the pace"


def test_several_steps_between_two_looks_are_counted_one_by_one() -> None:
    trainer = Trainer()
    for _ in range(10):
        trainer.wait(10)
        trainer.step += 100
    trainer.wait(1)
    (found,) = trainer.tracker.standing_still(trainer.now + 61)
    assert found.usual_s < 1
