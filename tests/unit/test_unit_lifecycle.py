"""Real unit processes with a real hub: hello, heartbeats, orders, and every way to end."""

from __future__ import annotations

import signal
import time

import pytest

from agentrl.errors import ExitCode
from agentrl.protocol import messages
from tests.unit.conftest import Start
from tests.unit.fake_coordinator import Counterpart
from tests.waiting import aeventually

LOOP = """
    from agentrl.unit import run_unit
    def main(unit):
        unit.ready()
        while not unit.draining:
            unit.park_while_paused()
            with unit.phase("step", at_most_s=30):
                unit.tick()
            unit.sleep(0.01)
        print("finished", flush=True)
    run_unit(main)
"""

ASYNC_LOOP = """
    import asyncio
    from agentrl.unit import run_unit
    async def main(unit):
        unit.ready()
        unit.on_drain(lambda: print("on the loop:", asyncio.get_running_loop().is_running(), flush=True))
        while await unit.sleep_async(0.01):
            await unit.park_while_paused_async()
            unit.tick()
    run_unit(main)
"""

DEAF = """
    import time
    from agentrl.unit import run_unit
    def main(unit):
        unit.ready()
        while True:
            time.sleep(0.05)
    run_unit(main, term_deadline_s={deadline})
"""


async def ready(counterpart: Counterpart) -> None:
    await aeventually(lambda: counterpart.report.ready, what="a report of readiness")


async def test_unit_sends_hello_heartbeats_and_bye(counterpart: Counterpart, start: Start) -> None:
    unit = start(LOOP)
    await ready(counterpart)
    await aeventually(lambda: len(counterpart.of(messages.Beat)) > 5)
    counterpart.tell(messages.Drain(grace_s=5))
    assert await unit.code() == 0
    assert await counterpart.byes() == [messages.Bye(0)]
    hello = counterpart.of(messages.UnitHello)[0]
    assert (hello.run, hello.unit, hello.incarnation, hello.token) == ("run-uuid", "web-3", 7, "secret")
    assert hello.pid == unit.process.pid
    assert isinstance(counterpart.got[0][1], messages.UnitHello)
    beats = counterpart.of(messages.Beat)
    assert [beat.seq for beat in beats] == list(range(1, len(beats) + 1))
    assert beats[-2].progress > beats[0].progress
    assert any(beat.ack for beat in beats[:5])
    assert "finished" in unit.text()


async def test_unit_reports_at_most_twice_a_second_besides_announcements(
    counterpart: Counterpart, start: Start
) -> None:
    unit = start(
        """
        import time
        from agentrl.unit import run_unit
        def main(unit):
            print(time.monotonic(), flush=True)
            for number in range(200):
                with unit.phase(f"short {number}", at_most_s=0.1):
                    unit.status(f"step {number}")
                unit.metric("number", number)
                unit.sleep(0.01)
        run_unit(main)
        """
    )
    await counterpart.byes()
    # Measured from the first moment of the unit, because several reports may be read at once.
    lasted_s = counterpart.times_of(messages.Bye)[0] - float(unit.text().split()[0])
    assert 2 <= len(counterpart.of(messages.UnitReport)) <= 2 * lasted_s + 3
    assert 2 <= len(counterpart.of(messages.UnitMetrics)) <= lasted_s + 3
    assert counterpart.report.status == "step 199"
    assert counterpart.of(messages.UnitMetrics)[-1].values == {"number": 199.0}


async def test_unit_sends_hello_again_after_a_reconnection(counterpart: Counterpart, start: Start) -> None:
    unit = start(LOOP)
    await ready(counterpart)
    progress = counterpart.of(messages.Beat)[-1].progress
    counterpart.close()
    counterpart.got.clear()
    counterpart.start()
    await aeventually(lambda: counterpart.of(messages.Beat))
    hello = counterpart.of(messages.UnitHello)[0]
    assert hello.ready
    assert counterpart.of(messages.Beat)[0].progress >= progress
    await ready(counterpart)
    assert unit.process.poll() is None


async def test_unit_answers_who_are_you_with_a_hello(counterpart: Counterpart, start: Start) -> None:
    start(LOOP)
    await ready(counterpart)
    counterpart.tell(messages.WhoAreYou())
    await aeventually(lambda: len(counterpart.of(messages.UnitHello)) == 2)
    reports = len(counterpart.of(messages.UnitReport))
    await aeventually(lambda: len(counterpart.of(messages.UnitReport)) > reports)
    assert counterpart.report.ready


