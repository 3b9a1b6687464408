"""Waiting for operations and following the feed miss no change, even if messages are lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import agentrl.client.client as core
import agentrl.client.feed_subscription as tail_module
from agentrl.client import CAUGHT_UP, RESET, SILENT, Client
from agentrl.errors import NoCoordinatorError, UnknownNameError, UsageError, WaitTimeoutError
from agentrl.protocol.rows import GroupRow, OperationRow, OperationState
from tests.client.small_coordinator import SmallCoordinator
from tests.waiting import aeventually


def dial(coordinator: SmallCoordinator) -> Client:
    return Client.connect(address=coordinator.address, timeout_s=60)


def group(name: str, desired: int) -> GroupRow:
    return GroupRow(name, "sidecar", desired)


class Mirror:
    """Keeps rows as a console does, in a task of its own."""

    def __init__(self, client: Client, kinds: tuple[str, ...] = ()) -> None:
        self.rows: dict[str, Any] = {}
        self.markers: list[str] = []
        self.task = asyncio.create_task(self._follow(client, kinds))

    async def _follow(self, client: Client, kinds: tuple[str, ...]) -> None:
        async for key, row in client.follow(kinds):
            if key in (RESET, CAUGHT_UP, SILENT):
                self.markers.append(key)
                if key == RESET:
                    self.rows.clear()
            elif row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row

    async def equals(self, coordinator: SmallCoordinator) -> None:
        await aeventually(lambda: self.rows == coordinator.feed.rows() or self._raise(), what="the same rows")

    def _raise(self) -> bool:
        if self.task.done():
            self.task.result()
        return False

    async def stop(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


# ---- wait ----


async def test_wait_reports_every_change_and_returns_the_ended_operation(coordinator: SmallCoordinator) -> None:
    coordinator.operation("op", OperationState.ACCEPTED)
    seen: list[OperationState] = []
    async with dial(coordinator) as client:
        wait = asyncio.create_task(client.wait("op", lambda row: seen.append(row.state), timeout_s=30))
        await aeventually(lambda: seen == [OperationState.ACCEPTED])
        coordinator.operation("op", OperationState.RUNNING)
        await aeventually(lambda: OperationState.RUNNING in seen)
        coordinator.operation("op", OperationState.FAILED, "no room")
        row = await wait
    assert (row.state, row.reason) == (OperationState.FAILED, "no room")
    assert seen == [OperationState.ACCEPTED, OperationState.RUNNING, OperationState.FAILED]


async def test_wait_for_an_ended_operation_returns_at_once(coordinator: SmallCoordinator) -> None:
    coordinator.operation("op", OperationState.SUCCEEDED)
    async with dial(coordinator) as client:
        assert (await client.wait("op", timeout_s=30)).state is OperationState.SUCCEEDED


async def test_wait_sends_no_query_while_the_feed_works(
    coordinator: SmallCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A feed that gets no processor time for a while still works.
    monkeypatch.setattr(tail_module, "SILENT_S", 60.0)
    coordinator.operation("op", OperationState.RUNNING)

    async def beats_for(seconds: float) -> None:
        until = coordinator.feed._next_beat + seconds
        await aeventually(lambda: coordinator.feed._next_beat >= until)

    async with dial(coordinator) as client:
        wait = asyncio.create_task(client.wait("op", timeout_s=60))
        # One query at the beginning, one at the first message of the feed, and perhaps one between them.
        await aeventually(lambda: len(coordinator.requests) >= 2)
        await beats_for(0.5)
        wanted = len(coordinator.requests)
        await beats_for(2.5 * core.ASK_EVERY_S)
        coordinator.operation("op", OperationState.SUCCEEDED)
        assert (await wait).state is OperationState.SUCCEEDED
        assert len(coordinator.requests) == wanted <= 3


async def test_wait_queries_when_the_feed_is_silent(
    coordinator: SmallCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "ASK_EVERY_S", 0.05)
    monkeypatch.setattr(tail_module, "SILENT_S", 0.2)
    coordinator.feed_works = False
    coordinator.operation("op", OperationState.RUNNING)
    async with dial(coordinator) as client:
        wait = asyncio.create_task(client.wait("op", timeout_s=60))
        await aeventually(lambda: len(coordinator.requests) > 10)
        coordinator.operation("op", OperationState.SUCCEEDED)
        assert (await wait).state is OperationState.SUCCEEDED


async def test_wait_queries_when_rows_were_lost(coordinator: SmallCoordinator) -> None:
    coordinator.operation("op", OperationState.RUNNING)
    async with dial(coordinator) as client:
        wait = asyncio.create_task(client.wait("op", timeout_s=60))
        await aeventually(lambda: len(coordinator.requests) == 2)
        coordinator.feed_works = False
        coordinator.operation("op", OperationState.SUCCEEDED)
        coordinator.feed_works = True
        assert (await wait).state is OperationState.SUCCEEDED


async def test_wait_survives_a_restart_of_the_coordinator(coordinator: SmallCoordinator) -> None:
    coordinator.operation("op", OperationState.RUNNING)
    async with dial(coordinator) as client:
        wait = asyncio.create_task(client.wait("op", timeout_s=60))
        await aeventually(lambda: coordinator.requests)
        coordinator.die()
        await aeventually(lambda: not client.connected)
        coordinator.rows["op/op"] = OperationRow("op", "scale", "", "me", OperationState.SUCCEEDED, 0.0)
        coordinator.start()
        assert (await wait).state is OperationState.SUCCEEDED


async def test_wait_ends_at_its_timeout(coordinator: SmallCoordinator) -> None:
    coordinator.operation("op", OperationState.RUNNING)
    async with dial(coordinator) as client:
        with pytest.raises(WaitTimeoutError, match=r"has not ended within 0\.3 s; it goes on"):
            await client.wait("op", timeout_s=0.3)
        coordinator.die()
        with pytest.raises(NoCoordinatorError):
            await client.wait("op", timeout_s=0.3)


async def test_wait_for_an_unknown_or_forgotten_operation_is_an_error(coordinator: SmallCoordinator) -> None:
    async with dial(coordinator) as client:
        with pytest.raises(UnknownNameError):
            await client.wait("nothing", timeout_s=30)
        coordinator.operation("op", OperationState.RUNNING)
        wait = asyncio.create_task(client.wait("op", timeout_s=60))
        await aeventually(lambda: len(coordinator.requests) >= 3)
        coordinator.remove("op/op")
        with pytest.raises(UnknownNameError):
            await wait


# ---- snapshot and follow ----


async def test_snapshot_has_all_rows_of_the_given_kinds(coordinator: SmallCoordinator) -> None:
    coordinator.set("group/web", group("web", 3))
    coordinator.operation("op", OperationState.RUNNING)
    async with dial(coordinator) as client:
        view = await client.snapshot()
        assert view.rows == coordinator.feed.rows()
        assert (view.epoch, view.seq) == ("epoch-1", coordinator.feed.seq)
        assert set((await client.snapshot(("group",))).rows) == {"group/web"}


@pytest.mark.parametrize("kinds", [("operation",), ["unit", "nonsense"], "units"])
async def test_unknown_kinds_of_rows_are_refused(coordinator: SmallCoordinator, kinds: Any) -> None:
    async with dial(coordinator) as client:
        with pytest.raises(UsageError, match="Known are run, pulse"):
            await client.snapshot(kinds)
        with pytest.raises(UsageError, match="There are no rows of the kind"):
            await anext(client.follow(kinds))


async def test_snapshot_of_ten_thousand_rows(coordinator: SmallCoordinator) -> None:
    for number in range(10_000):
        coordinator.feed.set(f"group/g{number}", group(f"g{number}", number))
    async with dial(coordinator) as client:
        view = await client.snapshot(deadline_s=60)
    assert len(view.rows) == 10_000
    assert view.rows == coordinator.feed.rows()


async def test_follower_ends_equal_to_the_coordinator(coordinator: SmallCoordinator) -> None:
    for number in range(20):
        coordinator.set(f"group/g{number}", group(f"g{number}", 0))
    async with dial(coordinator) as client:
        mirror = Mirror(client)
        await mirror.equals(coordinator)
        for desired in range(1, 30):
            for number in range(20):
                coordinator.set(f"group/g{number}", group(f"g{number}", desired))
            if desired % 5 == 0:
                await asyncio.sleep(0)
        coordinator.remove("group/g3")
        coordinator.set("group/new", group("new", 1))
        await mirror.equals(coordinator)
        assert mirror.markers == [RESET, CAUGHT_UP]
        assert "group/g3" not in mirror.rows
        await mirror.stop()


async def test_follower_gets_only_its_kinds(coordinator: SmallCoordinator) -> None:
    coordinator.set("group/web", group("web", 1))
    async with dial(coordinator) as client:
        mirror = Mirror(client, ("op",))
        await aeventually(lambda: mirror.markers == [RESET, CAUGHT_UP])
        coordinator.set("group/web", group("web", 2))
        coordinator.operation("op", OperationState.RUNNING)
        await aeventually(lambda: mirror.rows)
        assert set(mirror.rows) == {"op/op"}
        await mirror.stop()


async def test_rows_between_a_snapshot_and_the_first_message_are_not_missed(
    coordinator: SmallCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subscription reaches the coordinator late, while the answer to the snapshot is on its way."""
    opened: list[tail_module.FeedSubscription] = []

    class Remembered(tail_module.FeedSubscription):
        async def __aenter__(self) -> Remembered:
            opened.append(self)
            return await super().__aenter__()

    monkeypatch.setattr(core, "FeedSubscription", Remembered)
    monkeypatch.setattr(core, "ASK_EVERY_S", 0.2)
    coordinator.feed_works = False
    coordinator.set("group/web", group("web", 1))
    async with dial(coordinator) as client:
        snapshot = client.snapshot

        async def late(*kinds: Any, **more: Any) -> Any:
            view = await snapshot(*kinds, **more)
            if not coordinator.feed_works:
                coordinator.set("group/web", group("web", 2))
                coordinator.feed_works = True
                await aeventually(lambda: opened[0].live, what="the first message")
            return view

        monkeypatch.setattr(client, "snapshot", late)
        mirror = Mirror(client)
        await mirror.equals(coordinator)
        assert mirror.rows["group/web"].desired == 2
        await mirror.stop()


