"""The preview of `up` shows on which hosts units will run, as they then do."""

from __future__ import annotations

import msgspec

from agentrl.protocol.messages import HostFacts
from agentrl.protocol.specs import Resources
from agentrl.supervision import events
from agentrl.supervision.unit_slots import HostState, RunState, State
from agentrl.supervision.up_plan import plan
from tests.supervision.world import World, spec


def state_with(**gpus: int) -> State:
    state = State(RunState(), data_host="a")
    for name, count in gpus.items():
        state.hosts[name] = HostState(name, HostFacts(gpus=count))
        state.hosts[name].connected = True
    return state


def test_units_are_shown_by_host_and_waiting_ones_with_the_reason() -> None:
    specs = (spec("engine", 3, resources=Resources(gpus=1)), spec("web", hosts=("c",)), spec("near", hosts=("a",)))
    assert plan(state_with(a=0, b=2), specs).notes == (
        "waits at first: engine-2: no host can take it (a: needs 1 GPU, 0 of 0 free; "
        "b: needs 1 GPU, 0 of 2 free (0: engine-0; 1: engine-1))",
        "waits at first: web-0: no host can take it (a, b: not among its hosts; c: has not registered)",
        "on a: near-0",
        "on b: engine-0, engine-1",
    )


def test_gang_is_shown_where_all_its_ranks_will_be_or_as_waiting_as_a_whole() -> None:
    private = {"a": "10.0.0.1", "b": "10.0.0.2"}
    gang = spec("gang", 3, gang=True, private=private, resources=Resources(gpus=1))
    after = spec("rest", 1, resources=Resources(gpus=1), after=("gang",))
    fits = ("on a: gang-0, gang-1", "on b: gang-2")
    assert plan(state_with(a=2, b=1), (gang, after)).notes[-2:] == fits
    waits = (
        "waits at first: gang-0, gang-1, gang-2: no host can take rank 2 of its 3 (a, b: has room for 1: needs 1 GPU "
        "for each, 1 free)",
        "on a: rest-0",
    )
    assert plan(state_with(a=1, b=1), (gang, after)).notes == waits


def test_one_host_on_which_all_fits_needs_no_sentence() -> None:
    assert plan(state_with(a=1), (spec("web", 5), spec("engine", resources=Resources(gpus=1)))).notes == ()
    assert plan(state_with(), (spec("web"),)).notes == (), "no host agent is connected yet"


def test_sentences_stay_few_with_many_hosts() -> None:
    state = state_with(**{f"h{number:03}": 0 for number in range(100)})
    notes = plan(state, (spec("web", 1000),)).notes
    assert len(notes) == 9
    assert notes[0].startswith("on h000: web-0, ")
    assert notes[0].endswith(" and 4 more")
    assert notes[-1] == "and 92 more hosts or reasons"


def test_units_run_where_the_preview_showed_them() -> None:
    world = World()
    specs = (
        spec("web", 3, speaks=True),
        spec("near", hosts=("a",), speaks=True),
        spec("after", 2, after=("web",), speaks=True),
    )
    shown = world.supervisor.plan(specs).notes
    world.handle(events.Applied(specs=specs, by="up"))
    world.quiesce()
    hosts: dict[str, list[str]] = {}
    for unit in ("near-0", "web-0", "web-1", "web-2", "after-0", "after-1"):
        hosts.setdefault(world.supervisor.state.slots[unit].host, []).append(unit)
    assert shown == tuple(f"on {host}: {', '.join(hosts[host])}" for host in sorted(hosts))


def test_resources_of_replaced_units_are_free() -> None:
    world = World()
    first = (spec("big", resources=Resources(cpus=1.0), speaks=True),)
    for host in world.supervisor.state.hosts.values():
        host.facts = msgspec.structs.replace(host.facts, cpus=1)
    world.handle(events.Applied(specs=first, by="up"))
    world.quiesce()
    second = (msgspec.structs.replace(first[0], env={"NEW": "1"}),)
    assert not [note for note in world.supervisor.plan(second).notes if note.startswith("waits")]
