"""The faults: kills at any time, kills at named points, and processes that are declared dead while they are frozen.

Invariants:
- The victim is certainly at its named point when it is killed, without hooks in the product. If the point lies between
  two writes, the test freezes the database first (SIGSTOP), so that the victim cannot pass the point, and recognises by
  other signs that it has reached it.
- If a write may already be in the socket of the frozen server, the server is killed too, before it can read it.
- A missed point is tried again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentrl.store.document_ids import within
from tests.chaos import frozen_processes
from tests.chaos.fault_injection import ChaosError, FaultInjector
from tests.chaos.processes import Process, Role, frozen
from tests.chaos.run_under_test import LEADS, RunUnderTest
from tests.chaos.store_reader import Plain

TRIES = 12
COMES_WITHIN_S = 90.0
"""How long one try waits for its point: the next step, the next claim."""
SETTLED_S = 1.5
"""Longer than the trainer takes to report that it trains."""
SHOWN_S = 4.0
"""Calls that take longer than a second are written as open."""
FROZEN_AT_MOST_S = 15.0
"""No process gives up the store within this time."""

CONTROL_PLANE = (Role.COORDINATOR, Role.AGENT)
"""Each of these processes restarts the other."""
Fault = Callable[[FaultInjector], None]


def killed(*roles: Role) -> Fault:
    """Kills a process of each role, all at once."""

    def inject(injector: FaultInjector) -> None:
        if set(CONTROL_PLANE) & set(roles):
            injector.wait_for_recovery(*CONTROL_PLANE)
        for role in roles:
            injector.kill(injector.pick(role))

    return inject


def control_plane_killed(injector: FaultInjector) -> None:
    """Kills coordinator and host agent. Units continue, and a person has to run `up` again."""
    killed(*CONTROL_PLANE)(injector)
    injector.log("  up again")
    injector.run.begin()


def stopped(role: Role, seconds: float) -> Fault:
    """Freezes a process for a while. Its supervisor may thaw it sooner."""

    def inject(injector: FaultInjector) -> None:
        victim = injector.pick(role)
        with frozen(victim):
            injector.log(f"froze {victim} for {seconds:g} s")
            time.sleep(seconds)
        if not victim.alive:
            injector.expect_recovery(victim)

    return inject


# ---- named points of an episode ----


def between_claim_and_first_turn(injector: FaultInjector) -> None:
    """Kills a sampler that has claimed a Record and stored no turn of it."""
    store = injector.run.store
    for _ in _tries(injector):
        claim = _next(injector.run, "Record", {"updateDescription.updatedFields.status": "running"})
        with _frozen_owner(injector.run, claim["owner"]) as sampler:
            if sampler is None:
                continue
            over = {"_id": within(claim["_id"]), "over_at": {"$ne": None}}
            held = {"_id": claim["_id"], "owner": claim["owner"], "status": "running"}
            if store.one("Record", held) and not store.one("DispatchedSamplingTask", over):
                injector.log(f"{claim['_id']} is claimed, without a turn")
                injector.kill(sampler)
                return
    raise ChaosError("no claim without a turn was found")


def during_a_tool_call(role: Role) -> Fault:
    """Kills a process while a tool call is open, because its server is frozen."""

    def inject(injector: FaultInjector) -> None:
        for _ in _tries(injector):
            server = injector.pick(Role.TOOL_SERVER)
            with frozen(server):
                call = _open_call(injector)
                if call is None:
                    continue
                with _frozen_victim(injector.run, role, call, server) as victim:
                    if victim is None or not _is_open(injector.run, call["_id"]):
                        continue
                    injector.log(f"{call['_id']} is {call['status']}, without an answer")
                    injector.kill(victim)
            if role is not Role.TOOL_SERVER and not server.alive:
                injector.expect_recovery(server)
            return
        raise ChaosError("no open tool call was found")

    return inject


def during_a_model_call(injector: FaultInjector) -> None:
    """Kills an engine with an open call. It is frozen until the store shows the call."""
    store = injector.run.store
    for _ in _tries(injector):
        engine = injector.pick(Role.ENGINE)
        with frozen(engine):
            sent = {"engine": engine.incarnation, "status": "sent"}
            if _comes_true(lambda sent=sent: store.count("DispatchedSamplingTask", sent) > 0, SHOWN_S):  # type: ignore[misc]
                injector.log(f"{store.count('DispatchedSamplingTask', sent)} calls wait for {engine.incarnation}")
                injector.kill(engine)
                return
    raise ChaosError("no open model call was found")


# ---- named points of a step ----


def rank_dies_within(phase: str, document: str) -> Fault:
    """Kills one of two ranks in the middle of a phase. Rank 1 is frozen when the store shows that the phase begins, so
    rank 0 waits for it within the phase."""

    def inject(injector: FaultInjector) -> None:
        for _ in _tries(injector):
            waiting, frozen_one = injector.pick(Role.TRAINER, LEADS), injector.pick(Role.TRAINER, "trainer-1")
            with _changes(injector.run, document, {"operationType": "insert"}) as begun, frozen(frozen_one):
                if not _comes_true(lambda: injector.run.unit_row(LEADS).phase == phase, SETTLED_S):
                    injector.log(f"  too late for {begun['_id']}")
                    continue
                time.sleep(SETTLED_S)
                if injector.run.unit_row(LEADS).phase != phase:
                    injector.log(f"  {begun['_id']} does not wait for the frozen rank")
                    continue
                injector.log(f"the ranks are within the {phase} of {begun['_id']}")
                injector.kill(injector.chance.choice([waiting, frozen_one]))
            return
        raise ChaosError(f"no {phase} was caught")

    return inject


def between_lease_and_optimizer(injector: FaultInjector) -> None:
    """Kills a trainer that has leased a Step and waits for the frozen database, before it computes."""
    for _ in _tries(injector):
        trainer, mongod = injector.pick(Role.TRAINER), injector.pick(Role.MONGOD)
        with _changes(injector.run, "Step", {"operationType": "insert"}) as step, frozen(mongod):
            time.sleep(SETTLED_S)
            if _trains(injector.run, step["step"]):
                injector.log(f"  too late for {step['_id']}")
                continue
            injector.log(f"{step['_id']} is leased, its optimizer has not run")
            injector.kill(trainer)
        _never_committed(injector, step)
        return
    raise ChaosError("no step was caught between its lease and the optimizer")


def between_optimizer_and_commit(injector: FaultInjector) -> None:
    """Kills a trainer whose commit waits for the frozen database, which is killed before it can read it."""
    delay_s = 0.02
    for _ in _tries(injector):
        trainer, mongod = injector.pick(Role.TRAINER, LEADS), injector.pick(Role.MONGOD)
        with _changes(injector.run, "Step", {"operationType": "insert"}) as step:
            # During this time the trainer leases its tasks and reads its tokens.
            time.sleep(delay_s)
            with frozen(mongod):
                if not _comes_past_the_optimizer(injector.run, step["step"]):
                    # The database was frozen before the trainer had read everything.
                    injector.log(f"  too early for {step['_id']}")
                    delay_s *= 2
                    continue
                injector.kill(trainer)
                injector.kill(mongod)
        injector.wait_for_recovery()
        if injector.run.store.one("Step", {"_id": step["_id"], "status": {"$in": ["committed", "rolled_back"]}}):
            injector.log(f"  too late for {step['_id']}")
            delay_s *= 0.6
            continue
        injector.log(f"{step['_id']} was trained and not committed")
        _never_committed(injector, step)
        return
    raise ChaosError("no step was caught between the optimizer and its commit")


def between_rename_and_document(injector: FaultInjector) -> None:
    """Kills a trainer between the rename of a checkpoint and the update of its document."""
    for _ in _tries(injector):
        trainer, mongod = injector.pick(Role.TRAINER, LEADS), injector.pick(Role.MONGOD)
        with _changes(injector.run, "Checkpoint", {"operationType": "insert"}) as checkpoint, frozen(mongod):
            target = injector.run.dir / checkpoint["path"]
            if target.exists():
                injector.log(f"  too late for {checkpoint['_id']}")
                continue
            if not _comes_true(target.exists):
                continue
            injector.log(f"{checkpoint['_id']} is renamed, its document says {checkpoint['status']}")
            injector.kill(trainer)
            injector.kill(mongod)
        injector.wait_for_recovery()
        found = injector.run.store.one("Checkpoint", {"_id": checkpoint["_id"]})
        if found is None or found["status"] == "complete":
            raise ChaosError(f"{checkpoint['_id']} should not be complete: {found}")
        return
    raise ChaosError("no checkpoint was caught between its rename and its document")


def _never_committed(injector: FaultInjector, step: Plain) -> None:
    """The next trainer has to release a Step that was not committed."""

    def released() -> bool:
        found = injector.run.store.one("Step", {"_id": step["_id"]})
        if found is not None and found["status"] not in ("leased", "released"):
            raise ChaosError(f"{step['_id']} is {found['status']}, and its trainer died before it could commit it")
        return found is not None and found["status"] == "released"

    injector.until(released, f"{step['_id']} to be released", within_s=COMES_WITHIN_S)


# ---- everything ----

DEATHS: dict[str, Fault] = {f"kill {role}": killed(role) for role in Role}
POINTS: dict[str, Fault] = {
    "between lease and optimizer": between_lease_and_optimizer,
    "between optimizer and commit": between_optimizer_and_commit,
    "between rename and checkpoint document": between_rename_and_document,
    "between claim and first turn": between_claim_and_first_turn,
    "sampler dies in a tool call": during_a_tool_call(Role.SAMPLER),
    "toolbox dies in a tool call": during_a_tool_call(Role.TOOLBOX),
    "tool server dies in a call": during_a_tool_call(Role.TOOL_SERVER),
    "engine dies in a model call": during_a_model_call,
}
RANKS: dict[str, Fault] = {
    "a rank dies in a step": rank_dies_within("step", "Step"),
    "a rank dies in a checkpoint": rank_dies_within("checkpoint", "Checkpoint"),
    "a rank dies in a publication": rank_dies_within("publication", "Publication"),
}
"""Required faults for a trainer of two ranks."""
IN_THEIR_PLACE = (f"kill {Role.TRAINER}", "between lease and optimizer")
"""Required faults for a trainer of one process. They replace those of ranks, in which a rank that dies in a step has
leased the step but not trained it."""
FROZEN: dict[str, Fault] = {
    "a sampler continues after it was declared dead": frozen_processes.sampler,
    "a trainer continues after it was replaced": frozen_processes.trainer,
    "two stewards": frozen_processes.two_stewards,
}
MORE: dict[str, Fault] = {
    "sampler and toolbox at once": killed(Role.SAMPLER, Role.TOOLBOX),
    "mongod and trainer at once": killed(Role.MONGOD, Role.TRAINER),
    "mongod and steward at once": killed(Role.MONGOD, Role.STEWARD),
    "coordinator and agent at once": control_plane_killed,
    "agent and sampler at once": killed(Role.AGENT, Role.SAMPLER),
    "freeze mongod": stopped(Role.MONGOD, 4.0),
    "freeze a tool server": stopped(Role.TOOL_SERVER, 3.0),
    "freeze an engine": stopped(Role.ENGINE, 3.0),
    "freeze the coordinator": stopped(Role.COORDINATOR, 3.0),
    "freeze a sampler": stopped(Role.SAMPLER, 3.0),
}


def required(ranks: int) -> dict[str, Fault]:
    everywhere = DEATHS | POINTS | FROZEN
    if ranks == 1:
        return everywhere
    return RANKS | {name: fault for name, fault in everywhere.items() if name not in IN_THEIR_PLACE}


def all_faults(ranks: int) -> dict[str, Fault]:
    return required(ranks) | DEATHS | POINTS | MORE


# ---- inside ----


def _tries(injector: FaultInjector) -> Iterator[int]:
    """The tries, each after all victims have recovered."""
    for number in range(TRIES):
        injector.wait_for_recovery()
        yield number


@contextmanager
def _changes(run: RunUnderTest, collection: str, match: Plain) -> Iterator[Plain]:
    """The document of the next matching change."""
    with run.store.changes(collection, match) as stream:
        yield _first(stream, collection)


def _next(run: RunUnderTest, collection: str, match: Plain) -> Plain:
    with _changes(run, collection, match) as document:
        return document


def _first(stream: Iterator[Plain | None], collection: str) -> Plain:
    deadline = time.monotonic() + COMES_WITHIN_S
    for change in stream:
        if change is not None and change.get("fullDocument") is not None:
            document: Plain = change["fullDocument"]
            return document
        if time.monotonic() > deadline:
            break
    raise ChaosError(f"nothing happened in {collection} within {COMES_WITHIN_S:g} s")


@contextmanager
def _frozen_owner(run: RunUnderTest, incarnation: str) -> Iterator[Process | None]:
    """The main process of an incarnation, frozen while the body runs."""
    leaders = run.find_processes(None, lambda one: one.incarnation == incarnation and one.role is not Role.TOOL_SERVER)
    if not leaders:
        yield None
        return
    with frozen(leaders[0]):
        yield leaders[0]


@contextmanager
def _frozen_victim(run: RunUnderTest, role: Role, call: Plain, server: Process) -> Iterator[Process | None]:
    match role:
        case Role.TOOL_SERVER:
            yield server
        case Role.TOOLBOX:
            with _frozen_owner(run, server.incarnation) as toolbox:
                yield toolbox
        case _:
            with _frozen_owner(run, call["owner"]) as sampler:
                yield sampler


def _open_call(injector: FaultInjector) -> Plain | None:
    """A tool call that is open while its server is frozen."""
    deadline = time.monotonic() + FROZEN_AT_MOST_S
    while time.monotonic() < deadline:
        for call in _open_calls(injector.run):
            if injector.run.store.one("Record", {"_id": call["record"], "status": "running", "owner": call["owner"]}):
                return call
        time.sleep(0.05)
    return None


def _is_open(run: RunUnderTest, call: str) -> bool:
    return any(one["_id"] == call for one in _open_calls(run))


def _open_calls(run: RunUnderTest) -> list[Plain]:
    under_way = ["requested", "running"]
    found = run.store.tool_calls({"tool_calls.status": {"$in": under_way}})
    return [call for call in found if call["status"] in under_way]


def _comes_true(condition: Callable[[], bool], within_s: float = FROZEN_AT_MOST_S) -> bool:
    """Whether a condition comes true within a time for which the database may be away."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _trains(run: RunUnderTest, step: int) -> bool:
    return f"trains step {step}," in run.unit_row(LEADS).status


def _comes_past_the_optimizer(run: RunUnderTest, step: int) -> bool:
    """Whether the trainer computes the step and then ends its phase."""
    return _comes_true(lambda: _trains(run, step), SETTLED_S) and _comes_true(
        lambda: run.unit_row(LEADS).phase != "step"
    )