async def test_pause_parks_a_blocking_loop_until_resume(counterpart: Counterpart, start: Start) -> None:
    start(LOOP)
    await _paused_and_resumed(counterpart)


async def test_pause_parks_an_async_loop_until_resume(counterpart: Counterpart, start: Start) -> None:
    start(ASYNC_LOOP)
    await _paused_and_resumed(counterpart)


async def _paused_and_resumed(counterpart: Counterpart) -> None:
    await ready(counterpart)
    counterpart.tell(messages.SetPaused(True))
    await aeventually(lambda: counterpart.report.phase == "parked" and counterpart.report.paused)
    seen = len(counterpart.of(messages.Beat))
    await aeventually(lambda: len(counterpart.of(messages.Beat)) > seen + 4)
    standing = counterpart.of(messages.Beat)[seen + 1 :]
    assert len({beat.progress for beat in standing}) == 1
    counterpart.tell(messages.SetPaused(False))
    await aeventually(lambda: counterpart.of(messages.Beat)[-1].progress > standing[-1].progress)
    await aeventually(lambda: not counterpart.report.paused)


async def test_unit_that_starts_while_the_run_is_paused_starts_parked(counterpart: Counterpart, start: Start) -> None:
    counterpart.paused = True
    unit = start(LOOP)
    await aeventually(lambda: counterpart.report.phase == "parked")
    counterpart.tell(messages.Drain(grace_s=5))
    assert await unit.code() == 0


async def test_drain_callback_of_an_async_unit_runs_on_its_loop(counterpart: Counterpart, start: Start) -> None:
    unit = start(ASYNC_LOOP)
    await ready(counterpart)
    counterpart.tell(messages.Drain(grace_s=5))
    assert await unit.code() == 0
    assert "on the loop: True" in unit.text()


async def test_drain_can_be_cancelled(counterpart: Counterpart, start: Start) -> None:
    unit = start(
        """
        from agentrl.unit import run_unit
        def main(unit):
            unit.ready()
            while not unit.stop_requested:
                unit.tick()
                unit.status("draining" if unit.draining else "at work")
                unit.sleep(0.01) or __import__("time").sleep(0.01)
        run_unit(main)
        """
    )
    await ready(counterpart)
    counterpart.tell(messages.Drain(grace_s=5))
    await aeventually(lambda: counterpart.report.draining and counterpart.report.status == "draining")
    counterpart.tell(messages.CancelDrain())
    await aeventually(lambda: not counterpart.report.draining and counterpart.report.status == "at work")
    unit.signal(signal.SIGTERM)
    assert await unit.code() == 0


async def test_request_for_more_time_is_sent_once(counterpart: Counterpart, start: Start) -> None:
    start(
        """
        from agentrl.unit import run_unit
        def main(unit):
            unit.ready()
            while unit.sleep(1): pass
            unit.extend_stop(42)
            for number in range(12):
                unit.status(f"saving {number}")
                __import__("time").sleep(0.1)
        run_unit(main)
        """
    )
    await ready(counterpart)
    counterpart.tell(messages.Drain(grace_s=5))
    await counterpart.byes()
    wanted = [
        report.extend_stop_s for report in counterpart.of(messages.UnitReport) if report.extend_stop_s is not None
    ]
    assert wanted == [42.0]


async def test_sigterm_drains(counterpart: Counterpart, start: Start) -> None:
    unit = start(LOOP)
    await ready(counterpart)
    unit.signal(signal.SIGTERM)
    assert await unit.code() == 0
    assert "finished" in unit.text()
    assert (await counterpart.byes())[0].code == 0


async def test_unit_that_ignores_sigterm_ends_at_its_deadline_with_its_stacks(
    counterpart: Counterpart, start: Start
) -> None:
    unit = start(DEAF.format(deadline=0.5))
    await ready(counterpart)
    unit.signal(signal.SIGTERM)
    assert await unit.code() == 128 + signal.SIGTERM
    assert "program.py" in unit.text()
    assert (await counterpart.byes())[0].code == 128 + signal.SIGTERM


