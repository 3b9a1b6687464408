"""After `up --read-only`, only the store and its readers run."""

from __future__ import annotations

import msgspec

from agentrl.protocol.messages import ExitStatus
from agentrl.protocol.specs import GroupSpec, Life, Role
from agentrl.supervision import events
from tests.supervision.world import World, spec

MONGO = msgspec.structs.replace(spec("mongo", speaks=True, stop_rank=100), role=Role.MONGO)
STEWARD = msgspec.structs.replace(spec("steward", speaks=True, after=("mongo",)), role=Role.STEWARD)
ANSWERS = msgspec.structs.replace(STEWARD, command=("true", "--read-only"))
SAMPLER = msgspec.structs.replace(spec("sampler", speaks=True), role=Role.SAMPLER)
TRAINER = msgspec.structs.replace(spec("trainer", speaks=True, life=Life.JOB), role=Role.TRAINER)
WHOLE = (MONGO, STEWARD, SAMPLER, TRAINER)
READ = (MONGO, ANSWERS, SAMPLER, TRAINER)


def states(world: World) -> dict[str, str]:
    return {unit: slot.state.value for unit, slot in world.supervisor.state.slots.items()}


def apply(world: World, specs: tuple[GroupSpec, ...], *, reading: bool = False) -> None:
    plan = world.supervisor.plan(specs, reading=reading)
    before = {unit: slot.incarnation for unit, slot in world.supervisor.state.slots.items()}
    world.handle(events.Applied(specs=specs, by="up", reading=reading))
    assert world.supervisor.plan(specs, reading=reading).empty, "a plan applied to its own result is empty"
    world.quiesce()
    after = {unit: slot.incarnation for unit, slot in world.supervisor.state.slots.items()}
    assert {unit for unit in after if after[unit] > before.get(unit, 0)} == {*plan.started, *plan.changed}


def a_run_that_ended() -> World:
    """A run that was scaled to three samplers, completed its training, and was taken down."""
    world = World(hosts=("a",))
    apply(world, WHOLE)
    world.handle(events.Scaled(group="sampler", count=3, by="somebody"))
    world.quiesce()
    (trainer,) = (process for process in world.hosts["a"].live() if process.unit == "trainer-0")
    world.die(world.hosts["a"], trainer, ExitStatus(code=0))
    world.quiesce()
    world.handle(events.DownWanted(by="down"))
    world.quiesce()
    assert set(states(world).values()) == {"stopped"}
    return world


def test_only_the_store_and_its_readers_start() -> None:
    world = a_run_that_ended()
    apply(world, READ, reading=True)
    up = {"mongo-0": "ready", "steward-0": "ready"}
    others = dict.fromkeys(("sampler-0", "sampler-1", "sampler-2", "trainer-0"), "stopped")
    assert states(world) == up | others
    assert world.slot("trainer-0").done, "a completed job stays completed"
    world.handle(events.RestartWanted(units=("sampler-0", "trainer-0"), by="somebody"))
    world.quiesce()
    assert states(world) == up | others, "no other command starts a unit"
    world.handle(events.DownWanted(by="down"))
    world.quiesce()
    assert set(states(world).values()) == {"stopped"}


def test_full_up_after_a_read_only_up_starts_the_whole_run_unchanged() -> None:
    world = a_run_that_ended()
    apply(world, READ, reading=True)
    mongo = world.slot("mongo-0").incarnation
    apply(world, WHOLE)
    assert set(states(world).values()) == {"ready"}
    assert {"sampler-0", "sampler-1", "sampler-2"} < set(states(world)), "the number that was scaled to stays"
    assert world.slot("mongo-0").incarnation == mongo, "the store is kept"
    assert world.slot("steward-0").spec == STEWARD, "the steward does its housekeeping again"
