"""A host is a machine: its name is a label that no second machine gets while the first holds it."""

from __future__ import annotations

from msgspec.structs import replace

from agentrl.protocol.rows import UnitState
from agentrl.supervision import events
from agentrl.supervision.joined_hosts import JoinedHost, JoinedHosts, hash_of
from tests.supervision.world import Host, World, spec

NODE = JoinedHost("node", hash_of("key"), "machine", "boot-1", "k")


def test_only_the_machine_that_joined_has_its_name() -> None:
    joined = JoinedHosts()
    assert joined.refusal(NODE, connected=False) is None
    assert joined.join(NODE)
    assert not joined.join(NODE)
    assert joined.refusal(NODE, connected=True) is None, "a second hello of the same agent"
    for other in (replace(NODE, key_hash=hash_of("other")), replace(NODE, key_hash="")):
        for connected in (True, False):
            refusal = joined.refusal(other, connected=connected)
            assert refusal is not None
            assert refusal.final
            assert refusal.message == "Another machine has joined the run as host node."
    joined.forget("node")
    assert joined.refusal(replace(NODE, key_hash=hash_of("other")), connected=False) is None


def test_copy_of_a_machine_waits_until_the_machine_is_silent() -> None:
    joined = JoinedHosts()
    joined.join(NODE)
    for other in (replace(NODE, boot_id="boot-2"), replace(NODE, machine_id="copy")):
        refusal = joined.refusal(other, connected=True)
        assert refusal is not None
        assert not refusal.final, "after a reboot the agent tries again"
        assert joined.refusal(other, connected=False) is None


def test_access_key_registers_one_host() -> None:
    joined = JoinedHosts()
    joined.join(NODE)
    refusal = joined.refusal(replace(NODE, host="other", key_hash=hash_of("other")), connected=False)
    assert refusal is not None
    assert refusal.message == "The key k belongs to host node, not to other."


def test_agent_of_an_earlier_version_gets_a_key_later() -> None:
    joined = JoinedHosts()
    joined.join(replace(NODE, key_hash="", machine_id=""))
    assert joined.refusal(NODE, connected=True) is None
    assert joined.refusal(replace(NODE, boot_id="boot-2"), connected=True) is not None


def test_units_stay_on_their_host_when_a_second_machine_has_its_name() -> None:
    world = World()
    world.handle(events.Applied(specs=(spec("web", 2),), by="up"))
    world.quiesce()
    assert world.second_machine(Host("b", key="another")) is not None
    world.cut(world.hosts["b"])
    world.become_silent(world.hosts["b"])
    assert world.second_machine(Host("b", key="another")) is not None
    world.quiesce()
    assert {slot.state for slot in world.supervisor.state.slots.values()} == {UnitState.READY}
    assert [slot.incarnation for slot in world.supervisor.state.slots.values()] == [1, 1]


def test_silent_host_is_forgotten_once_it_holds_no_unit() -> None:
    world = World()
    world.handle(events.Applied(specs=(spec("web", 1, hosts=("b",)),), by="up"))
    world.quiesce()
    world.cut(world.hosts["b"])
    world.become_silent(world.hosts["b"])
    world.handle(events.HostForgotten(host="b"))
    assert "b" in world.supervisor.state.hosts, "its unit may live"
    world.connect(world.hosts["b"])
    world.handle(events.DownWanted(by="down"))
    world.quiesce()
    world.become_silent(world.hosts["b"])
    world.handle(events.HostForgotten(host="b"))
    assert "b" not in world.supervisor.state.hosts


def test_drain_of_a_host_that_an_up_removed_leaves_the_units_to_that_up() -> None:
    """Otherwise `up` would end as superseded whenever a unit is still on the host that it removes."""
    world = World()
    world.handle(events.Applied(specs=(spec("web", 1, hosts=("b",)),), by="first"))
    world.quiesce()
    world.handle(events.Applied(specs=(spec("web", 1, hosts=("a",)),), by="up"))
    world.handle(events.HostDrained(host="b", by=""))
    slot = world.supervisor.state.slots["web-0"]
    assert (slot.host, slot.desired_by) == ("b", "up"), "the unit has not ended there yet"
    world.quiesce()
    assert (slot.state, slot.host, slot.desired_by) == (UnitState.READY, "a", "up")
    world.handle(events.HostDrained(host="a", by="drain"))
    assert slot.desired_by == "drain"


def test_forgotten_host_leaves_neither_its_drain_nor_its_report_to_the_next_machine() -> None:
    world = World()
    world.handle(events.Applied(specs=(spec("web", 1, hosts=("b",)),), by="up"))
    world.quiesce()
    world.handle(events.HostDrained(host="b", draining=True, by="ann"))
    world.quiesce()
    world.cut(world.hosts["b"])
    world.become_silent(world.hosts["b"])
    world.handle(events.HostForgotten(host="b"))
    del world.hosts["b"]
    world.crash()
    run = world.supervisor.state.run
    assert (run.draining_hosts, run.hosts) == (set(), {"a"})
    world.joined.forget("b")
    assert world.second_machine(Host("b", key="another")) is None
    world.quiesce()
    assert world.state_of("web-0") == UnitState.READY