async def test_second_sigterm_ends_a_unit_at_once(counterpart: Counterpart, start: Start) -> None:
    unit = start(DEAF.format(deadline=600))
    await ready(counterpart)
    unit.signal(signal.SIGTERM)
    await aeventually(lambda: counterpart.report.draining)
    unit.signal(signal.SIGTERM)
    assert await unit.code() == 128 + signal.SIGTERM


async def test_sigterm_is_seen_while_the_main_thread_is_stuck_in_foreign_code(
    counterpart: Counterpart, start: Start
) -> None:
    unit = start("-m", "assets.units.native_block", "--seconds", "600", "--at-most", "700")
    await aeventually(lambda: counterpart.report.phase == "native")
    unit.signal(signal.SIGTERM)
    await aeventually(lambda: counterpart.report.draining)


async def test_ctrl_c_in_the_terminal_does_not_reach_a_supervised_unit(counterpart: Counterpart, start: Start) -> None:
    unit = start(LOOP)
    await ready(counterpart)
    unit.signal(signal.SIGINT)
    beats = len(counterpart.of(messages.Beat))
    await aeventually(lambda: len(counterpart.of(messages.Beat)) > beats + 3)
    assert not counterpart.report.draining
    assert unit.process.poll() is None


async def test_children_forked_without_exec_can_be_ended_by_sigterm(counterpart: Counterpart, start: Start) -> None:
    unit = start(
        """
        import os, signal, time
        from agentrl.unit import run_unit
        def main(unit):
            child = os.fork()
            if child == 0:
                time.sleep(600)
            os.kill(child, signal.SIGTERM)
            unit.status(f"child ended by {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")
        run_unit(main)
        """
    )
    assert await unit.code() == 0
    await counterpart.byes()
    assert counterpart.report.status == "child ended by -15"


async def test_request_for_stacks_never_kills_a_starting_or_ending_unit(counterpart: Counterpart, start: Start) -> None:
    """The coordinator sends this signal when the file for the stacks exists."""
    unit = start(
        """
        import atexit, os, pathlib, signal
        from agentrl.unit import run_unit
        def ask():
            os.kill(os.getpid(), signal.SIGUSR2)
        opened = pathlib.Path.open
        def asked_at_once(path, *arguments, **more):
            file = opened(path, *arguments, **more)
            if path.parent.name == "stacks":
                ask()
            return file
        pathlib.Path.open = asked_at_once
        atexit.register(ask)
        run_unit(lambda unit: print("at work", flush=True))
        """
    )
    assert await unit.code() == 0
    first, last = unit.text().split("at work")
    assert "asked_at_once" in first
    assert "in ask" in last


async def test_unit_that_was_replaced_ends_at_once(counterpart: Counterpart, start: Start) -> None:
    unit = start(DEAF.format(deadline=600))
    await ready(counterpart)
    counterpart.refusal = messages.Refused(4, "web-3.7 was replaced by web-3.8.", final=True)
    counterpart.tell(messages.WhoAreYou())
    assert await unit.code() == ExitCode.REFUSED
    assert "web-3.7 was replaced by web-3.8." in unit.text()


async def test_refusal_that_is_not_final_leaves_the_unit_working(counterpart: Counterpart, start: Start) -> None:
    counterpart.refusal = messages.Refused(9, "Protocol 1 and 2 do not speak.")
    unit = start("print('begins', flush=True)" + LOOP.replace("\n    ", "\n"))
    await aeventually(lambda: "Protocol 1 and 2" in unit.text())
    assert unit.process.poll() is None
    unit.signal(signal.SIGTERM)
    assert await unit.code() == 0


async def test_lease_expires_without_a_coordinator_and_the_unit_ends(counterpart: Counterpart, start: Start) -> None:
    counterpart.orphan_lease_s = 2.0
    unit = start(LOOP)
    await ready(counterpart)
    began = time.monotonic()
    counterpart.close()
    assert await unit.code() == 0
    assert time.monotonic() - began > 0.5
    assert "no message from the coordinator for 2 s" in unit.text()
    assert "finished" in unit.text()


async def test_connected_but_silent_coordinator_counts_as_gone(counterpart: Counterpart, start: Start) -> None:
    counterpart.orphan_lease_s = 1.0
    unit = start(LOOP)
    await ready(counterpart)
    counterpart.silent = True
    assert await unit.code() == 0
    assert "no message from the coordinator" in unit.text()


