"""The choice of a host for a unit, and the reason if no host fits."""

from __future__ import annotations

import msgspec

from agentrl.protocol.messages import HostFacts
from agentrl.protocol.specs import Resources, Role
from agentrl.supervision import events
from agentrl.supervision.devices import HeldDevices
from agentrl.supervision.scheduling import Use, place
from agentrl.supervision.unit_slots import HostState
from tests.supervision.world import World, spec


def hosts(count: int, **facts: int) -> dict[str, HostState]:
    return {f"host-{n:03d}": HostState(f"host-{n:03d}", HostFacts(**facts)) for n in range(count)}


def test_unit_goes_to_the_host_with_the_fewest_units() -> None:
    used = {"host-000": Use(units=2), "host-001": Use(units=1), "host-002": Use(units=1)}
    assert place(spec("web"), hosts(3), (), used, "", HeldDevices([])) == ("host-001", "")


def test_groups_are_spread_or_packed_or_near_another_group() -> None:
    def placed(count: int, used: dict[str, Use], **wishes: str) -> str:
        """The last digits of the hosts of its units, one after the other."""
        wanted, found = msgspec.structs.replace(spec("web", resources=Resources(cpus=1)), **wishes), ""
        for _ in range(count):
            host, reason = place(wanted, hosts(3, cpus=2), (), used, "", HeldDevices([]))
            found += host[-1:] or reason
            if host:
                used.setdefault(host, Use()).change(wanted, 1)
        return found

    def busy() -> dict[str, Use]:
        return {"host-000": Use(units=9, groups={"db": 1}), "host-001": Use(units=4), "host-002": Use(units=5)}

    assert placed(4, busy()) == "1122"  # where the fewest units are
    assert placed(4, busy(), spread="yes") == "1201"
    assert placed(4, busy(), spread="pack") == "0022"
    assert placed(3, busy(), near="db") == "001"
    assert placed(7, busy(), near="db", spread="yes")[:6] == "001212"
    assert spec("web").fingerprint() == msgspec.structs.replace(spec("web"), spread="pack", near="db").fingerprint()


def test_unit_with_data_waits_for_the_host_that_has_it() -> None:
    database = msgspec.structs.replace(spec("mongo"), role=Role.MONGO)
    both, other = hosts(2), {"host-001": hosts(2)["host-001"]}
    assert place(database, both, (), {"host-000": Use(units=9)}, "host-000", HeldDevices([])) == ("host-000", "")
    assert place(database, other, (), {}, "host-000", HeldDevices([])) == (
        "",
        "no host can take it (host-001: has no data of the run; host-000: has not registered)",
    )
    assert place(spec("web"), other, (), {}, "host-000", HeldDevices([])) == ("host-001", "")


def test_refusal_stays_short_with_many_hosts() -> None:
    wanted = spec("big", resources=Resources(gpus=8))
    assert place(wanted, hosts(100), (), {}, "", HeldDevices([]))[1] == (
        "no host can take it (host-000, host-001, host-002 and 97 more: needs 8 GPU, 0 of 0 free)"
    )
    different = {f"h{n}": HostState(f"h{n}", HostFacts(gpus=n)) for n in range(8)}
    assert place(wanted, different, (), {}, "", HeldDevices([]))[1].endswith(
        "h4: needs 8 GPU, 4 of 4 free; 3 more hosts for similar reasons)"
    )
    assert len(place(wanted, different, ("h0",), {}, "", HeldDevices([]))[1]) < 300


def test_fractions_of_cpus_leave_no_rounding_error() -> None:
    use = Use()
    for _ in range(3):
        use.change(spec("web", resources=Resources(cpus=0.1)), 1)
    for _ in range(3):
        use.change(spec("web", resources=Resources(cpus=0.1)), -1)
    assert use == Use()


def test_database_is_not_started_elsewhere_after_its_host_is_lost() -> None:
    world = World()
    world.handle(events.Applied(specs=(msgspec.structs.replace(spec("mongo", speaks=True), role=Role.MONGO),), by="up"))
    world.quiesce()
    home, other = world.hosts["a"], world.hosts["b"]
    world.cut(home)
    world.handle(events.HostSilent(host="a", for_s=20))
    world.handle(events.UnitSuspect(unit="mongo-0", incarnation=1, because="silent"))
    assert world.state_of("mongo-0") == "lost"
    world.handle(events.DeathConfirmed(unit="mongo-0", incarnation=1, by="operator"))
    assert (world.state_of("mongo-0"), other.ledger) == ("pending", {})
    assert "has no data of the run" in world.slot("mongo-0").reason
    world.quiesce()
    assert (world.state_of("mongo-0"), world.slot("mongo-0").host) == ("ready", "a")
