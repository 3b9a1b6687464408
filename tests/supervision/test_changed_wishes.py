"""The desired state changes during a transition, and an interrupted transition is completed."""

from __future__ import annotations

import signal

from agentrl.protocol.messages import ExitStatus
from agentrl.protocol.rows import UnitState
from agentrl.supervision import events
from agentrl.supervision import instructions as do
from tests.supervision.world import World, spec


def a_world(*specs: object) -> World:
    world = World(hosts=("a",))
    world.handle(events.Applied(specs=specs, by="op1"))  # type: ignore[arg-type]
    world.quiesce()
    return world


def up(world: World, *specs: object) -> tuple[str, ...]:
    """An `up` whose plan keeps these units."""
    plan = world.supervisor.plan(specs)  # type: ignore[arg-type]
    world.handle(events.Applied(specs=specs, by="again"))  # type: ignore[arg-type]
    return plan.kept


def test_up_during_a_drain_keeps_the_incarnation() -> None:
    web = spec("web", speaks=True)
    world = a_world(web)
    world.handle(events.StopWanted(unit="web-0", by="op2", because="drained", patient=True))
    assert world.state_of("web-0") == "draining"
    assert up(world, web) == ("web-0",)
    assert (world.state_of("web-0"), world.slot("web-0").incarnation) == ("ready", 1)


def test_up_during_a_down_keeps_units_that_were_not_stopped_yet() -> None:
    specs = (spec("web", after=("db",)), spec("db", stop_rank=100, speaks=True))
    world = a_world(*specs)
    world.handle(events.DownWanted(by="op2"))
    assert world.state_of("db-0") == "ready", "it is stopped after web"
    assert "db-0" in up(world, *specs)
    world.quiesce()
    assert world.slot("db-0").incarnation == 1
    assert world.state_of("web-0") == "ready"


def test_definition_that_changed_during_a_drain_is_not_lost() -> None:
    world = a_world(spec("web", speaks=True))
    world.handle(events.DownWanted(by="op2"))
    changed = spec("web", speaks=True, env={"COLOUR": "blue"})
    assert world.supervisor.plan((changed,)).changed == ("web-0",)
    up(world, changed)
    world.quiesce()
    slot = world.slot("web-0")
    assert (slot.state, slot.incarnation) == (UnitState.READY, 2)
    assert slot.spec is not None
    assert slot.spec.env == {"COLOUR": "blue"}


def test_graceful_stop_stays_graceful_after_a_coordinator_death() -> None:
    world = a_world(spec("db", term_grace_s=30.0))
    world.handle(events.StopWanted(unit="db-0", by="op2", because="stopped"))
    world.hosts["a"].orders.clear()  # the SIGTERM was lost with the coordinator
    world.advance(1.0)
    world.log.clear()
    world.crash()
    orders = [order for order in world.log if isinstance(order, do.Signal | do.KillTree)]
    assert [order.signal for order in orders if isinstance(order, do.Signal)] == [signal.SIGTERM]
    assert len(orders) == 1, "its grace is not over"
    world.hosts["a"].orders.clear()
    world.advance(30.0)
    assert any(isinstance(order, do.KillTree) for order in world.log), "a stop always ends"


def test_unit_that_was_being_replaced_when_its_host_fell_silent_is_replaced_afterwards() -> None:
    world = a_world(spec("cell", speaks=True))
    world.handle(events.UnitHung(unit="cell-0", incarnation=1, because="stands still"))
    world.cut(world.hosts["a"])
    world.handle(events.HostSilent(host="a", for_s=20.0))
    assert world.state_of("cell-0") == "lost"
    world.connect(world.hosts["a"])
    assert world.state_of("cell-0") == "stopping"
    world.quiesce()
    slot = world.slot("cell-0")
    assert (slot.state, slot.incarnation, slot.stopping_because) == (UnitState.READY, 2, "")


def test_failed_probe_is_kept_while_the_process_is_stopped() -> None:
    world = a_world(spec("web"))
    who = {"host": "a", "unit": "web-0", "incarnation": 1}
    world.handle(events.ProbeChanged(**who, kind="live", ok=False))
    world.handle(events.ProcessStopped(**who, stopped=True))
    world.handle(events.ProcessStopped(**who, stopped=False))
    assert world.state_of("web-0") == "suspect"
    world.advance(world.times.dead_after_s)
    assert world.state_of("web-0") == "stopping"


def test_repeated_restart_requests_are_delayed() -> None:
    world = a_world(spec("web"))
    for incarnation in range(1, 30):
        world.handle(events.Exited(host="a", unit="web-0", incarnation=incarnation, exit=ExitStatus(code=75)))
        world.hosts["a"].ledger.clear()
        world.handle(events.TreeGone(host="a", unit="web-0", incarnation=incarnation))
        if incarnation == 1:
            assert world.state_of("web-0") == "starting", "the first time it is at once"
        world.advance(world.times.backoff_max_s)
        world.quiesce()
    began = world.now
    for incarnation in range(30, 40):
        world.handle(events.Exited(host="a", unit="web-0", incarnation=incarnation, exit=ExitStatus(code=75)))
        world.hosts["a"].ledger.clear()
        world.handle(events.TreeGone(host="a", unit="web-0", incarnation=incarnation))
        world.quiesce()
    assert world.now - began > 30.0, "ten lives do not pass within seconds"
    assert not world.slot("web-0").deaths
    assert world.state_of("web-0") == "ready", "and it is never given up for that"


def test_returning_group_keeps_its_living_units() -> None:
    web = spec("web", speaks=True)
    world = a_world(web)
    up(world, spec("other"))
    assert world.state_of("web-0") == "draining"
    assert "web-0" in up(world, web, spec("other"))
    assert (world.state_of("web-0"), world.slot("web-0").incarnation) == ("ready", 1)


def test_run_is_up_since_the_first_up_after_a_down() -> None:
    web = spec("web")
    world = a_world(web)
    began = world.supervisor.state.run.up_since_at
    world.advance(10.0)
    up(world, web)
    assert world.supervisor.state.run.up_since_at == began
    world.handle(events.DownWanted(by="op2"))
    world.quiesce()
    world.advance(10.0)
    up(world, web)
    later = world.supervisor.state.run.up_since_at
    assert later >= began + 20.0
    world.crash()
    assert world.supervisor.state.run.up_since_at == later


def test_unit_that_was_stopping_when_its_host_was_cut_off_is_replaced_as_up_promised() -> None:
    web = spec("web")
    world = a_world(web)
    world.handle(events.DownWanted(by="op2"))
    assert world.state_of("web-0") == "stopping"
    world.hosts["a"].orders.clear()  # SIGTERM did not arrive.
    assert world.supervisor.plan((web,)).started == ("web-0",)
    up(world, web)
    world.cut(world.hosts["a"])
    world.handle(events.HostSilent(host="a", for_s=20))
    assert world.state_of("web-0") == "lost"
    world.quiesce()
    slot = world.slot("web-0")
    assert (slot.state, slot.incarnation) == (UnitState.READY, 2)
