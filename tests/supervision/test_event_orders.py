"""The invariants of the supervisor hold for any order of events."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentrl.protocol.messages import Device, DeviceUse, ExitStatus, ProcessInfo
from agentrl.protocol.specs import Resources, Role
from agentrl.supervision import events
from agentrl.supervision.unit_slots import WITH_PROCESS, HostState
from tests.supervision.world import DATA_HOST, Host, World, spec

DB = msgspec.structs.replace(spec("db", 1, stop_rank=100, speaks=True), role=Role.MONGO)
PRIVATE = {host: f"10.0.0.{number}" for number, host in enumerate("abc")}
CONFIGS = (
    (spec("web", 2), spec("cell", 1, speaks=True, fenced=True)),
    (spec("web", 1), spec("cell", 2, speaks=True, fenced=True), DB),
    (spec("web", 2, env={"A": "1"}, after=("db",)), DB),
    (spec("ranks", 3, gang=True, speaks=True), spec("once", 1, life="job")),
    (
        spec("pod", 2, gang=True, speaks=True, fenced=True, ranks_per_host=1, private=PRIVATE),
        spec("wide", 4, gang=True, life="job", private=PRIVATE, resources=Resources(gpus=1)),
    ),
    (
        spec("pod", 2, gang=True, speaks=True, fenced=True, ranks_per_host=2, private=PRIVATE),
        spec("wide", 2, gang=True, life="job", private=PRIVATE, resources=Resources(gpus=1), after=("db",)),
        DB,
    ),
    (
        spec("pair", 2, resources=Resources(gpus=2)),
        spec("half", 3, speaks=True, fenced=True, resources=Resources(gpus=0.5)),
    ),
    (spec("web", 1, resources=Resources(cpus=0.1)), spec("full", 4, resources=Resources(cpus=63.95)), DB),
)
EXITS = (
    *tuple(ExitStatus(code=c) for c in (0, 1, 75, 78)),
    ExitStatus(signal=9),
    ExitStatus(signal=9, oom=True),
    ExitStatus(unknown="no agent saw it"),
)
hosts = st.sampled_from(("a", "b", "c"))
"""`c` joins late; before that its faults are those of `b`."""
dice = st.floats(0, 0.999)


class AnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(devices=tuple(Device(str(n), str(n), "cuda") for n in range(3)))
        self.operation = 0
        self.config = 0
        self.promised: dict[str, int] = {}
        """The units that the last `up` starts or changes, each with the incarnation that it must exceed."""

    def host(self, name: str) -> Host:
        return self.world.hosts.get(name) or self.world.hosts["b"]

    def by(self) -> str:
        self.operation += 1
        return f"op{self.operation}"

    def units(self) -> list[str]:
        return sorted(u for u, s in self.world.supervisor.state.slots.items() if s.wanted)

    # ---- operators ----

    @rule(which=st.integers(0, len(CONFIGS) - 1))
    def up(self, which: int) -> None:
        self.config = which
        plan = self.world.supervisor.plan(CONFIGS[which])
        before = {unit: slot.incarnation for unit, slot in self.world.supervisor.state.slots.items()}
        self.world.handle(events.Applied(specs=CONFIGS[which], by=self.by()))
        assert self.world.supervisor.plan(CONFIGS[which]).empty, "a plan applied to its own result is empty"
        self.promised = {unit: before.get(unit, 0) for unit in (*plan.started, *plan.changed)}

    @precondition(lambda self: self.world.supervisor.state.run.up)
    @rule()
    def up_again(self) -> None:
        self.world.handle(events.Applied(specs=CONFIGS[self.config], by=self.by()))
        again = self.world.handle(events.Applied(specs=CONFIGS[self.config], by=self.by()))
        acts = [i for i in again if type(i).__name__ in ("Spawn", "Signal", "KillTree", "SendToUnit", "StartTimer")]
        assert not acts, f"up twice differs from up once: {acts}"

    @precondition(lambda self: not self.world.supervisor.state.run.up or self.world.supervisor.state.run.reading)
    @rule()
    def up_to_be_read(self) -> None:
        specs = CONFIGS[self.config]
        self.world.handle(events.Applied(specs=specs, by=self.by(), reading=True))
        assert self.world.supervisor.plan(specs, reading=True).empty, "a plan applied to its own result is empty"
        self.promised = {}

    @rule(now=st.booleans())
    def down(self, now: bool) -> None:
        self.world.handle(events.DownWanted(by=self.by(), at_once=now))

    @rule(data=st.data(), count=st.integers(0, 4))
    def scale(self, data: st.DataObject, count: int) -> None:
        groups = [g for g, s in self.world.supervisor.state.groups.items() if not s.removed]
        if groups:
            group = data.draw(st.sampled_from(groups))
            self.world.handle(events.Scaled(group=group, count=count, by=self.by()))

    @precondition(lambda self: self.units())
    @rule(data=st.data(), now=st.booleans(), act=st.sampled_from(("stop", "restart", "drain", "cancel", "confirm")))
    def order(self, data: st.DataObject, now: bool, act: str) -> None:
        unit = data.draw(st.sampled_from(self.units()))
        match act:
            case "stop":
                self.world.handle(events.StopWanted(unit=unit, by=self.by(), because="stopped", now=now))
            case "drain":
                self.world.handle(events.StopWanted(unit=unit, by=self.by(), because="drained", patient=True))
            case "cancel":
                self.world.handle(events.DrainCancelled(unit=unit, by=self.by()))
            case "restart":
                self.world.handle(events.RestartWanted(units=(unit,), by=self.by(), at_once=now))
            case "confirm":
                slot = self.world.slot(unit)
                # An operator confirms a death only if the process is dead.
                process = self.world.hosts[slot.host].ledger.get((unit, slot.incarnation)) if slot.host else None
                if process is not None and slot.state == "lost":
                    process.exit, process.children = ExitStatus(signal=9), 0
                    self.world.handle(events.DeathConfirmed(unit=unit, incarnation=slot.incarnation, by=self.by()))

    @rule(host=hosts, draining=st.booleans())
    def drain_host(self, host: str, draining: bool) -> None:
        self.world.handle(events.HostDrained(host=self.host(host).name, by=self.by(), draining=draining))

    @rule(host=hosts, within_s=st.sampled_from((0.0, 30.0, 900.0)))
    def leave(self, host: str, within_s: float) -> None:
        until = self.world.now + within_s
        self.world.handle(events.HostLeaving(host=self.host(host).name, until=until, why="evicted"))

    # ---- faults ----

    @rule(host=hosts, data=st.data(), exit=st.sampled_from(EXITS), children=st.integers(0, 1))
    def die(self, host: str, data: st.DataObject, exit: ExitStatus, children: int) -> None:
        running = [p for p in self.host(host).ledger.values() if p.exit is None]
        if running:
            process = data.draw(st.sampled_from(running))
            process.children = children
            self.world.die(self.host(host), process, exit)

    @precondition(lambda self: self.units())
    @rule(data=st.data())
    def deaths_age(self, data: st.DataObject) -> None:
        self.world.handle(events.DeathsAged(unit=data.draw(st.sampled_from(self.units()))))

    @rule(keep=st.integers(0, 2))
    def retired_age(self, keep: int) -> None:
        self.world.handle(events.RetiredAged(keep=keep))

    @rule(host=hosts, reporting=st.booleans())
    def cut(self, host: str, reporting: bool) -> None:
        """The host agent is silent; the heartbeats of the units there may still arrive."""
        if self.host(host).linked:
            self.world.cut(self.host(host))
            slots = self.world.supervisor.state.slots.values()
            speak = frozenset(s.unit for s in slots if s.host == host and s.spec is not None and s.spec.speaks)
            self.world.become_silent(self.host(host), speak if reporting else frozenset())

    @rule(host=hosts)
    def blink(self, host: str) -> None:
        """A link that breaks and returns before the coordinator notices."""
        if not self.host(host).gone:
            self.world.cut(self.host(host))
            self.world.connect(self.host(host))

    @rule(host=hosts, ledger_survives=st.booleans(), then=st.sampled_from(("back", "silent", "gone")))
    def power_loss(self, host: str, ledger_survives: bool, then: str) -> None:
        """The host is back before the coordinator notices, later, or never."""
        lost = self.host(host)
        self.world.lose_power(lost, ledger_survives=ledger_survives)
        if lost.gone or then == "gone":
            lost.gone = True
        elif then == "back":
            self.world.connect(lost)
        else:
            self.world.become_silent(lost)

    @rule(host=hosts)
    def machine_is_taken_away(self, host: str) -> None:
        """Its placement promises that everything on it has ended; another machine may come."""
        lost = self.host(host)
        if lost.name == self.world.supervisor.state.data_host:
            return
        self.world.lose_power(lost, ledger_survives=False)
        self.world.become_silent(lost)
        self.world.handle(events.HostForgotten(host=lost.name, gone="preempted"))
        self.world.handle(events.HostAwaited(host=lost.name, why="waits in the queue"))
        state = self.world.supervisor.state
        assert not state.holds_units(lost.name)
        assert lost.name not in state.hosts

    @rule(host=hosts, device=st.sampled_from("012"), there=st.booleans())
    def another_process_computes(self, host: str, device: str, there: bool) -> None:
        use = DeviceUse(device, processes=(ProcessInfo(4711, "elsewhere"),) if there else ())
        self.world.handle(events.DevicesHeld(host=self.host(host).name, devices=(use,)))

    @precondition(lambda self: "c" not in self.world.hosts)
    @rule()
    def third_host_joins(self) -> None:
        self.world.join("c")

    @rule(host=hosts, copied=st.booleans())
    def second_machine_with_the_name_is_refused(self, host: str, copied: bool) -> None:
        known = self.host(host)
        connected = self.world.supervisor.state.hosts.get(known.name, HostState("", connected=False)).connected
        if copied and not connected:
            return  # this also happens when the same machine has rebooted
        before = msgspec.msgpack.encode(self.world.supervisor.state.slots)
        machine = Host(known.name, key=known.key if copied else "another", boot_id="another")
        assert self.world.second_machine(machine) is not None
        assert msgspec.msgpack.encode(self.world.supervisor.state.slots) == before

    @rule(after=st.integers(0, 8), host=hosts, hosts_connect=st.booleans(), jump_s=st.sampled_from((0, 3600, -3600)))
    def crash(self, after: int, host: str, hosts_connect: bool, jump_s: float) -> None:
        """The coordinator dies while it executes its instructions. The clock may be set until the next one starts, and
        the hosts may connect later.
        """
        reports = self.host(host).reports
        event = reports.pop(0) if reports else events.TimerFired(unit="nobody-0", at=0.0)
        self.world.carry_out(self.world.supervisor.handle(event, self.world.now)[:after])
        self.world.crash(hosts_connect=hosts_connect, clock_jumps_s=jump_s)

    @precondition(lambda self: self.units())
    @rule(data=st.data(), what=st.sampled_from(("ready", "suspect", "reports", "hung", "stop", "cont", "sick", "bye")))
    def unit_says(self, data: st.DataObject, what: str) -> None:
        slot = self.world.slot(data.draw(st.sampled_from(self.units())))
        if slot.state not in WITH_PROCESS or not slot.spawned:
            return
        who = {"unit": slot.unit, "incarnation": slot.incarnation}
        said = {
            "ready": lambda: events.UnitReady(**who),
            "suspect": lambda: events.UnitSuspect(**who, because="silent"),
            "reports": lambda: events.UnitReports(**who),
            "hung": lambda: events.UnitHung(**who, because="stands still"),
            "stop": lambda: events.ProcessStopped(**who, host=slot.host, stopped=True),
            "cont": lambda: events.ProcessStopped(**who, host=slot.host, stopped=False),
            "sick": lambda: events.ProbeChanged(**who, host=slot.host, kind="live", ok=False),
            "bye": lambda: events.UnitBye(**who, code=75),
        }
        self.world.handle(said[what]())

    @precondition(lambda self: self.units())
    @rule(data=st.data(), what=st.sampled_from(("spawned", "failed", "exited", "gone", "ready", "stop")))
    def another_host_reports(self, data: st.DataObject, what: str) -> None:
        slot = self.world.slot(data.draw(st.sampled_from(self.units())))
        who = {"host": "stranger", "unit": slot.unit, "incarnation": slot.incarnation}
        report = {
            "spawned": lambda: events.Spawned(**who, pid=8, start_ticks=2),
            "failed": lambda: events.SpawnFailed(**who, reason="no such program", final=True),
            "exited": lambda: events.Exited(**who, exit=ExitStatus(code=78)),
            "gone": lambda: events.TreeGone(**who),
            "ready": lambda: events.ProbeChanged(**who, kind="ready", ok=True),
            "stop": lambda: events.ProcessStopped(**who, stopped=True),
        }[what]()
        before = msgspec.msgpack.encode(slot)
        self.world.handle(report)
        assert msgspec.msgpack.encode(slot) == before, f"{what} of a host without {slot.unit} changed it"

    # ---- time and messages ----

    @rule(host=hosts, n=st.integers(1, 5))
    def obey(self, host: str, n: int) -> None:
        for _ in range(min(n, len(self.host(host).orders))):
            self.world.obey(self.host(host))

    @rule(host=hosts, n=st.integers(1, 5))
    def deliver(self, host: str, n: int) -> None:
        for _ in range(min(n, len(self.host(host).reports))):
            self.world.deliver(self.host(host))

    @rule(host=hosts)
    def sweep(self, host: str) -> None:
        if self.host(host).linked:
            self.world.sweep(self.host(host))

    @rule(by=st.sampled_from((0.1, 1.0, 7.0, 70.0, 4000.0)))
    def pass_time(self, by: float) -> None:
        self.world.advance(by)

    # ---- invariants ----

    @invariant()
    def no_device_is_given_twice(self) -> None:
        for host in self.world.hosts.values():
            used: dict[str, float] = {}
            for process in host.live():
                for device in process.devices:
                    used[device] = used.get(device, 0.0) + process.share
            assert all(share <= 1 for share in used.values()), f"{host.name}: {used}"

    @invariant()
    def database_runs_only_on_the_host_with_its_data(self) -> None:
        elsewhere = [host for name, host in self.world.hosts.items() if name != DATA_HOST]
        assert not [unit for host in elsewhere for unit, _ in host.ledger if unit.startswith("db-")]

    def teardown(self) -> None:
        self.world.quiesce()
        gone = {host.name for host in self.world.hosts.values() if host.gone}
        for slot in self.world.supervisor.state.slots.values():
            wanted = self.world.supervisor.runs(slot.unit)
            assert not (wanted and self.world.supervisor.state.run.reading) or slot.group == "db"
            if wanted and slot.state == "ready":
                assert slot.incarnation > self.promised.get(slot.unit, 0), f"{slot.unit} was promised another life"
            settled = {"ready", "fatal", "stopped", "pending"} if wanted else {"stopped"}
            fenced = slot.spec is not None and slot.spec.fenced
            if slot.host in gone and not (fenced and wanted):
                settled |= {"lost"}
            assert slot.state in settled, f"{slot.unit} ends as {slot.state} ({slot.reason}); {slot.story}"
            if wanted and slot.state == "pending":
                assert "gang is broken" in slot.reason or "host" in slot.reason or "waits for" in slot.reason
            assert slot.tree_gone or not fenced or not wanted or slot.host not in gone, f"{slot.name} is waited for"
        living = {(p.unit, p.incarnation) for h in self.world.hosts.values() for p in h.live()}
        slots = [s for s in self.world.supervisor.state.slots.values() if s.host not in gone]
        known = {(s.unit, s.incarnation) for s in slots if s.state in WITH_PROCESS}
        assert living == known, f"alive {living}, known {known}"
        ends = self.world.all_stopped
        self.world.handle(events.DownWanted(by=self.by(), at_once=True))
        self.world.quiesce()
        assert self.world.all_stopped > ends, "`down` ends, also if a host never comes back"
        super().teardown()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))