async def test_lost_rows_are_detected_and_fetched(coordinator: SmallCoordinator) -> None:
    async with dial(coordinator) as client:
        mirror = Mirror(client)
        await aeventually(lambda: mirror.markers == [RESET, CAUGHT_UP])
        coordinator.lose(3)
        await mirror.equals(coordinator)
        await aeventually(lambda: mirror.markers == [RESET, CAUGHT_UP] * 2)
        await mirror.stop()


async def test_loss_of_the_last_row_is_detected_at_the_next_beat(coordinator: SmallCoordinator) -> None:
    """No later row would reveal the gap."""
    async with dial(coordinator) as client:
        coordinator.set("group/web", group("web", 1))
        mirror = Mirror(client)
        await mirror.equals(coordinator)
        coordinator.feed_works = False
        coordinator.set("group/web", group("web", 9))
        coordinator.feed_works = True
        await mirror.equals(coordinator)
        assert mirror.rows["group/web"].desired == 9
        await mirror.stop()


async def test_follower_survives_restarts_of_the_coordinator(coordinator: SmallCoordinator) -> None:
    coordinator.set("group/web", group("web", 1))
    async with dial(coordinator) as client:
        mirror = Mirror(client)
        await mirror.equals(coordinator)
        for life in range(2, 4):
            coordinator.die()
            coordinator.rows = {f"group/life{life}": group(f"life{life}", life)}
            coordinator.start()
            await mirror.equals(coordinator)
            assert set(mirror.rows) == {f"group/life{life}"}
        assert mirror.markers == [RESET, CAUGHT_UP] * 3
        await mirror.stop()


