"""Units that block, wait in hundreds of tasks, or hang: what the coordinator receives."""

from __future__ import annotations

import os
import signal
import time

from agentrl.protocol import messages
from tests.unit.conftest import Start
from tests.unit.fake_coordinator import HEARTBEAT_S, Counterpart
from tests.waiting import aeventually


async def test_heartbeats_continue_while_the_loop_blocks(counterpart: Counterpart, start: Start) -> None:
    start("-m", "assets.units.native_block", "--seconds", "600", "--at-most", "700")
    await aeventually(lambda: counterpart.report.phase == "native")
    seen = len(counterpart.of(messages.Beat))
    await aeventually(lambda: len(counterpart.of(messages.Beat)) >= seen + 5)
    assert {beat.progress for beat in counterpart.of(messages.Beat)[seen:]} == {0}


async def test_phase_is_announced_before_its_body_silences_the_thread(counterpart: Counterpart, start: Start) -> None:
    start("-m", "assets.units.native_block", "--seconds", "2", "--at-most", "60", "--hold-gil")
    await aeventually(lambda: counterpart.report.phase == "native" and counterpart.report.at_most_s == 60)

    def silent_after_its_announcement() -> bool:
        """The unit blocks repeatedly. If the start and the end of one phase arrive together, the next one counts."""
        reports = ((at, each) for at, each in counterpart.got if isinstance(each, messages.UnitReport))
        reply = [at for at, report in reports if report.phase == "native"]
        beats = counterpart.times_of(messages.Beat)
        ends = ([beat for beat in beats if beat > at + HEARTBEAT_S][:1] for at in reply)
        return any(end - at > 1.0 for at, first in zip(reply, ends, strict=True) for end in first)

    await aeventually(silent_after_its_announcement, what="the silence of a GIL that is held")


async def test_announcements_are_rare_when_a_long_phase_is_entered_very_often(
    counterpart: Counterpart, start: Start
) -> None:
    start(
        """
        import time
        from agentrl.unit import run_unit
        def main(unit):
            end = time.monotonic() + 2
            entered = 0
            while time.monotonic() < end:
                with unit.phase("step", at_most_s=900):
                    entered += 1
            unit.metric("entered", entered)
        run_unit(main)
        """
    )
    await counterpart.byes()
    assert counterpart.of(messages.UnitMetrics)[-1].values["entered"] > 1000
    assert len(counterpart.of(messages.UnitReport)) < 15


async def test_200_simultaneous_waits_are_reported(counterpart: Counterpart, start: Start) -> None:
    unit = start("-m", "assets.units.many_waits", "--waits", "200", "--on", "judge-0")
    await aeventually(lambda: "200 waits" in counterpart.report.status)
    report = counterpart.report
    assert len(report.waits) == 20
    assert {wait.on for wait in report.waits} == {"judge-0"}
    assert [wait.what for wait in report.waits] == [f"record {number}" for number in range(20)]
    assert report.waits[0].age_s >= report.waits[-1].age_s
    progress = counterpart.of(messages.Beat)[-1].progress
    await aeventually(lambda: counterpart.of(messages.Beat)[-1].progress > progress)
    await aeventually(lambda: 0 < counterpart.of(messages.Beat)[-1].loop_lag_s < 1.0, what="its loop to turn")
    counterpart.tell(messages.Drain(grace_s=5))
    assert await unit.code() == 0


async def test_lag_of_a_blocked_async_loop_is_reported(counterpart: Counterpart, start: Start) -> None:
    start(
        """
        import time
        from agentrl.unit import run_unit
        async def main(unit):
            unit.ready()
            await unit.sleep_async(0.5)
            with unit.phase("blocked", at_most_s=60):
                time.sleep(2.5)
            await unit.sleep_async(60)
        run_unit(main)
        """
    )

    # The unit blocks once, so search all received messages and not only the newest.
    def lags_while_blocked() -> bool:
        phase = ""
        for _, message in counterpart.got:
            if isinstance(message, messages.UnitReport):
                phase = message.phase
            elif isinstance(message, messages.Beat) and phase == "blocked" and message.loop_lag_s > 1.0:
                return True
        return False

    await aeventually(lags_while_blocked, what="the lag during its phase")
    await aeventually(lambda: counterpart.of(messages.Beat)[-1].loop_lag_s < 1.0)


