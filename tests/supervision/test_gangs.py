"""Where the ranks of a gang go, what a gang that fits nowhere lacks, and which acts concern all ranks."""

from __future__ import annotations

import pytest

from agentrl.config.supervision_times import SupervisionTimes
from agentrl.protocol.messages import RANKS_SINCE, Device, ExitStatus, HostFacts
from agentrl.protocol.specs import Resources
from agentrl.supervision import events
from agentrl.supervision.devices import HeldDevices
from agentrl.supervision.gangs import place_gang
from agentrl.supervision.unit_slots import HostState
from tests.supervision.world import World, spec

PRIVATE = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}


def host(name: str, gpus: int, island: int = 0, kind: str = "cuda") -> HostState:
    devices = [Device(str(n), str(n), kind, island=f"{n // island}" if island else "") for n in range(gpus)]
    return HostState(name, HostFacts(cpus=64, devices=tuple(devices)))


def placed(ranks: int, *hosts: HostState, gpus: int = 1, **more: object) -> tuple[list[tuple[str, str]], str]:
    of_gang = spec("g", ranks, gang=True, resources=Resources(gpus=gpus), **{"private": PRIVATE, **more})
    by_name = {each.host: each for each in hosts}
    seats, why = place_gang(of_gang, ranks, by_name, (), {}, "a", HeldDevices(()))
    return [(seat.host, ",".join(seat.devices)) for seat in seats], why


@pytest.mark.parametrize(
    ("ranks", "hosts", "more", "expected"),
    [
        # On one host if there is room, rather on one whose devices are linked.
        (2, (host("a", 1), host("b", 2)), {}, ["b:0", "b:1"]),
        (2, (host("a", 2), host("b", 4, island=2)), {}, ["b:0", "b:1"]),
        # Otherwise on as few as possible, in equal parts if possible; rank 0 is where the data is.
        (4, (host("a", 1), host("b", 2), host("c", 3)), {}, ["b:0", "b:1", "c:0", "c:1"]),
        (4, (host("a", 3), host("b", 1), host("c", 3)), {}, ["a:0", "a:1", "c:0", "c:1"]),
        (5, (host("a", 1), host("b", 2), host("c", 3)), {}, ["b:0", "b:1", "c:0", "c:1", "c:2"]),
        (3, (host("b", 1), host("c", 1), host("a", 1)), {}, ["a:0", "b:0", "c:0"]),
        (2, (host("a", 4), host("b", 4)), {"ranks_per_host": 1, "gpus": 2}, ["a:0,1", "b:0,1"]),
        # Whole devices of its own for each rank, from linked ones.
        (2, (host("a", 4),), {"gpus": 2}, ["a:0,1", "a:2,3"]),
        (2, (host("a", 4, island=2), host("b", 2)), {"gpus": 2}, ["a:0,1", "a:2,3"]),
    ],
)
def test_seats_of_a_gang(
    ranks: int, hosts: tuple[HostState, ...], more: dict[str, object], expected: list[str]
) -> None:
    seats, why = placed(ranks, *hosts, **more)  # type: ignore[arg-type]
    assert ([f"{name}:{devices}" for name, devices in seats], why) == (expected, "")


