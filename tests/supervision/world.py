"""A simulated world around the supervisor: hosts with ledgers, dying processes, breaking links, a crashing coordinator.

Invariant: it keeps the promises of host agents (idempotent spawns, one Exited, GroupEmpty after it, the whole ledger in
every hello) and gives no others, so a property that holds here holds for any order of events.
"""

from __future__ import annotations

import copy
import signal
from dataclasses import dataclass, field

import msgspec

from agentrl.config.supervision_times import SupervisionTimes
from agentrl.protocol.messages import Device, ExitStatus, HostFacts, UnitOnHost
from agentrl.protocol.specs import GroupSpec, Rank, Role, split_unit
from agentrl.supervision import events
from agentrl.supervision import instructions as do
from agentrl.supervision.joined_hosts import HostRefusal, JoinedHost, JoinedHosts, hash_of
from agentrl.supervision.supervisor import Supervisor
from agentrl.supervision.unit_slots import GroupState, RunState, Slot, State

TIMES = SupervisionTimes()
DATA_HOST = "a"


def spec(name: str, count: int = 1, **more: object) -> GroupSpec:
    return GroupSpec(name=name, role=Role.SIDECAR, command=("true",), count=count, **more)  # type: ignore[arg-type]


@dataclass
class Process:
    unit: str
    incarnation: int
    exit: ExitStatus | None = None
    children: int = 0
    devices: tuple[str, ...] = ()
    share: float = 1.0
    rank: Rank | None = None
    reported_empty: bool = False

    @property
    def alive(self) -> bool:
        return self.exit is None or self.children > 0

    def entry(self) -> UnitOnHost:
        return UnitOnHost(
            self.unit,
            self.incarnation,
            "",
            pid=0 if self.exit else 7,
            exit=self.exit,
            group_empty=not self.alive,
            devices=self.devices,
            rank=self.rank,
        )


@dataclass
class Host:
    name: str
    linked: bool = True
    gone: bool = False
    """It never comes back."""
    key: str = ""
    boot_id: str = ""
    ledger: dict[tuple[str, int], Process] = field(default_factory=dict)
    orders: list[do.Instruction] = field(default_factory=list)
    """Messages from the coordinator on their way; a broken link loses them."""
    reports: list[events.Event] = field(default_factory=list)
    """Messages to the coordinator on their way."""

    def claim(self) -> JoinedHost:
        return JoinedHost(self.name, hash_of(self.key or self.name), "image", self.boot_id)

    def live(self) -> list[Process]:
        return [p for p in self.ledger.values() if p.alive]


