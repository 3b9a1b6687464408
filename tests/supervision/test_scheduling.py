"""The choice of a host for a unit, and the reason if no host fits."""

from __future__ import annotations

from agentrl.protocol.messages import HostFacts
from agentrl.protocol.specs import Resources
from agentrl.supervision.scheduling import Use, place
from agentrl.supervision.unit_slots import HostState
from tests.supervision.world import spec


def hosts(count: int, **facts: int) -> dict[str, HostState]:
    return {f"host-{n:03d}": HostState(f"host-{n:03d}", HostFacts(**facts)) for n in range(count)}


def test_unit_goes_to_the_host_with_the_fewest_units() -> None:
    used = {"host-000": Use(units=2), "host-001": Use(units=1), "host-002": Use(units=1)}
    assert place(spec("web"), hosts(3), (), used) == ("host-001", "")


def test_refusal_stays_short_with_many_hosts() -> None:
    wanted = spec("big", resources=Resources(gpus=8))
    assert place(wanted, hosts(100), (), {})[1] == (
        "no host can take it (host-000, host-001, host-002 and 97 more: needs 8 GPU, 0 of 0 free)"
    )
    different = {f"h{n}": HostState(f"h{n}", HostFacts(gpus=n)) for n in range(8)}
    assert place(wanted, different, (), {})[1].endswith(
        "h4: needs 8 GPU, 4 of 4 free; 3 more hosts for similar reasons)"
    )
    assert len(place(wanted, different, ("h0",), {})[1]) < 300


def test_fractions_of_cpus_leave_no_rounding_error() -> None:
    use = Use()
    for _ in range(3):
        use.change(spec("web", resources=Resources(cpus=0.1)), 1)
    for _ in range(3):
        use.change(spec("web", resources=Resources(cpus=0.1)), -1)
    assert use == Use()
