"""The cache of steps for the curves is complete and current."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.filters.evaluate import matches
from agentrl.filters.fields import STEPS
from agentrl.filters.parser import parse
from agentrl.protocol import rows
from agentrl.protocol.data_commands import ListRows, Page
from tests.cli.scripted import Scripted
from tests.tui.conftest import opened, populate
from tests.waiting import aeventually
from tui.model.step_cache import StepCache
from tui.model.training_status import TrainingFacts, learned, report

BEGAN = datetime(2030, 1, 31, 12, 0, tzinfo=UTC)
FEW = 6
"""Size of one answer in the property test."""
THINGS = st.sampled_from(["lease", "commit", "release", "lineage", "look", "look"])


class Store:
    """The steps of a run and the answers of its steward."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self._lineage = 1

    def lease(self) -> None:
        self.release()
        counted = [row["step"] for row in self.rows if row["status"] == "committed"]
        number = len(self.rows)
        at = BEGAN + timedelta(seconds=20 * number, milliseconds=number)
        name = f"trainer-0.{self._lineage}@1"
        row = {"id": f"{name}/{number:06d}", "lineage": name, "step": max(counted, default=0) + 1, "status": "leased"}
        self.rows.append(row | {"leased_at": at, "metrics": {"reward_mean": 0.5}})

    def commit(self) -> None:
        self._end("committed")

    def release(self) -> None:
        self._end("released")

    def _end(self, status: str) -> None:
        for row in self.rows:
            if row["status"] == "leased":
                row |= {"status": status, "committed_at": row["leased_at"] + timedelta(seconds=9)}

    def lineage(self) -> None:
        """Roll back to a checkpoint; only the first step after it shows the rollback."""
        self.release()
        self._lineage += 1
        for row in self.rows[-3:]:
            row["status"] = "rolled_back" if row["status"] == "committed" else row["status"]
        self.lease()

    def train(self, count: int) -> None:
        for _ in range(count):
            self.lease()
            self.commit()

    def answer(self, args: ListRows) -> Page:
        self.asked.append(args.filter)
        tree = parse(args.filter, STEPS)
        found = [dict(row) for row in self.rows[::-1] if matches(tree, row, now=BEGAN)]
        return Page(tuple(found[: args.limit]), found[args.limit - 1]["id"] if len(found) > args.limit else "")


def look(steps: StepCache, store: Store) -> None:
    sent = steps.question()
    page = store.answer(ListRows(filter=sent, limit=steps.most))
    steps.take(sent, page.rows, more=bool(page.after))


@settings(max_examples=60, deadline=None)
@given(st.lists(THINGS, max_size=60))
def test_cache_has_the_newest_steps_without_gaps(happened: list[str]) -> None:
    store, steps = Store(), StepCache(FEW)
    for what in [*happened, "look"]:
        if what == "look":
            look(steps, store)
            if not steps.question():
                look(steps, store)  # a new lineage has begun, so the next query asks for all steps
            assert list(steps.rows) == store.rows[::-1][:FEW]
            assert steps.more == (len(store.rows) > FEW)
            committed = [row["id"] for row in store.rows[-FEW:] if row["status"] == "committed"]
            assert [point.id for point in steps.points] == committed
        else:
            getattr(store, what)()


def test_known_steps_are_not_queried_again() -> None:
    store, steps = Store(), StepCache()
    store.train(30)
    look(steps, store)
    store.train(2)
    look(steps, store)
    assert store.asked == ["", "leased_at>=2030-01-31T12:09:40.029Z"]
    before = steps.points
    look(steps, store)
    assert steps.points is before, "an empty answer creates no new list"


def test_step_rate_is_computed_from_the_steps_of_the_run() -> None:
    store, steps = Store(), StepCache()
    store.train(60)
    look(steps, store)
    now = store.rows[-1]["committed_at"].timestamp()
    seen = steps.points[:3] + steps.points[-3:]
    outlook = TrainingFacts(seen)
    trainer = rows.UnitRow(
        "trainer-0", "trainer", "trainer", rows.UnitState.READY, metrics={"step": 60.0, "steps_wanted": 90.0}
    )
    shown = "".join(part.text for line in learned(report([trainer], outlook), outlook, now) for part in line)
    assert "3 a minute" in shown
    assert "time left 10m" in shown


async def test_curves_have_no_gap_after_another_view_or_a_filter(coordinator: Scripted) -> None:
    populate(coordinator)
    store = Store()
    store.train(300)
    coordinator.answers["list_steps"] = store.answer
    async with opened(coordinator.state_dir, (120, 30)) as screen:
        await screen.press("8")
        await screen.shows("step 300 ", "200 steps, more below")
        await screen.press("2")
        await screen.shows("web-0")
        store.train(350)
        await screen.press("8")
        await screen.shows("/000649 ")
        await screen.press("home")
        await screen.shows("step 650 ")
        assert [point.step for point in screen.app.steps.points] == list(range(1, 651))
        await screen.press("slash")
        await screen.type("step>640")
        await screen.press("enter")
        await screen.shows("10 steps")
        store.train(50)
        await aeventually(lambda: [point.step for point in screen.app.steps.points] == list(range(1, 701)))
        assert store.asked.count("") == 1, "only missing steps are queried"


async def test_cursor_follows_the_newest_step_until_it_is_moved(coordinator: Scripted) -> None:
    populate(coordinator)
    store = Store()
    coordinator.answers["list_steps"] = store.answer
    async with opened(coordinator.state_dir, (120, 30)) as screen:
        await screen.press("8")
        await screen.shows("0 steps")
        store.train(1)
        await screen.shows("▸ trainer-0.1/000000")
        store.train(30)
        await screen.shows("▸ trainer-0.1/000030", "step 31 ")
        await aeventually(lambda: "↑" not in screen.text)
        await screen.press("down")
        store.train(30)
        await screen.shows("▸ trainer-0.1/000029", "↑ 30")
        await screen.press("home")
        await screen.shows("▸ trainer-0.1/000060")
        await aeventually(lambda: "↑" not in screen.text)


async def test_slow_query_is_not_started_again(coordinator: Scripted) -> None:
    """A query that is started again before its answer would never be answered."""
    populate(coordinator)
    store = Store()
    store.train(3)
    coordinator.answers["list_steps"] = store.answer
    coordinator.hold("list_steps")
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        view = screen.app.view
        await aeventually(lambda: view.is_querying("overview"))
        first = [each for each in screen.app.workers if each.group == "overview"]
        for _ in range(3):
            view._ask()  # type: ignore[attr-defined]
        assert [each for each in screen.app.workers if each.group == "overview"] == first
        assert not first[0].is_cancelled
        coordinator.let_go("list_steps")
        await aeventually(lambda: len(screen.app.steps.rows) == 3)