async def test_acknowledged_heartbeats_keep_the_lease(counterpart: Counterpart, start: Start) -> None:
    counterpart.orphan_lease_s = 6.0
    unit = start(LOOP)
    await ready(counterpart)
    began = time.monotonic()
    await aeventually(lambda: time.monotonic() - began > counterpart.orphan_lease_s + 1)
    assert unit.process.poll() is None
    assert not counterpart.report.draining


async def test_exception_is_in_the_log_and_in_the_bye(counterpart: Counterpart, start: Start) -> None:
    unit = start(_raising("RuntimeError('the disk of the tape is gone')"))
    assert await unit.code() == ExitCode.FAILED
    assert "Traceback" in unit.text()
    assert await counterpart.byes() == [messages.Bye(1, "RuntimeError: the disk of the tape is gone")]


async def test_configuration_error_ends_with_78_and_one_sentence(counterpart: Counterpart, start: Start) -> None:
    unit = start(_raising("ConfigError('batch is 0.', hint='Make it 1.')"))
    assert await unit.code() == ExitCode.CONFIG
    assert "batch is 0. Make it 1." in unit.text()
    assert await counterpart.byes() == [messages.Bye(ExitCode.CONFIG, "batch is 0. Make it 1.")]
    assert "Traceback" not in unit.text()


async def test_exit_75_requests_a_restart(counterpart: Counterpart, start: Start) -> None:
    unit = start(_raising("SystemExit(75)"))
    assert await unit.code() == ExitCode.TEMPORARY
    assert (await counterpart.byes())[0].code == 75
    assert "Traceback" not in unit.text()


async def test_remaining_threads_do_not_keep_the_process_alive(counterpart: Counterpart, start: Start) -> None:
    unit = start(
        """
        import threading, time
        from agentrl.unit import run_unit
        def main(unit):
            threading.Thread(target=time.sleep, args=(600,), name="forgotten").start()
        run_unit(main)
        """
    )
    assert await unit.code() == 0
    assert "forgotten" in unit.text()


async def test_main_loop_runs_without_a_coordinator(counterpart: Counterpart, start: Start) -> None:
    unit = start("-m", "assets.units.step_loop", "--steps", "3", supervised=False)
    assert await unit.code() == 0
    assert "running on its own" in unit.text()
    assert counterpart.got == []


async def test_ctrl_c_ends_an_unsupervised_loop(counterpart: Counterpart, start: Start) -> None:
    unit = start(ASYNC_LOOP, supervised=False)
    await aeventually(lambda: "running on its own" in unit.text())
    unit.signal(signal.SIGINT)
    assert await unit.code() == 0


async def test_unit_that_starts_before_the_coordinator_works_and_registers_later(
    counterpart: Counterpart, start: Start
) -> None:
    counterpart.close()
    unit = start(LOOP.replace("unit.ready()", "unit.ready(); print('at work', flush=True)"))
    await aeventually(lambda: "at work" in unit.text())
    counterpart.start()
    await ready(counterpart)


async def test_wrong_identity_is_a_configuration_error(counterpart: Counterpart, start: Start) -> None:
    unit = start(
        """
        import os
        from agentrl.unit import run_unit
        os.environ["AGENTRL_INCARNATION"] = "nonsense"
        run_unit(lambda unit: None)
        """
    )
    assert await unit.code() == ExitCode.CONFIG
    assert "AGENTRL_INCARNATION" in unit.text()


def _raising(what: str) -> str:
    return f"""
        from agentrl.errors import ConfigError
        from agentrl.unit import run_unit
        def main(unit):
            unit.ready()
            raise {what}
        run_unit(main)
    """


@pytest.mark.parametrize("installed", [True, False])
async def test_unit_uses_uvloop_if_it_is_installed(installed: bool, counterpart: Counterpart, start: Start) -> None:
    if installed:
        pytest.importorskip("uvloop", reason="the extra `fast` is not installed")
    unit = start(
        f"""
        import asyncio, gc, importlib.util
        from agentrl.unit import run_unit
        found = importlib.util.find_spec
        importlib.util.find_spec = lambda name: found(name) if {installed} or name != "uvloop" else None
        async def main(unit):
            unit.ready()
            loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
            print("the loop is of", loop, "and imports are left alone:", gc.get_freeze_count() > 10_000)
        run_unit(main)
        """
    )
    assert await unit.code() == 0
    assert f"the loop is of {'uvloop' if installed else 'asyncio'} and imports are left alone: True" in unit.text()
