"""A unit whose heartbeats arrive is not lost because its host agent is silent, and no stop waits for ever for it."""

from __future__ import annotations

import pytest

from agentrl.protocol.messages import ExitStatus
from agentrl.protocol.rows import UnitState
from agentrl.protocol.specs import Life
from agentrl.supervision import events
from agentrl.supervision import instructions as do
from tests.supervision.world import Host, World, spec


def world_with(*, ready: bool = True, **more: object) -> tuple[World, Host]:
    world = World()
    world.handle(events.Applied(specs=(spec("web", speaks=True, **more),), by="op1"))
    host = world.hosts[world.slot("web-0").host]
    if ready:
        world.quiesce()
    else:
        world.obey(host)
        world.deliver(host)
    return world, host


def silent(world: World, host: Host, *reporting: str) -> None:
    world.cut(host)
    world.become_silent(host, frozenset(reporting))


@pytest.mark.parametrize("state", ["starting", "ready", "draining"])
def test_reporting_unit_stays_as_it_is(state: str) -> None:
    world, host = world_with(ready=state != "starting", fenced=True)
    if state == "draining":
        world.handle(events.RestartWanted(units=("web-0",), by="op2"))
    silent(world, host, "web-0")
    assert (world.state_of("web-0"), world.slot("web-0").incarnation) == (state, 1)


@pytest.mark.parametrize("state", ["starting", "ready", "draining"])
def test_unit_that_becomes_silent_on_a_silent_host_is_lost(state: str) -> None:
    world, host = world_with(ready=state != "starting")
    if state == "draining":
        world.handle(events.RestartWanted(units=("web-0",), by="op2"))
    silent(world, host, "web-0")
    world.handle(events.UnitSuspect(unit="web-0", incarnation=1, because="silent for 6 s"))
    assert world.state_of("web-0") == "lost"
    world.handle(events.UnitReports(unit="web-0", incarnation=1))
    assert world.state_of("web-0") == state, "the unit is back although its host is not"


def test_starting_unit_on_a_silent_host_becomes_ready() -> None:
    world, host = world_with(ready=False)
    silent(world, host, "web-0")
    world.handle(events.UnitReady(unit="web-0", incarnation=1))
    assert world.state_of("web-0") == "ready"


def test_lost_unit_that_becomes_ready_on_its_silent_host_is_ready_at_once() -> None:
    world, host = world_with(ready=False)
    silent(world, host)
    assert world.state_of("web-0") == "lost"
    world.handle(events.UnitReady(unit="web-0", incarnation=1))
    assert world.state_of("web-0") == "ready"
    world.advance(1000.0)
    assert (world.state_of("web-0"), world.slot("web-0").incarnation) == ("ready", 1)


def test_unit_on_a_silent_host_drains_and_its_bye_ends_the_down() -> None:
    world, host = world_with()
    silent(world, host, "web-0")
    world.handle(events.DownWanted(by="op2"))
    assert isinstance(world.told[-1].message, do.Drain)
    assert world.all_stopped == 0, "it still works"
    world.handle(events.UnitBye(unit="web-0", incarnation=1, code=0))
    assert (world.state_of("web-0"), world.all_stopped) == ("lost", 1)


def test_down_ends_if_a_reporting_unit_on_a_silent_host_does_not_stop() -> None:
    world, host = world_with()
    silent(world, host, "web-0")
    world.handle(events.DownWanted(by="op2"))
    world.advance(world.slot("web-0").spec.drain_grace_s + 1.0)  # type: ignore[union-attr]
    assert (world.state_of("web-0"), world.all_stopped) == ("lost", 1)


def test_kill_on_a_silent_host_does_not_wait() -> None:
    world, host = world_with()
    silent(world, host, "web-0")
    world.handle(events.DownWanted(by="op2", at_once=True))
    assert world.all_stopped == 1


@pytest.mark.parametrize("bye_first", [True, False])
@pytest.mark.parametrize("restarted", [True, False], ids=["new coordinator", "same coordinator"])
def test_fenced_job_that_ended_well_on_a_silent_host_does_not_run_again(bye_first: bool, restarted: bool) -> None:
    world, host = world_with(fenced=True, life=Life.JOB)
    bye = events.UnitBye(unit="web-0", incarnation=1, code=0)
    if bye_first:
        world.handle(bye)
    silent(world, host, *(() if bye_first else ("web-0",)))
    if not bye_first:
        world.handle(bye)
    if restarted:
        world.crash()
    assert (world.state_of("web-0"), world.slot("web-0").incarnation) == ("lost", 1)
    host.live()[0].exit = ExitStatus(code=0)
    world.connect(host)
    world.quiesce()
    assert (world.state_of("web-0"), world.slot("web-0").done, world.started) == ("stopped", True, [("web-0", 1)])


@pytest.mark.parametrize(
    "then",
    [
        events.RestartWanted(units=("web-0",), by="op2"),
        events.DeathConfirmed(unit="web-0", incarnation=1, by="op2"),
        None,
    ],
    ids=["restart", "force", "failed"],
)
def test_fenced_job_on_a_silent_host_runs_again_if_an_operator_wants_it_or_it_failed(then: events.Event | None) -> None:
    world, host = world_with(fenced=True, life=Life.JOB)
    silent(world, host, "web-0")
    world.handle(events.UnitBye(unit="web-0", incarnation=1, code=0 if then else 3))
    if then:
        assert world.slot("web-0").incarnation == 1
        world.handle(then)
    assert (world.slot("web-0").incarnation, world.slot("web-0").host != host.name) == (2, True)


@pytest.mark.parametrize("at_once", [True, False])
def test_living_unit_is_not_replaced_before_its_host_has_connected_to_a_new_coordinator(at_once: bool) -> None:
    world, host = world_with(fenced=True)
    world.crash(hosts_connect=False)
    world.handle(events.UnitSuspect(unit="web-0", incarnation=1, because="silent for 6 s"))
    assert world.state_of("web-0") == "suspect"
    world.handle(events.UnitHung(unit="web-0", incarnation=1, because="silent for 20 s"))
    world.handle(events.RestartWanted(units=("web-0",), by="op2", at_once=at_once))
    assert world.slot("web-0").incarnation == 1
    world.connect(host)
    world.quiesce()
    assert (world.state_of("web-0"), world.slot("web-0").incarnation) == ("ready", 2)
    assert [p.incarnation for h in world.hosts.values() for p in h.live()] == [2]


def test_down_before_a_host_has_connected_waits_for_it() -> None:
    world, host = world_with()
    world.crash(hosts_connect=False)
    world.handle(events.DownWanted(by="op2", at_once=True))
    assert world.all_stopped == 0
    world.connect(host)
    world.quiesce()
    assert (world.slot("web-0").state, world.all_stopped) == (UnitState.STOPPED, 1)


def test_unit_waits_until_the_host_of_its_ghost_has_connected_to_a_new_coordinator() -> None:
    world, host = world_with(fenced=True)
    silent(world, host)
    other = next(h for h in world.hosts.values() if h is not host)
    assert world.slot("web-0").host == other.name
    world.connect(host)
    world.crash(hosts_connect=False)
    world.handle(events.RestartWanted(units=("web-0",), by="op2", at_once=True))
    world.connect(other)
    world.obey(other)
    while other.reports:
        world.deliver(other)
    assert world.state_of("web-0") in ("starting", "pending", "stopping")
    world.connect(host)
    world.quiesce()
    assert [p.incarnation for h in world.hosts.values() for p in h.live()] == [world.slot("web-0").incarnation]
