"""Reported state, knobs, flags and the coordinator protocol, with a fake clock."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import ConfigError, UsageError
from agentrl.protocol import messages
from agentrl.protocol.knob import Knob
from agentrl.unit.control_flags import ControlFlags
from agentrl.unit.coordinator_protocol import CoordinatorProtocol, GiveUp
from agentrl.unit.reported_state import ReportedState
from agentrl.unit.unit_environment import UnitEnvironment, read_environment
from agentrl.unit.unit_knobs import KnobSet, LiveKnob


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def nothing() -> None:
    pass


def report(account: ReportedState, now: float) -> messages.UnitReport:
    return account.report(now, paused=False, draining=False, knobs={})


# ---- account ----


def test_innermost_phase_is_reported_and_the_outer_one_after_it() -> None:
    clock = Clock()
    account = ReportedState(clock=clock)
    with account.phase("step", 900, announce=nothing):
        clock.now += 5
        with account.phase("fetch", 10, announce=nothing):
            clock.now += 1
            seen = report(account, clock.now)
            assert (seen.phase, seen.at_most_s, seen.phase_age_s) == ("fetch", 10, 1)
        seen = report(account, clock.now)
        assert (seen.phase, seen.phase_age_s) == ("step", 6)
    assert report(account, clock.now).phase == ""


def test_age_of_the_last_progress_is_reported() -> None:
    clock = Clock()
    account = ReportedState(clock=clock)
    clock.now += 3
    assert report(account, clock.now).progress_age_s == 3, "nothing yet: counted from its begin"
    account.tick(5)
    clock.now += 40
    seen = report(account, clock.now)
    assert (seen.progress, seen.progress_age_s) == (5, 40)


def test_tick_restarts_the_deadlines_around_it() -> None:
    clock = Clock()
    account = ReportedState(clock=clock)
    with account.phase("step", 900, announce=nothing):
        clock.now += 5
        with account.phase("fetch", 10, announce=nothing):
            clock.now += 1
            account.tick()
        assert report(account, clock.now).phase_age_s == 0
    assert account.progress == 1


async def test_concurrent_phases_are_reported_as_the_one_with_the_nearest_deadline() -> None:
    clock = Clock()
    account = ReportedState(clock=clock)
    entered, done = asyncio.Barrier(3), asyncio.Event()

    async def work(name: str, at_most_s: float) -> None:
        with account.phase(name, at_most_s, announce=nothing):
            await entered.wait()
            await done.wait()

    with account.phase("all", 1, announce=nothing):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(work("slow", 60))
            tasks.create_task(work("quick", 5))
            await entered.wait()
            assert report(account, clock.now).phase == "quick"
            done.set()
        assert report(account, clock.now).phase == "all"


def test_exception_in_a_phase_ends_the_phase() -> None:
    account = ReportedState()
    with pytest.raises(ValueError, match="inside"), account.phase("step", 1, announce=nothing):
        raise ValueError("inside")
    assert report(account, 0).phase == ""


def test_oldest_waits_are_listed_and_the_others_counted() -> None:
    clock = Clock()
    account = ReportedState(clock=clock)
    account.write(status="busy")
    scopes = []
    for number in range(25):
        scopes.append(account.wait(f"w{number}", on="judge-0", at_most_s=60))
        scopes[-1].__enter__()
        clock.now += 1
    seen = report(account, clock.now)
    assert [wait.what for wait in seen.waits] == [f"w{number}" for number in range(20)]
    assert seen.waits[0].age_s == 25
    assert seen.status == "busy (25 waits, the oldest 20 listed)"
    for scope in scopes[:10]:
        scope.__exit__(None, None, None)
    seen = report(account, clock.now)
    assert [wait.what for wait in seen.waits] == [f"w{number}" for number in range(10, 25)]
    assert seen.status == "busy"


def test_waits_of_others_age_and_are_reported_again_only_after_a_change() -> None:
    clock = Clock()
    account = ReportedState(clock=clock)
    task = messages.Wait("task g1", "is not done", 10.0, 60.0, who="batch")
    account.publish_waits([task])
    seen = account.revision
    clock.now += 5
    with account.wait("its own", on="mongo-0", at_most_s=9):
        own, of_others = report(account, clock.now).waits
    assert (own.who, own.on) == ("", "mongo-0")
    assert of_others == messages.Wait("task g1", "is not done", 15.0, 60.0, who="batch")
    before = account.revision
    assert before > seen
    account.publish_waits([messages.Wait("task g1", "is not done", 16.0, 60.0, who="batch")])
    assert account.revision == before, "only time has passed"
    account.publish_waits([messages.Wait("task g2", "is not done", 1.0, 60.0, who="batch")])
    assert account.revision == before + 1
    account.publish_waits([])
    assert report(account, clock.now).waits == ()


def test_writes_from_many_threads_are_all_counted() -> None:
    account = ReportedState()

    def work() -> None:
        for _ in range(2000):
            with account.phase("p", 1, announce=nothing), account.wait("w", on="", at_most_s=1):
                account.tick()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert account.progress == 16000
    assert report(account, 0).waits == ()
    assert report(account, 0).phase == ""


# ---- knobs ----


def knob(name: str, default: float | bool, *, boundary: str = "now") -> Knob:
    return Knob(name=name, kind=type(default).__name__, default=default, boundary=boundary)


def test_knob_starts_with_the_tuned_value() -> None:
    knobs = KnobSet()
    knobs.offer("bound", 7)
    assert knobs.declare(knob("bound", 4, boundary="restart")).value == 7


def test_unknown_boundary_is_refused_with_the_known_ones() -> None:
    knobs = KnobSet()
    with pytest.raises(ConfigError, match=r"'now', 'next claim', 'next version', 'restart', not 'claim'"):
        knobs.declare(knob("bound", 4, boundary="claim"))
    assert knobs.declarations == ()


@pytest.mark.parametrize("boundary", ["next claim", "next version"])
def test_value_waits_for_its_boundary(boundary: str) -> None:
    knobs = KnobSet()
    seen: list[int] = []
    bound: LiveKnob[int] = knobs.declare(knob("bound", 4, boundary=boundary), on_change=seen.append)
    knobs.offer("bound", 5)
    assert (bound.value, bound.pending, seen) == (4, 5, [])
    assert bound.take() == 5
    assert (knobs.in_force(), seen) == ({"bound": 5}, [5])


def test_restart_knob_keeps_its_value_for_the_incarnation() -> None:
    knobs = KnobSet()
    depth: LiveKnob[int] = knobs.declare(knob("depth", 2, boundary="restart"))
    knobs.offer("depth", 3)
    assert (depth.take(), depth.value, depth.pending) == (2, 2, 3)


def test_values_of_a_wrong_type_are_refused_and_whole_numbers_become_floats() -> None:
    knobs = KnobSet()
    rate: LiveKnob[float] = knobs.declare(knob("rate", 0.5))
    flag: LiveKnob[bool] = knobs.declare(knob("flag", False))
    knobs.offer("rate", 2)
    assert rate.value == 2.0
    assert type(rate.value) is float
    with pytest.raises(UsageError, match="must be of type bool, got 1"):
        knobs.offer("flag", 1)
    assert flag.value is False


def test_knob_is_declared_once() -> None:
    knobs = KnobSet()
    knobs.declare(knob("rate", 0.5))
    with pytest.raises(ConfigError, match="twice"):
        knobs.declare(knob("rate", 0.5))


# ---- orders ----


async def test_threads_and_tasks_wake_at_the_same_change() -> None:
    orders = ControlFlags()
    task = asyncio.create_task(orders.wait_async(lambda seen: seen.draining, 10))
    thread = asyncio.create_task(asyncio.to_thread(orders.wait, lambda seen: seen.draining, 10))
    assert not await orders.wait_async(lambda seen: seen.draining, 0.05)
    threading.Thread(target=orders.drain).start()
    assert await task
    assert await thread


def test_stop_cannot_be_cancelled() -> None:
    orders = ControlFlags()
    orders.stop()
    orders.cancel_drain()
    assert orders.draining


def test_late_drain_callback_is_called_at_once() -> None:
    orders = ControlFlags()
    seen: list[str] = []
    orders.on_drain(lambda: seen.append("early"))
    orders.drain()
    orders.on_drain(lambda: seen.append("late"))
    orders.drain()
    assert seen == ["early", "late"]


# ---- protocol ----

ME = UnitEnvironment(
    unit="web-3", group="web", slot=3, incarnation=7, run_dir=Path("/r"), run="u", coordinator="ipc://x"
)
WELCOME = messages.Welcome(epoch="e", run="u", run_name="n", now_ct=0, heartbeat_s=2, orphan_lease_s=600)


class Talk:
    """A protocol object with all that it needs."""

    def __init__(self) -> None:
        self.account, self.orders, self.knobs = ReportedState(), ControlFlags(), KnobSet()
        self.said: list[str] = []
        self.talk = CoordinatorProtocol(ME, self.account, self.orders, self.knobs, now=0, say=self.said.append)

    def welcomed(self, now: float = 0.0, welcome: messages.Welcome = WELCOME) -> CoordinatorProtocol:
        self.talk.connected(now)
        self.talk.received(welcome, now)
        return self.talk


def test_only_a_hello_is_sent_before_the_welcome() -> None:
    setup = Talk()
    setup.account.write(status="busy")
    assert setup.talk.due(1) == []
    assert [type(act) for act in setup.talk.connected(1)] == [messages.UnitHello]
    assert setup.talk.due(2) == []
    assert [type(act) for act in setup.talk.due(4)] == [messages.UnitHello], "the first may have been lost"


@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_reports_keep_their_interval_and_lose_no_change(pauses: list[float]) -> None:
    setup = Talk()
    talk, now, sent = setup.welcomed(), 0.0, []
    for number, pause in enumerate([*pauses, 1.0]):
        if number < len(pauses):
            setup.account.write(status=f"s{number}")
        end = now + pause
        while now < end:
            now = min(end, talk.next_at(now))
            sent += [(now, act) for act in talk.due(now)]
    reports = [(at, act) for at, act in sent if isinstance(act, messages.UnitReport)]
    beats = [at for at, act in sent if isinstance(act, messages.Beat)]
    assert all(later - earlier >= 0.5 - 1e-9 for (earlier, _), (later, _) in itertools.pairwise(reports))
    assert all(later - earlier <= 2 + 1e-6 for earlier, later in itertools.pairwise(beats))
    assert reports[-1][1].status == f"s{len(pauses) - 1}"


def test_final_refusal_gives_up_and_another_refusal_retries() -> None:
    setup = Talk()
    setup.talk.connected(0)
    assert setup.talk.received(messages.Refused(9, "old"), 0) == []
    assert setup.talk.due(5) == []
    assert [type(act) for act in setup.talk.due(10)] == [messages.UnitHello]
    assert setup.talk.received(messages.Refused(4, "replaced", final=True), 11) == [GiveUp("replaced")]


def test_lease_expires_after_silence_and_a_new_welcome_cancels_the_drain() -> None:
    setup = Talk()
    talk = setup.welcomed()
    talk.disconnected()
    now = 0.0
    while now < 598:
        now += 2
        talk.due(now)
    assert not setup.orders.draining
    talk.due(601)
    assert setup.orders.draining
    setup.welcomed(602)
    assert not setup.orders.draining


def test_drain_by_the_coordinator_is_not_cancelled_by_its_return() -> None:
    setup = Talk()
    setup.welcomed().received(messages.Drain(5), 1)
    setup.talk.disconnected()
    setup.welcomed(2)
    assert setup.orders.draining


def test_long_phase_needs_an_announcement_unless_the_last_report_covers_it() -> None:
    setup = Talk()
    talk = setup.welcomed()
    assert talk.needs_announcement(900, 1)
    assert not talk.needs_announcement(1.0, 1), "shorter than a heartbeat"
    with setup.account.phase("step", 900, announce=nothing):
        assert talk.report_now(1)
        assert not talk.needs_announcement(900, 1.5)
        assert not talk.needs_announcement(60, 1.5)
        assert talk.needs_announcement(900, 300)
    talk.due(3)
    assert talk.needs_announcement(60, 3), "the last report said that the phase is over"


def test_bye_is_last_except_for_a_heartbeat_that_proves_it() -> None:
    setup = Talk()
    talk = setup.welcomed()
    setup.account.metrics({"reward": 1})
    acts = talk.farewell(1, "why", 1)
    assert [type(act) for act in acts][-2:] == [messages.Bye, messages.Beat]
    assert messages.UnitMetrics({"reward": 1.0}) in acts
    talk.received(messages.BeatAck(1, 0), 1)
    assert not talk.farewell_read
    closing = acts[-1]
    assert isinstance(closing, messages.Beat)
    talk.received(messages.BeatAck(closing.seq, 0), 1)
    assert talk.farewell_read


# ---- environment and imports ----


def test_durations_in_the_environment_must_be_positive_numbers() -> None:
    variables = {"AGENTRL_COORDINATOR": "ipc://x", "AGENTRL_INCARNATION": "a-0.1", "AGENTRL_HEARTBEAT_S": "soon"}
    with pytest.raises(ConfigError, match="AGENTRL_HEARTBEAT_S is 'soon'"):
        read_environment(variables)


def test_unit_imports_nothing_heavy() -> None:
    heavy = "{'pydantic', 'typer', 'rich', 'textual', 'mcp', 'httpx', 'pymongo', 'motor', 'torch', 'psutil'}"
    code = f"import sys, agentrl.unit; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