async def test_follower_has_the_rows_of_a_new_coordinator_after_few_snapshots_late_in_a_long_life(
    coordinator: SmallCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new coordinator counts its rows from the beginning, so the numbers of the former one say nothing about it. And
    its first message does not make the rows of the former one recent."""
    monkeypatch.setattr(tail_module, "SILENT_S", 0.5)
    for desired in range(500):
        coordinator.set("group/web", group("web", desired))
    async with dial(coordinator) as client:
        mirror = Mirror(client)
        await mirror.equals(coordinator)
        coordinator.die()
        await aeventually(lambda: mirror.markers[-1] == SILENT)
        coordinator.rows = {"group/api": group("api", 1)}
        coordinator.requests.clear()
        coordinator.start()
        await mirror.equals(coordinator)
        await aeventually(lambda: len(mirror.markers) == 5)
        assert mirror.markers == [RESET, CAUGHT_UP, SILENT, RESET, CAUGHT_UP]
        assert 1 <= len([request for request in coordinator.requests if request.name == "snapshot"]) <= 5
        await mirror.stop()


async def test_silence_of_the_feed_and_its_end_are_reported(
    coordinator: SmallCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "SILENT_S", 1.0)
    async with dial(coordinator) as client:
        mirror = Mirror(client)
        # A feed without processor time is silent too.
        await aeventually(lambda: mirror.markers[:2] == [RESET, CAUGHT_UP])
        coordinator.feed_works = False
        await aeventually(lambda: mirror.markers[-1] == SILENT)
        coordinator.feed_works = True
        await aeventually(lambda: mirror.markers[-1] == CAUGHT_UP)
        assert set(mirror.markers[1::2]) == {CAUGHT_UP}
        assert set(mirror.markers[2::2]) == {SILENT}
        await mirror.stop()


async def test_feed_that_cannot_be_reached_is_an_error_that_names_it(
    coordinator: SmallCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "PATIENCE_S", 0.3)
    coordinator.feed_works = False
    async with dial(coordinator) as client:
        with pytest.raises(NoCoordinatorError, match=r"its feed at .* is silent"):
            await anext(client.follow())


async def test_slow_follower_sees_the_newest_rows_only(coordinator: SmallCoordinator) -> None:
    """It needs the memory of one row per key and not of all changes."""
    coordinator.set("group/web", group("web", 0))
    async with dial(coordinator) as client:
        changes = client.follow()
        seen = [await anext(changes) for _ in range(3)]
        assert [key for key, _ in seen] == [RESET, "group/web", CAUGHT_UP]
        for desired in range(1, 1001):
            coordinator.set("group/web", group("web", desired))
        last = await aeventually(lambda: client.snapshot())
        got: list[int] = []
        while not got or got[-1] != 1000:
            _, row = await asyncio.wait_for(anext(changes), 60)
            if isinstance(row, GroupRow):
                got.append(row.desired)
        assert last.rows["group/web"] == group("web", 1000)
        assert got == sorted(got)
        assert len(got) < 1000
        await changes.aclose()
