"""Slots that were scaled away are forgotten, and their incarnations are never used again."""

from __future__ import annotations

from agentrl.supervision import events
from tests.supervision.world import World, spec


def test_only_the_newest_retired_slots_are_kept() -> None:
    world = World(hosts=("a",))
    world.handle(events.Applied(specs=(spec("web", 5),), by="op1"))
    world.quiesce()
    world.handle(events.RestartWanted(units=("web-3",), by="op2"))
    world.quiesce()
    for count in (3, 1):
        world.handle(events.Scaled(group="web", count=count, by="op3"))
        world.quiesce()
        world.advance(1.0)
    world.handle(events.RetiredAged(keep=2))
    assert sorted(world.supervisor.state.slots) == ["web-0", "web-1", "web-2"]
    world.crash()
    assert sorted(world.supervisor.state.slots) == ["web-0", "web-1", "web-2"]
    world.handle(events.Scaled(group="web", count=5, by="op4"))
    world.quiesce()
    assert [world.slot(f"web-{n}").incarnation for n in range(5)] == [1, 2, 2, 3, 3], "web-3.2 has lived before"


def test_group_that_left_the_run_file_is_forgotten_with_its_last_slot() -> None:
    world = World(hosts=("a",))
    world.handle(events.Applied(specs=(spec("web"), spec("old")), by="op1"))
    world.quiesce()
    world.handle(events.Applied(specs=(spec("web"),), by="op2"))
    world.handle(events.RetiredAged(keep=0))
    assert "old" in world.supervisor.state.groups, "its unit still stops"
    world.quiesce()
    world.handle(events.RetiredAged(keep=0))
    assert "old" not in world.supervisor.state.groups
    world.crash()
    assert list(world.supervisor.state.groups) == ["web"]
    world.handle(events.Applied(specs=(spec("web"), spec("old")), by="op3"))
    world.quiesce()
    assert world.slot("old-0").incarnation == 2


def test_retired_slot_with_a_ghost_is_kept() -> None:
    world = World()
    world.handle(events.Applied(specs=(spec("web", fenced=True),), by="op1"))
    world.quiesce()
    host = world.hosts[world.slot("web-0").host]
    world.cut(host)
    world.become_silent(host)
    world.handle(events.Scaled(group="web", count=0, by="op2"))
    other = next(h for h in world.hosts.values() if h is not host)
    while other.orders or other.reports:
        while other.orders:
            world.obey(other)
        world.sweep(other)
        while other.reports:
            world.deliver(other)
    world.handle(events.RetiredAged(keep=0))
    assert world.slot("web-0").ghosts, "its old incarnation may live"


def test_run_remembers_its_hosts_over_a_restart_of_the_coordinator() -> None:
    world = World()
    world.handle(events.Applied(specs=(spec("web"),), by="op1"))
    world.quiesce()
    world.crash(hosts_connect=False)
    assert world.supervisor.state.run.hosts == {"a", "b"}
    world.connect(world.hosts["a"])
    world.handle(events.DownWanted(by="op2"))
    world.quiesce()
    world.crash(hosts_connect=False)
    world.connect(world.hosts["a"])
    world.handle(events.Applied(specs=(spec("web"),), by="op3"))
    assert world.supervisor.state.run.hosts == {"a"}, "a host of the time before the down is no part of the run"
