"""A unit that waits for others is reconciled again as soon as what it waits for changes."""

from __future__ import annotations

from typing import Any

from agentrl.supervision import events
from tests.supervision.world import World, spec


def two_ranks() -> World:
    """`web-0` on host a stops before `db-0` on host b."""
    world = World()
    times: dict[str, Any] = {"speaks": True, "drain_grace_s": 5.0, "term_grace_s": 5.0}
    specs = (spec("web", hosts=("a",), **times), spec("db", stop_rank=100, hosts=("b",), **times))
    world.handle(events.Applied(specs=specs, by="op1"))
    world.quiesce()
    return world


def test_unit_lost_during_a_down_does_not_hold_up_units_of_a_later_rank() -> None:
    world = two_ranks()
    world.handle(events.DownWanted(by="op2"))
    assert (world.state_of("web-0"), world.state_of("db-0")) == ("draining", "ready")
    world.cut(world.hosts["a"])
    world.handle(events.HostSilent(host="a", for_s=20.0))
    assert (world.state_of("web-0"), world.state_of("db-0")) == ("lost", "draining")


def test_unit_starts_when_the_stopped_unit_of_a_dependency_is_scaled_away() -> None:
    world = World()
    specs = (spec("db", 2, speaks=True), spec("web", after=("db",), speaks=True))
    world.handle(events.Applied(specs=specs, by="op1"))
    world.quiesce()
    world.handle(events.StopWanted(unit="db-1", by="op2", because="stopped"))
    world.handle(events.RestartWanted(units=("web-0",), by="op3"))
    world.quiesce()
    assert (world.state_of("db-1"), world.state_of("web-0")) == ("stopped", "pending")
    world.handle(events.Scaled(group="db", count=1, by="op4"))
    assert world.state_of("web-0") == "starting"