class World:
    def __init__(
        self,
        hosts: tuple[str, ...] = ("a", "b"),
        times: SupervisionTimes = TIMES,
        devices: tuple[Device, ...] = (),
    ) -> None:
        self.times = times
        self.devices = devices
        """The devices of every host."""
        self.given: dict[tuple[str, int], tuple[tuple[str, ...], float, Rank | None]] = {}
        """For each ordered incarnation: its devices, the share of each device, and its place in its gang."""
        self.now = 1e6
        self.disk: dict[tuple[str, str], bytes] = {}
        self.supervisor = Supervisor(State(RunState(), data_host=DATA_HOST), times)
        self.joined = JoinedHosts()
        self.hosts = {name: Host(name) for name in hosts}
        self.timers: list[tuple[float, str]] = []
        self.incidents: list[do.Report] = []
        self.events = 0
        self.told: list[do.SendToUnit] = []
        self.started: list[tuple[str, int]] = []
        self.ordered: set[tuple[str, int]] = set()
        self.epochs: set[tuple[str, int]] = set()
        """The gangs and epochs that were started."""
        self.log: list[do.Instruction] = []
        self.all_stopped = 0
        for host in self.hosts.values():
            self.connect(host)

    # ---- execution of the coordinator's instructions ----

    def handle(self, event: events.Event) -> list[do.Instruction]:
        self.events += 1
        named = msgspec.structs.replace(event, stimulus=f"event-{self.events}")
        out = self.supervisor.handle(named, self.now)
        assert {instruction.stimulus for instruction in out} <= {named.stimulus}
        assert self.supervisor.validate() == []
        self._check_gangs(out)
        self.carry_out(out)
        return out

    def carry_out(self, out: list[do.Instruction]) -> None:
        for instruction in out:
            self.log.append(instruction)
            match instruction:
                case do.Persist(kind, key, gone):
                    self._persist(kind, key, gone)
                case do.StartTimer(unit, at):
                    self.timers.append((at, unit))
                case do.Spawn(_, unit, incarnation):
                    self._check_alone(unit, incarnation)
                    self._give(unit, incarnation)
                    self._order(instruction.host, instruction)
                case do.Signal() | do.KillTree() | do.Forget():
                    self._order(instruction.host, instruction)
                case do.Report():
                    self.incidents.append(instruction)
                case do.SendToUnit():
                    self.told.append(instruction)
                case do.AllStopped():
                    self.all_stopped += 1

    def _order(self, host: str, order: do.Instruction) -> None:
        if host in self.hosts and self.hosts[host].linked:
            self.hosts[host].orders.append(order)

    def _check_alone(self, unit: str, incarnation: int) -> None:
        """When a spawn is decided, no other incarnation of the unit is on any reachable host."""
        if (unit, incarnation) in self.ordered:
            return
        self.ordered.add((unit, incarnation))
        others = [(h.name, p.incarnation) for h in self.hosts.values() if h.linked for p in h.live() if p.unit == unit]
        assert not others, f"{unit}.{incarnation} is started while {others} live on reachable hosts"

    def _check_gangs(self, out: list[do.Instruction]) -> None:
        """All ranks of an epoch are started or none, while no process of another epoch is on any reachable host."""
        epochs: dict[tuple[str, int], list[Slot]] = {}
        for order in out:
            if isinstance(order, do.Spawn) and (order.unit, order.incarnation) not in self.ordered:
                slot = self.slot(order.unit)
                if slot.rank is not None:
                    epochs.setdefault((slot.group, slot.rank.epoch), []).append(slot)
        for (group, epoch), slots in epochs.items():
            assert (group, epoch) not in self.epochs, f"epoch {epoch} of {group} is started twice"
            self.epochs.add((group, epoch))
            _check_ranks(slots)
            for host in self.hosts.values():
                old = [p for p in host.live() if split_unit(p.unit)[0] == group]
                assert not (host.linked and old), (
                    f"epoch {epoch} of {group} is started while {old} lives on {host.name}"
                )

    def _give(self, unit: str, incarnation: int) -> None:
        """Check the devices in the order to the host. A repeated order must name the same devices."""
        slot = self.slot(unit)
        if slot.spec is None or slot.incarnation != incarnation:
            return
        given = slot.devices, min(1.0, float(slot.spec.resources.gpus) or 1.0), slot.rank
        assert self.given.setdefault((unit, incarnation), given) == given, "a repeated order gives something else"
        occupied = self.supervisor.state.hosts[slot.host].occupied
        assert len(slot.devices) == (max(1, int(slot.spec.resources.gpus)) if slot.spec.resources.gpus else 0)
        assert not occupied.keys() & {*slot.devices} or slot.spawned, f"{unit} is given an occupied device"

    def _persist(self, kind: str, key: str, gone: bool) -> None:
        state = self.supervisor.state
        thing = {"run": lambda: state.run, "group": lambda: state.groups[key], "slot": lambda: state.slots[key]}[kind]
        if gone:
            self.disk.pop((kind, key), None)
        else:
            self.disk[kind, key] = msgspec.msgpack.encode(thing())

    def crash(self, *, hosts_connect: bool = True, clock_jumps_s: float = 0.0) -> None:
        """The coordinator dies and restarts with only the state on disk; the clock is set meanwhile."""
        kinds = {"run": RunState, "group": GroupState, "slot": Slot}
        state = State(RunState(), data_host=DATA_HOST)
        for (kind, key), body in self.disk.items():
            thing = msgspec.msgpack.decode(body, type=kinds[kind])
            if kind == "run":
                state.run = thing
            else:
                (state.groups if kind == "group" else state.slots)[key] = thing
        self.now += clock_jumps_s
        for slot in state.slots.values():
            slot.shift_times(clock_jumps_s)
        self.timers.clear()
        for host in self.hosts.values():
            host.orders.clear()
            host.reports.clear()
        self.supervisor = Supervisor(state, self.times)
        self.carry_out(self.supervisor.resume(self.now))
        for host in self.hosts.values():
            if not hosts_connect:
                host.linked = False
            elif host.linked:
                self.connect(host)
            else:
                self.become_silent(host)

    def connect(self, host: Host) -> None:
        host.linked = True
        host.reports.clear()
        assert self.joined.refusal(host.claim(), connected=False) is None
        self.joined.join(host.claim())
        inventory = tuple(p.entry() for p in host.ledger.values())
        self.handle(
            events.HostConnected(host=host.name, facts=HostFacts(cpus=64, devices=self.devices), inventory=inventory)
        )

    def join(self, name: str) -> None:
        """A further host connects for the first time."""
        self.hosts[name] = Host(name)
        self.connect(self.hosts[name])

    def second_machine(self, machine: Host) -> HostRefusal | None:
        """A machine with the name of a host says hello. If it is admitted, it is that host from now on."""
        known = self.supervisor.state.hosts.get(machine.name)
        refusal = self.joined.refusal(machine.claim(), connected=known is not None and known.connected)
        if refusal is None:
            self.hosts[machine.name] = machine
            self.connect(machine)
        return refusal

    def cut(self, host: Host) -> None:
        host.linked = False
        host.orders.clear()
        host.reports.clear()

    def lose_power(self, host: Host, *, ledger_survives: bool) -> None:
        """Every process of the host and its agent die at once."""
        self.cut(host)
        for key, process in host.ledger.items():
            process.exit = process.exit or ExitStatus(unknown="the host was booted since", with_host=True)
            process.children, process.reported_empty = 0, True
            if not ledger_survives and key in self.started:
                self.started.remove(key)
        if not ledger_survives:
            host.ledger.clear()

    def become_silent(self, host: Host, reporting: frozenset[str] = frozenset()) -> None:
        """The coordinator notices that the host does not answer."""
        self.handle(events.HostSilent(host=host.name, for_s=20.0, reporting=reporting))

    # ---- hosts ----

    def obey(self, host: Host) -> None:
        """The agent executes the oldest order."""
        order = host.orders.pop(0)
        key = (order.unit, order.incarnation)  # type: ignore[attr-defined]
        process = host.ledger.get(key)
        match order:
            case do.Spawn(_, unit, incarnation):
                self._spawn(host, unit, incarnation)
            case do.KillTree() if process is None:
                host.reports.append(events.TreeGone(host=host.name, unit=key[0], incarnation=key[1]))
            case do.KillTree():
                process.children = 0
                self.die(host, process, ExitStatus(signal=9))
                host.reports.append(events.TreeGone(host=host.name, unit=key[0], incarnation=key[1]))
            case do.Signal(signal=signal.SIGTERM | signal.SIGABRT) if process is not None:
                self.die(host, process, ExitStatus(signal=order.signal))
            case do.Forget() if process is not None and not process.alive:
                del host.ledger[key]

    def _spawn(self, host: Host, unit: str, incarnation: int) -> None:
        key = (unit, incarnation)
        if key not in host.ledger:
            assert key not in self.started, f"{key} was started a second time"
            self.started.append(key)
            host.ledger[key] = Process(unit, incarnation, None, 0, *self.given[key])
        if host.ledger[key].exit is None:
            host.reports.append(
                events.Spawned(host=host.name, unit=unit, incarnation=incarnation, pid=7, start_ticks=1)
            )

    def die(self, host: Host, process: Process, exit: ExitStatus) -> None:
        if process.exit is None:
            process.exit = exit
            unit, incarnation = process.unit, process.incarnation
            host.reports.append(events.Exited(host=host.name, unit=unit, incarnation=incarnation, exit=exit))

    def sweep(self, host: Host) -> None:
        """The agent kills the processes that outlived their leader."""
        for process in host.ledger.values():
            if process.exit is not None and not process.reported_empty:
                process.children, process.reported_empty = 0, True
                gone = events.TreeGone(host=host.name, unit=process.unit, incarnation=process.incarnation)
                host.reports.append(gone)

    def deliver(self, host: Host) -> None:
        self.handle(host.reports.pop(0))

    # ---- time ----

    def advance(self, by_s: float) -> None:
        """Timers that become due meanwhile fire in order."""
        end = self.now + by_s
        while due := [t for t in self.timers if t[0] <= end]:
            at, unit = min(due)
            self.timers.remove((at, unit))
            self.now = max(self.now, at)
            self.handle(events.TimerFired(unit=unit, at=at))
        self.now = end

    def quiesce(self) -> None:
        """Let every reachable part work correctly from now on. The world must become quiet."""
        for host in self.hosts.values():
            if host.gone:
                self.become_silent(host)
            elif not host.linked:
                self.connect(host)
        for _ in range(400):
            busy = False
            for host in self.hosts.values():
                while host.orders:
                    self.obey(host)
                    busy = True
                self.sweep(host)
                while host.reports:
                    self.deliver(host)
                    busy = True
            for slot in list(self.supervisor.state.slots.values()):
                if slot.state == "starting" and slot.spawned and slot.spec and slot.spec.speaks:
                    self.handle(events.UnitReady(unit=slot.unit, incarnation=slot.incarnation))
                    busy = True
                if slot.state == "suspect" and slot.silent:
                    self.handle(events.UnitReports(unit=slot.unit, incarnation=slot.incarnation))
                    busy = True
            if not busy:
                if not self.timers:
                    return
                self.advance(max(0.0, min(self.timers)[0] - self.now) + 0.001)
        raise AssertionError("the world does not come to rest: " + str(copy.copy(self.supervisor.state.slots)))

    def state_of(self, unit: str) -> str:
        return self.supervisor.state.slots[unit].state.value

    def slot(self, unit: str) -> Slot:
        return self.supervisor.state.slots[unit]


