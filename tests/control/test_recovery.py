"""A journal of the version before is read, and an unreadable entry ends no process of a unit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.config.supervision_times import SupervisionTimes
from agentrl.control import recovery
from agentrl.control.alerts.alert_states import LastDelivery, Silence
from agentrl.control.commands.active_config import StoredConfig
from agentrl.control.persistence.journal import Batch, Journal
from agentrl.control.persistence.stored_values import StoredValues
from agentrl.control.recovery import ClockMark
from agentrl.control.state.knob_registry import StoredKnob
from agentrl.control.state.operations import Operation
from agentrl.protocol.messages import HostFacts, UnitOnHost
from agentrl.protocol.rows import UnitState
from agentrl.protocol.specs import GroupSpec, Role
from agentrl.supervision import events
from agentrl.supervision.instructions import KillTree, Spawn
from agentrl.supervision.joined_hosts import JoinedHost
from agentrl.supervision.supervisor import Supervisor
from agentrl.supervision.unit_slots import GroupState, RunState, Slot, State
from tests.protocol.samples import bare, filled

GOLDEN = Path(__file__).with_name("golden_journal.json")
STORED: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        RunState,
        GroupState,
        Slot,
        Operation,
        StoredConfig,
        StoredKnob,
        Silence,
        LastDelivery,
        ClockMark,
        JoinedHost,
    )
}
SPEC = GroupSpec("web", Role.SIDECAR, ("sleep", "1"), count=1)


def _now() -> dict[str, dict[str, str]]:
    encode = msgspec.msgpack.Encoder(order="sorted").encode
    return {
        name: {"filled": encode(filled(kind)).hex(), "bare": encode(bare(kind)).hex()}
        for name, kind in sorted(STORED.items())
    }


if os.environ.get("AGENTRL_WRITE_GOLDEN"):
    GOLDEN.write_text(json.dumps(_now(), indent=1) + "\n")
golden: dict[str, dict[str, str]] = json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("name", sorted(STORED))
def test_stored_bytes_are_the_golden_ones(name: str) -> None:
    """A changed field needs a default or a migration. Then run: AGENTRL_WRITE_GOLDEN=1 pytest tests/control."""
    assert _now()[name] == golden[name]


@pytest.mark.parametrize("name", sorted(STORED))
@pytest.mark.parametrize("form", ["filled", "bare"])
def test_golden_bytes_and_those_with_unknown_fields_are_understood(name: str, form: str) -> None:
    body = bytes.fromhex(golden[name][form])
    expected = filled(STORED[name]) if form == "filled" else bare(STORED[name])
    assert msgspec.msgpack.decode(body, type=STORED[name]) == expected
    newer = msgspec.msgpack.encode({**msgspec.msgpack.decode(body), "of_tomorrow": [1]})
    assert msgspec.msgpack.decode(newer, type=STORED[name]) == expected


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal.open(tmp_path / "journal.sqlite", at=1.0)


def stored(journal: Journal, **entries: tuple[str, bytes]) -> StoredValues:
    batch = Batch()
    batch.put("run", "", msgspec.msgpack.encode(RunState(up=True)))
    batch.put("group", "web", msgspec.msgpack.encode(GroupState(SPEC, 1)))
    for kind, (key, body) in entries.items():
        batch.put(kind, key, body)
    journal.commit(batch)
    return StoredValues(journal)


def a_slot(**more: Any) -> dict[str, Any]:
    ready = {
        "unit": "web-0",
        "group": "web",
        "number": 0,
        "state": "ready",
        "incarnation": 3,
        "host": "a",
        "wanted": True,
    }
    alive = {"leader_gone": False, "tree_gone": False, "came_up": True, "spec": msgspec.to_builtins(SPEC)}
    return {**ready, **alive, **more}


UNREADABLE = {
    "garbage": b"\xc1",
    "no map": msgspec.msgpack.encode([1, 2]),
    "unknown state": msgspec.msgpack.encode(a_slot(state="hibernating")),
    "bad number": msgspec.msgpack.encode(a_slot(incarnation="three")),
    "bad spec": msgspec.msgpack.encode(a_slot(spec={"name": 1})),
    "bad history": msgspec.msgpack.encode(a_slot(deaths="many")),
}


@pytest.mark.parametrize("how", sorted(UNREADABLE))
def test_unit_of_an_unreadable_slot_keeps_running(journal: Journal, how: str) -> None:
    values = stored(journal, slot=("web-0", UNREADABLE[how]))
    state = recovery.load_state(values, 100.0)
    assert [(entry.kind, entry.key) for entry in values.unreadable] == [("slot", "web-0")]
    assert journal.all("unreadable") == {"slot web-0": UNREADABLE[how]}
    supervisor = Supervisor(state, SupervisionTimes())
    ordered = supervisor.resume(100.0) + supervisor.handle(connected(UnitOnHost("web-0", 3, "t", pid=7)), 101.0)
    assert not [each for each in ordered if isinstance(each, KillTree | Spawn)]
    slot = state.slots["web-0"]
    assert (slot.state, slot.incarnation, slot.host, slot.pid) == (UnitState.READY, 3, "a", 7)
    assert slot.spec == SPEC
    assert not supervisor.outdated("web-0")


def test_unit_of_an_unreadable_slot_that_died_meanwhile_starts_again_under_a_new_number(journal: Journal) -> None:
    state = recovery.load_state(stored(journal, slot=("web-0", UNREADABLE["unknown state"])), 100.0)
    supervisor = Supervisor(state, SupervisionTimes())
    ordered = supervisor.resume(100.0) + supervisor.handle(connected(), 101.0)
    assert [each for each in ordered if isinstance(each, Spawn)] == [Spawn("a", "web-0", 4)]


def test_unreadable_run_and_group_stop_no_unit(journal: Journal) -> None:
    slot = msgspec.msgpack.encode(a_slot())
    state = recovery.load_state(stored(journal, run=("", b"\xc1"), group=("web", b"\xc1"), slot=("web-0", slot)), 100.0)
    supervisor = Supervisor(state, SupervisionTimes())
    supervisor.resume(100.0)
    supervisor.handle(connected(UnitOnHost("web-0", 3, "t", pid=7)), 101.0)
    assert state.slots["web-0"].state is UnitState.READY
    assert state.groups["web"].spec == SPEC


NO_HOST = {
    "nothing": b"\xc1",
    "host without a number": msgspec.msgpack.encode(a_slot(incarnation="three")),
    "number without a host": msgspec.msgpack.encode(a_slot(host=7)),
}


@pytest.mark.parametrize("readable", sorted(NO_HOST))
def test_unit_that_no_host_of_the_run_knows_starts_again_when_all_are_connected(
    journal: Journal, readable: str
) -> None:
    run = msgspec.msgpack.encode(RunState(up=True, hosts={"a", "b"}))
    state = recovery.load_state(stored(journal, run=("", run), slot=("web-0", NO_HOST[readable])), 100.0)
    supervisor = Supervisor(state, SupervisionTimes())
    ordered = supervisor.resume(100.0) + supervisor.handle(connected(), 101.0)
    assert not [each for each in ordered if isinstance(each, Spawn)]
    assert state.slots["web-0"].reason == recovery.UNREADABLE
    earlier = state.slots["web-0"].incarnation
    ordered = supervisor.handle(connected(host="b"), 102.0)
    slot = state.slots["web-0"]
    if slot.timer:
        ordered += supervisor.handle(events.TimerFired(unit="web-0", at=slot.timer), slot.timer)
    assert [each for each in ordered if isinstance(each, Spawn)] == [Spawn("a", "web-0", earlier + 1)]
    assert [supervisor.units_on(host) for host in ("a", "b")] == [1, 0]


def test_unreadable_run_does_not_forget_its_hosts(journal: Journal) -> None:
    """A unit may live on a host that has not connected yet."""
    other = ("web-1", msgspec.msgpack.encode(a_slot(unit="web-1", number=1, host="b")))
    values = stored(journal, run=("", b"\xc1"), slot=("web-0", b"\xc1"))
    journal.commit(Batch(puts=[("slot", *other), ("host", "c", msgspec.msgpack.encode(JoinedHost("c")))]))
    assert recovery.load_state(values, 100.0).run.hosts == {"b", "c"}


def connected(*inventory: UnitOnHost, host: str = "a") -> events.HostConnected:
    return events.HostConnected(host=host, facts=HostFacts(), inventory=inventory)


def test_state_of_an_empty_journal_is_empty(journal: Journal) -> None:
    values = StoredValues(journal)
    assert recovery.load_state(values, 100.0) == State(RunState())
    assert not values.unreadable
