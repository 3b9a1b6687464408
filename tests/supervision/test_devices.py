"""Which devices a unit gets, and the sentence if it gets none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentrl.protocol.messages import Device, DeviceUse, HostFacts, ProcessInfo, UnitOnHost
from agentrl.protocol.specs import Resources
from agentrl.supervision import events
from agentrl.supervision.devices import WHOLE, HeldDevices, choose, islands_of
from agentrl.supervision.scheduling import place
from agentrl.supervision.unit_slots import HostState
from tests.supervision.world import World, spec


def cards(*islands: int, kind: str = "cuda") -> tuple[Device, ...]:
    """This many devices on each island."""
    sizes = [f"island-{number}" for number, size in enumerate(islands) for _ in range(size)]
    return tuple(Device(f"GPU-{n}", str(n), kind, island=island) for n, island in enumerate(sizes))


def host(name: str, *islands: int, **more: object) -> HostState:
    return HostState(name, HostFacts(cpus=64, devices=cards(*islands)), **more)  # type: ignore[arg-type]


def chosen(need: float, devices: tuple[Device, ...], free: dict[str, int]) -> list[int]:
    everything = {device.id: WHOLE for device in devices}
    return [int(id.removeprefix("GPU-")) for id in choose(need, devices, everything | free)]


def test_a_unit_gets_the_smallest_island_that_has_enough() -> None:
    assert chosen(2, cards(4, 2, 2), {}) == [4, 5]
    assert chosen(2, cards(4, 2), {"GPU-4": 0}) == [0, 1]
    assert chosen(1, cards(4, 2), {"GPU-4": 0}) == [5], "the island that is partly used already"
    assert chosen(5, cards(2, 4), {}) == [2, 3, 4, 5, 0], "no island has enough: as few as possible"
    assert chosen(7, cards(2, 4), {}) == []


def test_a_share_goes_where_least_is_left() -> None:
    assert chosen(0.5, cards(2), {"GPU-1": 500}) == [1]
    assert chosen(0.5, cards(2), {"GPU-1": 400}) == [0]
    assert chosen(1, cards(2), {"GPU-0": 999}) == [1]
    assert chosen(0.5, cards(2, 1), {}) == [2], "the pair stays whole"


def test_slices_are_given_one_at_a_time_and_after_whole_cards() -> None:
    slices, both = cards(2, kind="mig"), (*cards(1, kind="mig"), Device("GPU-9", "9", "cuda"))
    assert choose(1, slices, {"GPU-0": WHOLE, "GPU-1": WHOLE}) == ("GPU-0",)
    assert choose(2, slices, {"GPU-0": WHOLE, "GPU-1": WHOLE}) == ()
    assert choose(1, both, {"GPU-0": WHOLE, "GPU-9": WHOLE}) == ("GPU-9",)
    sliced = {"a": HostState("a", HostFacts(cpus=8, devices=slices))}
    reason = place(spec("web", resources=Resources(gpus=2)), sliced, (), {}, "", HeldDevices([]))[1]
    assert reason == "no host can take it (a: needs 2 GPU, 2 of 2 free (slices are given one at a time))"


@given(
    islands=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    need=st.one_of(st.integers(1, 8), st.sampled_from((0.25, 0.5, 0.7))),
    data=st.data(),
)
def test_any_choice_is_free_of_the_right_number_and_on_one_island_if_possible(
    islands: list[int], need: float, data: st.DataObject
) -> None:
    devices = cards(*islands)
    free = {device.id: data.draw(st.sampled_from((0, 300, 500, WHOLE))) for device in devices}
    found = choose(need, devices, free)
    least = round(min(need, 1) * WHOLE)
    count = max(1, int(need))
    fit = [device for device in devices if free[device.id] >= least]
    assert len(found) == (count if len(fit) >= count else 0)
    assert len(set(found)) == len(found)
    assert all(free[id] >= least for id in found)
    if found and max(len(island) for island in islands_of(fit)) >= count:
        assert len({device.island for device in devices if device.id in found}) == 1


def test_host_with_linked_devices_is_preferred_and_the_sentence_names_the_blocking_process() -> None:
    pair = spec("pair", resources=Resources(gpus=2))
    hosts = {"a": host("a", 1, 1), "b": host("b", 2)}
    assert place(pair, hosts, (), {}, "", HeldDevices([])) == ("b", "")
    held = HeldDevices([])
    held.hold("b", "web-0.1", ("GPU-0",), 1.0)
    assert place(pair, hosts, (), {}, "", held) == ("a", "")
    hosts["a"].occupied = {"GPU-1": "pid 7 python other.py"}
    assert place(pair, hosts, (), {}, "", held)[1] == (
        "no host can take it (a: needs 2 GPU, 1 of 2 free (1: pid 7 python other.py); "
        "b: needs 2 GPU, 1 of 2 free (0: web-0.1))"
    )


# ---- in a run ----


def run_of(*specs: object, islands: tuple[int, ...] = (2,)) -> World:
    world = World(hosts=("a",), devices=cards(*islands))
    world.handle(events.Applied(specs=specs, by="up"))  # type: ignore[arg-type]
    world.quiesce()
    return world


def test_devices_are_held_until_nothing_of_the_unit_is_left() -> None:
    world = run_of(spec("web", 2, resources=Resources(gpus=2)))
    assert world.slot("web-0").devices == ("GPU-0", "GPU-1")
    assert world.slot("web-1").reason.endswith("needs 2 GPU, 0 of 2 free (0: web-0.1; 1: web-0.1))")
    process = world.hosts["a"].ledger["web-0", 1]
    process.children = 1
    world.handle(events.StopWanted(unit="web-0", by="op", because="stopped"))
    world.obey(world.hosts["a"])
    world.deliver(world.hosts["a"])
    assert world.state_of("web-1") == "pending", "a child of web-0 still computes"
    world.quiesce()
    assert (world.state_of("web-1"), world.slot("web-1").devices) == ("ready", ("GPU-0", "GPU-1"))
    assert world.slot("web-0").devices == ()


def test_a_device_with_another_process_is_given_when_that_has_ended() -> None:
    world = run_of(spec("web", 2, resources=Resources(gpus=1)), islands=(1,))
    other = ProcessInfo(4711, "python elsewhere.py")
    own = ProcessInfo(7, "true", incarnation="web-0.1")
    world.handle(events.DevicesHeld(host="a", devices=(DeviceUse("GPU-0", processes=(own,)),)))
    assert world.supervisor.state.hosts["a"].occupied == {}
    world.handle(events.DevicesHeld(host="a", devices=(DeviceUse("GPU-0", processes=(own, other)),)))
    world.handle(events.StopWanted(unit="web-0", by="op", because="stopped"))
    world.quiesce()
    assert world.slot("web-1").reason == (
        "no host can take it (a: needs 1 GPU, 0 of 1 free (0: pid 4711 python elsewhere.py))"
    )
    world.handle(events.DevicesHeld(host="a", devices=(DeviceUse("GPU-0"),)))
    world.quiesce()
    assert world.state_of("web-1") == "ready"


def test_process_of_a_unit_that_reserved_no_device_is_in_the_way_too() -> None:
    world = run_of(spec("loose"), islands=(1,))
    stranger = ProcessInfo(7, "true", incarnation="loose-0.1")
    world.handle(events.DevicesHeld(host="a", devices=(DeviceUse("GPU-0", processes=(stranger,)),)))
    assert world.supervisor.state.hosts["a"].occupied == {"GPU-0": "pid 7 of loose-0.1 true"}


def test_the_next_coordinator_knows_the_devices_from_the_journal_and_from_the_ledger() -> None:
    world = run_of(
        spec("web", 1, resources=Resources(gpus=1)), spec("more", 1, resources=Resources(gpus=1)), islands=(3,)
    )
    before = {unit: world.slot(unit).devices for unit in ("web-0", "more-0")}
    world.crash()
    assert world.supervisor.holders("a") == {ids[0]: (f"{unit}.1",) for unit, ids in before.items()}
    # An incarnation that the journal does not know is ended, and holds its device until then.
    ghost = UnitOnHost("web-0", 7, "", pid=9, devices=("GPU-2",))
    inventory = (*(process.entry() for process in world.hosts["a"].ledger.values()), ghost)
    world.handle(events.HostConnected(host="a", facts=world.supervisor.state.hosts["a"].facts, inventory=inventory))
    assert "web-0.7" in world.supervisor.holders("a")["GPU-2"]


def test_lost_unit_that_was_replaced_keeps_its_device_until_its_host_is_back() -> None:
    world = World(hosts=("a", "b"), devices=cards(1))
    world.handle(
        events.Applied(specs=(spec("cell", 1, fenced=True, speaks=True, resources=Resources(gpus=1)),), by="up")
    )
    world.quiesce()
    home = world.hosts[world.slot("cell-0").host]
    world.cut(home)
    world.become_silent(home)
    assert world.supervisor.holders(home.name) == {"GPU-0": ("cell-0.1",)}
    world.quiesce()
    assert world.supervisor.holders(home.name) == {}
    assert world.slot("cell-0").devices == ("GPU-0",)
