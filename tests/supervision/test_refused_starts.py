"""Starts that fail: a problem of the host does not count against the unit, and an impossible start gives its reason."""

from __future__ import annotations

from agentrl.config.supervision_times import SupervisionTimes
from agentrl.protocol.messages import ExitStatus
from agentrl.protocol.specs import GroupSpec, Life, Role
from agentrl.supervision import events, restarts
from agentrl.supervision.unit_slots import Slot
from tests.supervision.world import World, spec

FULL = "The disk is full."


def refuse(world: World) -> None:
    """The host reports that it cannot create the process of the newest incarnation."""
    world.hosts["a"].orders.clear()
    incarnation = world.slot("web-0").incarnation
    world.handle(events.SpawnFailed(host="a", unit="web-0", incarnation=incarnation, reason=FULL, final=False))


def test_unit_is_retried_while_its_host_lacks_something() -> None:
    world = World(hosts=("a",))
    world.handle(events.Applied(specs=(spec("web"),), by="op1"))
    began = world.now
    refuse(world)
    assert world.state_of("web-0") == "starting", "the second attempt comes at once"
    for _ in range(20):
        refuse(world)
        assert world.state_of("web-0") == "backoff"
        assert FULL in world.slot("web-0").reason
        world.advance(world.slot("web-0").timer - world.now)
        assert world.state_of("web-0") == "starting"
    assert world.now - began > 5 * world.times.backoff_max_s
    assert "cannot be started now" in world.incidents[-1].what

    # The host has space again, and the restart budget of the unit is unused.
    world.quiesce()
    slot = world.slot("web-0")
    assert (slot.state, slot.refused_starts, slot.failed_starts, slot.deaths) == ("ready", 0, 0, [])


def test_impossible_start_is_fatal_at_once() -> None:
    world = World(hosts=("a",))
    world.handle(events.Applied(specs=(spec("web"),), by="op1"))
    world.handle(events.SpawnFailed(host="a", unit="web-0", incarnation=1, reason="no such program", final=True))
    assert world.state_of("web-0") == "fatal"


def test_fatal_unit_shows_its_own_reason_for_a_wrong_configuration() -> None:
    world = World(hosts=("a",))
    world.handle(events.Applied(specs=(spec("web"),), by="op1"))
    why = "rollout.code: /x/agents.py, line 3: SyntaxError: expected ':'."
    world.handle(events.UnitBye(unit="web-0", incarnation=1, code=78, reason=why))
    world.handle(events.Exited(host="a", unit="web-0", incarnation=1, exit=ExitStatus(code=78)))
    assert (world.state_of("web-0"), world.slot("web-0").reason) == (
        "fatal",
        "configuration error (exit 78): rollout.code: /x/agents.py, line 3: SyntaxError: expected ':'",
    )


def test_finished_job_shows_its_end() -> None:
    times = SupervisionTimes()
    slot = Slot("trainer-0", "trainer", 0, spec=GroupSpec("trainer", Role.TRAINER, ("true",), life=Life.JOB))
    assert restarts.judge(slot, ExitStatus(code=0), times, 0.0, 0.5).reason == "done"
    slot.bye_reason = "complete: all 2 steps are done"
    verdict = restarts.judge(slot, ExitStatus(code=0), times, 0.0, 0.5)
    assert (verdict.done, verdict.reason) == (True, "done: complete: all 2 steps are done")


def test_end_without_a_bye_points_to_the_log() -> None:
    world = World(hosts=("a",))
    world.handle(events.Applied(specs=(spec("web"),), by="op1"))
    world.handle(events.UnitBye(unit="web-0", incarnation=1, code=1, reason="the disk of the tape is gone"))
    world.handle(events.Exited(host="a", unit="web-0", incarnation=1, exit=ExitStatus(code=1)))
    world.handle(events.TreeGone(host="a", unit="web-0", incarnation=1))
    assert world.slot("web-0").incarnation == 2
    world.quiesce()
    assert world.slot("web-0").incarnation == 2
    world.handle(events.Exited(host="a", unit="web-0", incarnation=2, exit=ExitStatus(code=78)))
    assert world.slot("web-0").reason == "configuration error (exit 78): see its log"
