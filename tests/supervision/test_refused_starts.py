"""A host that cannot start a process now: the unit is tried until it can, and pays nothing for it."""

from __future__ import annotations

from agentrl.supervision import events
from tests.supervision.world import World, spec

FULL = "The disk is full."


def refuse(world: World) -> None:
    """The host says of the newest life that it cannot even make the process."""
    world.hosts["a"].orders.clear()
    incarnation = world.slot("web-0").incarnation
    world.handle(events.SpawnFailed(unit="web-0", incarnation=incarnation, reason=FULL, final=False))


def test_a_unit_is_not_given_up_for_what_its_host_lacks() -> None:
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

    # There is room again, and its budget is whole.
    world.quiesce()
    slot = world.slot("web-0")
    assert (slot.state, slot.refused_starts, slot.failed_starts, slot.deaths) == ("ready", 0, 0, [])


def test_what_can_never_be_started_is_fatal_at_once() -> None:
    world = World(hosts=("a",))
    world.handle(events.Applied(specs=(spec("web"),), by="op1"))
    world.handle(events.SpawnFailed(unit="web-0", incarnation=1, reason="no such program", final=True))
    assert world.state_of("web-0") == "fatal"