@pytest.mark.parametrize(
    ("ranks", "hosts", "more", "lacks"),
    [
        (
            4,
            (host("a", 2), host("b", 1), host("c", 0)),
            {},
            "no host can take rank 3 of its 4 (a: has room for 2: needs 1 GPU for each, 2 free; "
            "b: has room for 1: needs 1 GPU for each, 1 free; c: needs 1 GPU, 0 of 0 free)",
        ),
        (
            2,
            (host("a", 1), host("b", 1)),
            {"private": {"a": "10.0.0.1"}},
            "no host can take rank 1 of its 2 (a: has room for 1: needs 1 GPU for each, 1 free; b: has room for 1: "
            "needs 1 GPU for each, 1 free; and has no private address, which ranks on several hosts need)",
        ),
        (2, (host("a", 2, kind="mig"),), {}, "no host can take rank 0 of its 2 (a: needs 1 GPU for each, 0 free)"),
        (
            2,
            (host("a", 2), host("b", 2)),
            {"hosts": ("b", "d"), "ranks_per_host": 1},
            "no host can take rank 1 of its 2 (a: not among its hosts; b: has room for 1: takes 1 at most; "
            "d: has not registered)",
        ),
        (
            2,
            (HostState("b", HostFacts(cpus=64, agent_version="0.4"), minor=RANKS_SINCE - 1),),
            {"gpus": 0},
            "no host can take rank 0 of its 2 (b: its host agent (agentrl 0.4) starts no gangs; restart it with this "
            "version)",
        ),
        (65, (host("a", 0),), {"gpus": 0, "resources": Resources(cpus=1.0)}, "needs 1 CPU for each, 64 free"),
    ],
)
def test_gang_that_fits_nowhere_says_which_rank_lacks_what(
    ranks: int, hosts: tuple[HostState, ...], more: dict[str, object], lacks: str
) -> None:
    resources = more.pop("resources", None)
    if resources is not None:
        of_gang = spec("g", ranks, gang=True, resources=resources, private=PRIVATE)
        seats, why = place_gang(of_gang, ranks, {"a": hosts[0]}, (), {}, "a", HeldDevices(()))
        assert (seats, lacks in why) == ([], True), why
        return
    assert placed(ranks, *hosts, **more) == ([], lacks)  # type: ignore[arg-type]


@pytest.fixture
def world() -> World:
    """A gang of three ranks that computes."""
    # The simulated world waits for every timer, also for unneeded ones, so the window is short.
    made = World(hosts=("a", "b", "c"), times=SupervisionTimes(restart_window_s=3600.0))
    gang = spec("g", 3, gang=True, speaks=True, ranks_per_host=1, private=PRIVATE)
    made.handle(events.Applied(specs=(gang, spec("web", 2)), by="op"))
    made.quiesce()
    return made


def epochs(world: World) -> list[int]:
    return [world.slot(f"g-{n}").started_epoch for n in range(3)]


@pytest.mark.parametrize(
    "act",
    [
        events.RestartWanted(units=("g-1",), by="op"),
        events.HostDrained(host="b", by="op"),
        events.Scaled(group="g", count=2, by="op"),
        events.UnitHung(unit="g-2", incarnation=1, because="stands still"),
    ],
    ids=lambda act: type(act).__name__,
)
def test_acts_on_one_rank_concern_all(world: World, act: events.Event) -> None:
    assert epochs(world) == [1, 1, 1]
    world.handle(act)
    assert {world.state_of(f"g-{n}") for n in range(3)} <= {"draining", "stopping"}
    assert world.state_of("web-0") == "ready"


def test_ranks_are_stopped_and_go_on_together(world: World) -> None:
    world.handle(events.StopWanted(unit="g-0", by="op", because="stopped"))
    world.quiesce()
    assert [world.state_of(f"g-{n}") for n in range(3)] == ["stopped"] * 3
    world.handle(events.RestartWanted(units=("g-2",), by="op"))
    world.quiesce()
    assert [world.state_of(f"g-{n}") for n in range(3)] == ["ready"] * 3
    assert epochs(world) == [2, 2, 2]


def test_gang_of_which_other_ranks_die_each_time_is_given_up_like_one_unit(world: World) -> None:
    for death in range(world.times.max_deaths + 1):
        unit = f"g-{death % 3}"
        where = world.hosts[world.slot(unit).host]
        world.die(where, where.ledger[unit, world.slot(unit).incarnation], ExitStatus(code=1))
        world.quiesce()
    assert world.state_of(unit) == "fatal"
    other = world.slot("g-1")
    assert (other.state, other.reason.partition(" (")[0]) == ("pending", f"its gang is broken: {unit} is fatal")


def test_survivors_of_a_death_are_ended_without_a_drain(world: World) -> None:
    where = world.hosts[world.slot("g-0").host]
    world.die(where, where.ledger["g-0", 1], ExitStatus(signal=9))
    world.deliver(where)
    assert [world.slot(f"g-{n}").state for n in range(3)] == ["backoff", "stopping", "stopping"]
    assert not world.told
    world.quiesce()
    assert epochs(world) == [2, 2, 2]
    assert "g-0.1 died while ready (signal 9)" in world.supervisor.state.groups["g"].gang_why
