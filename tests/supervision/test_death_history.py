"""Only deaths since the last operator command for a unit count against it."""

from __future__ import annotations

import pytest

from agentrl.protocol.messages import ExitStatus, HostFacts
from agentrl.supervision import events, restarts
from agentrl.supervision.unit_slots import Slot
from tests.supervision.world import World, spec

KILLED = ExitStatus(signal=9)
WEB = spec("web")
OTHER = spec("web", env={"COLOUR": "blue"})


def a_world_where_it_died(times: int = 2) -> World:
    world = World(hosts=("a",))
    world.handle(events.Applied(specs=(WEB,), by="op1"))
    world.quiesce()
    for _ in range(times):
        die(world)
    return world


def die(world: World) -> None:
    host = world.hosts["a"]
    (process,) = host.live()
    world.die(host, process, KILLED)
    world.quiesce()


def counted(slot: Slot) -> tuple[int, int, ExitStatus | None]:
    return len(slot.deaths), slot.restarts, slot.last_exit


def test_deaths_are_counted_and_shown() -> None:
    world = a_world_where_it_died()
    assert counted(world.slot("web-0")) == (2, 2, KILLED)


def test_unit_has_no_deaths_after_a_down_and_an_up() -> None:
    world = a_world_where_it_died()
    world.handle(events.DownWanted(by="op2"))
    world.quiesce()
    assert world.slot("web-0").restarts == 2, "the restarts are shown while the run is down"
    world.handle(events.Applied(specs=(WEB,), by="op3"))
    world.quiesce()
    assert counted(world.slot("web-0")) == (0, 0, None)
    die(world)
    assert counted(world.slot("web-0")) == (1, 1, KILLED)


def test_earlier_end_of_a_living_unit_is_not_shown_after_an_up() -> None:
    world = a_world_where_it_died()
    world.handle(events.RestartWanted(units=("web-0",), by="op2"))
    assert counted(world.slot("web-0")) == (0, 0, None)


def test_changed_spec_starts_without_deaths() -> None:
    world = a_world_where_it_died()
    world.handle(events.Applied(specs=(OTHER,), by="op2"))
    world.quiesce()
    assert counted(world.slot("web-0")) == (0, 0, None)


def test_death_of_the_former_program_does_not_count_for_the_next() -> None:
    world = a_world_where_it_died()
    world.handle(events.UnitHung(unit="web-0", incarnation=world.slot("web-0").incarnation, because="stands still"))
    world.handle(events.Applied(specs=(OTHER,), by="op2"))
    world.quiesce()
    assert world.state_of("web-0") == "ready"
    assert counted(world.slot("web-0")) == (0, 0, None)


def test_up_without_a_change_keeps_the_deaths() -> None:
    world = a_world_where_it_died()
    world.handle(events.Applied(specs=(WEB, spec("more")), by="op2"))
    world.quiesce()
    assert counted(world.slot("web-0")) == (2, 2, KILLED)


def test_failed_starts_count_since_the_last_success_or_operator_command() -> None:
    world = World(hosts=("a",))
    web = spec("web", speaks=True)
    world.handle(events.Applied(specs=(web,), by="op1"))
    fail_to_start(world, 2)
    assert world.slot("web-0").attempts == 3
    world.handle(events.Applied(specs=(spec("web", speaks=True, env={"COLOUR": "blue"}),), by="op2"))
    obey(world)
    assert world.slot("web-0").attempts == 1, "the first start of another program"
    assert world.state_of("web-0") == "starting"
    world.quiesce()
    assert world.slot("web-0").attempts == 0


def fail_to_start(world: World, times: int) -> None:
    host = world.hosts["a"]
    for _ in range(times):
        obey(world)
        world.die(host, host.live()[0], KILLED)
        obey(world)
        world.advance(1.0)
    obey(world)


def obey(world: World) -> None:
    """Deliver all orders and reports; no unit becomes ready."""
    host = world.hosts["a"]
    while host.orders or host.reports:
        while host.orders:
            world.obey(host)
        world.sweep(host)
        while host.reports:
            world.deliver(host)


@pytest.mark.parametrize("oom", [False, True])
def test_deaths_outside_the_window_do_not_count(oom: bool) -> None:
    world = a_world_where_it_died(0)
    slot = world.slot("web-0")
    began = world.now
    slot.deaths, slot.oom_deaths = ([], [began, began + 50.0]) if oom else ([began, began + 50.0], [])
    window = world.times.restart_window_s
    for after, left in ((window - 1.0, 2), (window + 1.0, 1), (window + 51.0, 0)):
        world.now = began + after
        world.handle(events.DeathsAged(unit="web-0"))
        assert len(slot.deaths) + len(slot.oom_deaths) == left
    world.crash()
    assert not world.slot("web-0").deaths
    assert not world.slot("web-0").oom_deaths


def test_deaths_in_the_future_after_a_clock_change_do_not_count() -> None:
    world = a_world_where_it_died()
    slot = world.slot("web-0")
    assert not restarts.some_aged(slot, world.times, world.now)
    world.now -= 3600.0
    assert restarts.some_aged(slot, world.times, world.now)
    world.handle(events.DeathsAged(unit="web-0"))
    assert not slot.deaths


def test_refused_start_is_not_explained_by_an_earlier_end() -> None:
    world = a_world_where_it_died(1)
    world.handle(events.RestartWanted(units=("web-0",), by="op2"))
    host = world.hosts["a"]
    world.obey(host)
    world.sweep(host)
    while host.reports:
        world.deliver(host)
    slot = world.slot("web-0")
    assert slot.state == "starting"
    world.handle(
        events.SpawnFailed(host="a", unit="web-0", incarnation=slot.incarnation, reason="no such file", final=True)
    )
    assert (slot.state, slot.last_exit) == ("fatal", None)


def test_host_is_up_since_the_start_of_its_agent() -> None:
    world = World(hosts=())

    def hello(age_s: float) -> float:
        world.handle(events.HostConnected(host="a", facts=HostFacts(), inventory=(), age_s=age_s))
        return world.now - world.supervisor.state.hosts["a"].since

    assert hello(600.0) == 600.0, "this coordinator is new"
    world.now += 50.0
    assert hello(650.0) == 650.0, "a repeated hello of the same agent"
    world.handle(events.HostSilent(host="a", for_s=20.0))
    assert hello(650.0) == 0.0, "the host was silent for a while"
    world.now += 5.0
    assert hello(655.0) == 5.0
    assert hello(2.0) == 2.0, "another agent"