async def test_hanging_unit_writes_its_stacks_on_request(counterpart: Counterpart, start: Start) -> None:
    unit = start("-m", "assets.units.hang", "--at-most", "2")
    await aeventually(lambda: counterpart.of(messages.Beat) and counterpart.of(messages.Beat)[-1].progress > 2)
    (counterpart.directory / "hang-web-3").touch()
    await aeventually(lambda: len({beat.progress for beat in counterpart.of(messages.Beat)[-4:]}) == 1)
    await aeventually(lambda: counterpart.report.phase == "step")
    unit.signal(signal.SIGUSR2)
    stacks = counterpart.directory / "stacks" / "web-3.7.txt"
    await aeventually(lambda: "hang.py" in stacks.read_text() and "socket_thread.py" in stacks.read_text())
    unit.signal(signal.SIGABRT)
    assert await unit.code() == -signal.SIGABRT
    assert "hang.py" in unit.text()


async def test_knobs_take_effect_at_their_boundaries(counterpart: Counterpart, start: Start) -> None:
    counterpart.knobs = {"fake.bound": 6, "fake.depth": 3}
    start("-m", "assets.units.fake_trainer", "--every", "0.2")
    await aeventually(lambda: (counterpart.report.weights or 0) >= 1)
    hello = counterpart.of(messages.UnitHello)[-1]
    declared = {each.name: each for each in hello.declared}
    assert set(declared) == {"fake.bound", "fake.batch", "fake.noise", "fake.depth"}
    assert declared["fake.bound"].default == 4, "the value is the default and not the tuned one"
    assert (declared["fake.bound"].kind, declared["fake.bound"].boundary) == ("int", "next version")
    assert declared["fake.noise"].scientific
    assert counterpart.report.knobs == {"fake.bound": 6, "fake.batch": 32, "fake.noise": 0.0, "fake.depth": 3}
    counterpart.tell(messages.SetPaused(True))
    await aeventually(lambda: counterpart.report.phase == "parked")
    for number, (name, value) in enumerate(
        {"fake.bound": 2, "fake.batch": 8, "fake.noise": 1, "fake.depth": 5}.items()
    ):
        counterpart.tell(messages.SetKnob(name, value, revision=number))
    await aeventually(lambda: counterpart.report.knobs["fake.noise"] == 1.0)
    assert counterpart.report.knobs["fake.bound"] == 6, "no version began since"
    assert counterpart.report.knobs["fake.batch"] == 32, "no claim was made since"
    counterpart.tell(messages.SetPaused(False))
    await aeventually(
        lambda: (counterpart.report.knobs["fake.bound"], counterpart.report.knobs["fake.batch"]) == (2, 8)
    )
    assert counterpart.report.knobs["fake.depth"] == 3, "this one needs a restart"


async def test_preview_is_computed_by_the_unit(counterpart: Counterpart, start: Start) -> None:
    start("-m", "assets.units.fake_trainer")
    await aeventually(lambda: counterpart.report.ready)
    counterpart.tell(messages.PreviewKnob("q1", "fake.bound", 1))
    counterpart.tell(messages.PreviewKnob("q2", "fake.bound", "one"))
    counterpart.tell(messages.PreviewKnob("q3", "no.such", 1))
    await aeventually(lambda: len(counterpart.of(messages.KnobPreviewed)) == 3)
    answers = {answer.ask: answer for answer in counterpart.of(messages.KnobPreviewed)}
    assert answers["q1"] == messages.KnobPreviewed("q1", "3 records void")
    assert "of type int" in answers["q2"].error
    assert "no knob no.such" in answers["q3"].error


async def test_time_in_a_stopped_process_does_not_count_against_the_lease(
    counterpart: Counterpart, start: Start
) -> None:
    counterpart.orphan_lease_s = 5.0
    unit = start("-m", "assets.units.step_loop")
    await aeventually(lambda: counterpart.report.ready)
    unit.signal(signal.SIGSTOP)
    began = time.monotonic()
    await aeventually(lambda: time.monotonic() - began > 6.0)
    counterpart.got.clear()
    unit.signal(signal.SIGCONT)
    await aeventually(lambda: len(counterpart.of(messages.Beat)) > 3)
    assert not any(report.draining for report in counterpart.of(messages.UnitReport))


async def test_detached_children_survive_a_kill_of_the_process_group(counterpart: Counterpart, start: Start) -> None:
    unit = start("-m", "assets.units.detached_children", "--children", "2")
    await aeventually(lambda: counterpart.report.ready)
    pids = [int(pid) for pid in (counterpart.directory / "children-web-3.pids").read_text().split()]
    try:
        os.killpg(unit.process.pid, signal.SIGKILL)
        await unit.code()
        assert len(pids) == 2
        assert all(os.getsid(pid) != unit.process.pid for pid in pids)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
