"""A host that dies and never comes back leaves no unit and no `down` waiting for ever."""

from __future__ import annotations

import pytest

from agentrl.protocol.messages import ExitStatus
from agentrl.supervision import events
from tests.supervision.world import Host, World, spec


def dead_host_after_the_exit(code: int, **more: object) -> tuple[World, Host]:
    """A child of `web-0` outlives it. The host reports the exit of `web-0`, and dies before it reports the end of the
    child."""
    world = World()
    world.handle(events.Applied(specs=(spec("web", speaks=True, **more),), by="op1"))
    world.quiesce()
    host = world.hosts[world.slot("web-0").host]
    (process,) = host.live()
    process.children = 1
    world.die(host, process, ExitStatus(code=code))
    world.deliver(host)
    world.lose_power(host, ledger_survives=False)
    host.gone = True
    return world, host


EXITS = [(1, "backoff"), (75, "pending"), (78, "fatal")]


@pytest.mark.parametrize(("code", "state"), EXITS)
def test_down_ends_if_a_host_dies_between_an_exit_and_its_empty_tree(code: int, state: str) -> None:
    world, host = dead_host_after_the_exit(code)
    assert world.state_of("web-0") == state
    world.become_silent(host)
    world.handle(events.DownWanted(by="op2", at_once=True))
    assert world.all_stopped == 1


@pytest.mark.parametrize(("code", "state"), EXITS)
def test_down_ends_after_a_restart_of_the_coordinator_too(code: int, state: str) -> None:
    world, _ = dead_host_after_the_exit(code)
    world.crash()
    world.handle(events.DownWanted(by="op2"))
    assert world.all_stopped == 1


def test_fenced_unit_starts_on_another_host() -> None:
    world, host = dead_host_after_the_exit(1, fenced=True)
    world.become_silent(host)
    world.quiesce()
    assert world.state_of("web-0") == "ready"
    assert world.slot("web-0").host != host.name


def test_unit_that_is_not_fenced_waits_until_an_operator_confirms_its_death() -> None:
    world, host = dead_host_after_the_exit(1)
    world.become_silent(host)
    world.quiesce()
    assert world.state_of("web-0") == "pending"
    assert world.slot("web-0").reason == f"waits until nothing of web-0.1 is left; host {host.name} is silent"
    world.handle(events.DeathConfirmed(unit="web-0", incarnation=1, by="op2"))
    world.quiesce()
    assert world.state_of("web-0") == "ready"


def test_rest_of_a_unit_is_killed_when_its_host_comes_back() -> None:
    world = World()
    world.handle(events.Applied(specs=(spec("web", fenced=True),), by="op1"))
    world.quiesce()
    host = world.hosts[world.slot("web-0").host]
    (process,) = host.live()
    process.children = 1
    world.die(host, process, ExitStatus(code=1))
    world.deliver(host)
    world.cut(host)
    world.become_silent(host)
    other = next(h for h in world.hosts.values() if h is not host)
    world.obey(other)
    assert [(p.unit, p.incarnation) for p in other.live()] == [("web-0", 2)]
    world.quiesce()
    assert not host.live()
    assert not world.slot("web-0").ghosts


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("ledger_survives", [True, False])
def test_power_losses_do_not_count_against_a_unit(ready: bool, ledger_survives: bool) -> None:
    world = World(hosts=("a",))
    world.handle(events.Applied(specs=(spec("web", speaks=True),), by="op1"))
    host = world.hosts["a"]
    for _ in range(2 * max(world.times.max_deaths, world.times.max_failed_starts)):
        if ready:
            world.quiesce()
        else:
            while host.orders:
                world.obey(host)
            world.deliver(host)
        world.lose_power(host, ledger_survives=ledger_survives)
        world.connect(host)
        assert world.state_of("web-0") == "starting", "units start again at once"
    slot = world.slot("web-0")
    assert (slot.deaths, slot.failed_starts) == ([], 0)
    assert len(world.incidents) == slot.restarts == 12 - 2


def test_job_that_was_cut_off_by_a_power_loss_runs_again() -> None:
    world = World(hosts=("a",))
    world.handle(events.Applied(specs=(spec("once", life="job"),), by="op1"))
    world.quiesce()
    world.lose_power(world.hosts["a"], ledger_survives=True)
    world.quiesce()
    assert (world.state_of("once-0"), world.slot("once-0").incarnation) == ("ready", 2)


@pytest.mark.parametrize("fenced", [False, True])
def test_forgotten_host_leaves_no_unit_behind(fenced: bool) -> None:
    world = World()
    world.handle(events.Applied(specs=(spec("web", 4, speaks=True, fenced=fenced),), by="op1"))
    world.quiesce()
    host = world.hosts["b"]
    there = [process.unit for process in host.live()]
    assert there
    world.lose_power(host, ledger_survives=False)
    host.gone = True
    world.become_silent(host)
    world.advance(60.0)
    world.handle(events.HostForgotten(host="b", by="op2"))
    assert not world.supervisor.state.holds_units("b")
    assert "b" not in world.supervisor.state.run.hosts
    del world.hosts["b"]
    world.quiesce()
    assert {world.slot(unit).host for unit in there} == {"a"}
    world.handle(events.DownWanted(by="op3"))
    world.quiesce()
    assert world.all_stopped == 1


def test_forgotten_host_that_returns_ends_what_was_replaced() -> None:
    world = World()
    world.handle(events.Applied(specs=(spec("web", 4, speaks=True),), by="op1"))
    world.quiesce()
    host = world.hosts["b"]
    there = [process.unit for process in host.live()]
    world.cut(host)
    world.become_silent(host)
    world.handle(events.HostForgotten(host="b", by="op2"))
    while world.hosts["a"].orders:
        world.obey(world.hosts["a"])
    assert {process.unit for process in world.hosts["a"].live()} >= set(there)
    world.quiesce()
    lives = sorted(process.unit for each in world.hosts.values() for process in each.live())
    assert lives == [f"web-{number}" for number in range(4)]


def test_host_whose_units_still_report_is_not_forgotten() -> None:
    world = World()
    world.handle(events.Applied(specs=(spec("web", 4, speaks=True),), by="op1"))
    world.quiesce()
    host = world.hosts["b"]
    there = frozenset(process.unit for process in host.live())
    world.cut(host)
    world.become_silent(host, there)
    world.handle(events.HostForgotten(host="b", by="op2"))
    assert world.supervisor.state.holds_units("b")
    assert "b" in world.supervisor.state.run.hosts
