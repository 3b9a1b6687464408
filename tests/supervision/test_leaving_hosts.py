"""A host whose agent is about to end: its units finish in order, others take their place, and nothing starts there."""

from __future__ import annotations

from agentrl.protocol.messages import Drain
from agentrl.supervision import events
from agentrl.supervision import instructions as do
from tests.supervision.world import DATA_HOST, TIMES, World, spec


def leaves(world: World, host: str, *, within_s: float = 60.0) -> None:
    world.handle(events.HostLeaving(host=host, until=world.now + within_s, why="its pod is evicted"))


def test_units_of_a_leaving_host_start_elsewhere() -> None:
    world = World()
    world.handle(events.Applied(specs=(spec("web", count=4, speaks=True),), by="op1"))
    world.quiesce()
    assert {world.slot(f"web-{n}").host for n in range(4)} == {"a", "b"}
    leaves(world, "b")
    left = [s for s in world.supervisor.state.slots.values() if s.host == "b"]
    assert {slot.reason for slot in left} == {"host b leaves (its pod is evicted)"}
    world.quiesce()
    assert {(s.state, s.host) for s in world.supervisor.state.slots.values()} == {("ready", "a")}
    assert not world.supervisor.state.holds_units("b")


def test_unit_that_may_run_nowhere_else_waits_until_the_host_is_back() -> None:
    world = World()
    world.handle(events.Applied(specs=(spec("web", hosts=("b",)),), by="op1"))
    world.quiesce()
    leaves(world, "b")
    world.quiesce()
    assert world.state_of("web-0") == "pending"
    assert "b: leaving (its pod is evicted)" in world.slot("web-0").reason
    world.connect(world.hosts["b"])  # the next agent of that name
    world.quiesce()
    assert (world.state_of("web-0"), world.slot("web-0").incarnation) == ("ready", 2)


def test_units_of_a_leaving_host_stop_after_those_that_depend_on_them() -> None:
    world = World(hosts=(DATA_HOST,))
    specs = (spec("store", stop_rank=1), spec("work", speaks=True, stop_rank=0))
    world.handle(events.Applied(specs=specs, by="op1"))
    world.quiesce()
    leaves(world, DATA_HOST)
    assert (world.state_of("work-0"), world.state_of("store-0")) == ("draining", "ready")
    world.quiesce()
    assert {world.state_of("work-0"), world.state_of("store-0")} == {"pending"}
    stops = [order.unit for order in world.log if isinstance(order, do.SendToUnit | do.Signal)]
    assert stops.index("work-0") < stops.index("store-0")


def test_drain_ends_before_the_host_does() -> None:
    world = World(hosts=(DATA_HOST,))
    world.handle(events.Applied(specs=(spec("web", speaks=True, drain_grace_s=600.0, term_grace_s=10.0),), by="op1"))
    world.quiesce()
    world.handle(events.StopWanted(unit="web-0", by="op2", because="drained", patient=True))
    assert world.slot("web-0").timer == world.now + TIMES.drain_patience_s
    leaves(world, DATA_HOST, within_s=60.0)
    assert world.slot("web-0").timer == world.now + 50.0
    world.handle(events.StopExtended(unit="web-0", incarnation=1, by_s=300.0))
    assert world.slot("web-0").timer == world.now + 50.0

    world.handle(events.RestartWanted(units=("web-0",), by="op3"))
    world.connect(world.hosts[DATA_HOST])
    world.quiesce()
    leaves(world, DATA_HOST, within_s=4.0)
    (told,) = [m.message for m in world.told[-1:] if isinstance(m.message, Drain)]
    assert told.grace_s == 2.0