def _check_ranks(slots: list[Slot]) -> None:
    """The places in a gang fit together, as torch's launcher would have set them."""
    ranks = {slot.rank.rank: slot.rank for slot in slots if slot.rank is not None}
    by_host: dict[str, list[Slot]] = {}
    for slot in sorted(slots, key=lambda slot: slot.number):
        by_host.setdefault(slot.host, []).append(slot)
    assert sorted(ranks) == list(range(len(slots))), "all ranks start together"
    assert len({(rank.ranks, rank.port, rank.address, rank.nodes) for rank in ranks.values()}) == 1
    assert (ranks[0].ranks, ranks[0].nodes) == (len(slots), len(by_host))
    for host, there in by_host.items():
        numbers = [slot.rank.rank for slot in there if slot.rank is not None]
        assert numbers == list(range(numbers[0], numbers[0] + len(there))), "the ranks of a host follow each other"
        for local, slot in enumerate(there):
            assert slot.rank is not None
            assert slot.spec is not None
            assert (slot.rank.local_rank, slot.rank.local_ranks) == (local, len(there))
            assert slot.rank.visible == tuple(device for other in there for device in other.devices)
            assert slot.rank.own_address == (slot.spec.private.get(host, "") if len(by_host) > 1 else "")
            assert not slot.spec.ranks_per_host or len(there) <= slot.spec.ranks_per_host
        if numbers[0] == 0:
            assert ranks[0].address == ranks[0].own_address
