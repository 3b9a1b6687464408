"""All blows that are dealt out: deaths anywhere, deaths at named points, and sleepers who wake up when they were
declared dead.

Invariants: a named point is certain before its victim dies, without any hook inside the product. Where the point lies
between two writes, the database is frozen first (SIGSTOP), so that whoever is to die cannot come past the point; then
the test sees by other signs that it has come up to it. Where a write may lie in the frozen server's socket already, the
server dies as well, before it could read it. A point that was missed is tried again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.chaos import frozen_processes
from tests.chaos.fault_injection import LostError, Storm
from tests.chaos.processes import Process, Role, frozen
from tests.chaos.run_under_test import Arena
from tests.chaos.store_reader import Plain

TRIES = 12
COMES_WITHIN_S = 90.0
"""How long a point is waited for at one try: the next step, the next claim."""
SETTLED_S = 1.5
"""Longer than a unit takes to tell that it has begun to train."""
SHOWN_S = 4.0
"""What is under way for longer than a second is written as such."""
FROZEN_AT_MOST_S = 15.0
"""Nobody gives the store up as soon as that."""

KEEPERS = (Role.COORDINATOR, Role.AGENT)
"""Each restarts the other."""
Blow = Callable[[Storm], None]


def killed(*roles: Role) -> Blow:
    """At any moment; several at the same one."""

    def strike(storm: Storm) -> None:
        if set(KEEPERS) & set(roles):
            storm.calm(*KEEPERS)
        for role in roles:
            storm.kill(storm.anybody(role))

    return strike


def both_keepers_killed(storm: Storm) -> None:
    """Coordinator and host agent at once: everybody works on, and somebody has to take the run up again."""
    killed(*KEEPERS)(storm)
    storm.say("  up again")
    storm.arena.begin()


def stopped(role: Role, seconds: float) -> Blow:
    """Frozen for a while. Its supervisor may thaw it sooner."""

    def strike(storm: Storm) -> None:
        victim = storm.anybody(role)
        with frozen(victim):
            storm.say(f"froze {victim} for {seconds:g} s")
            time.sleep(seconds)
        if not victim.alive:
            storm.expect(victim)

    return strike


# ---- named points of an episode ----


def between_claim_and_first_turn(storm: Storm) -> None:
    """The sampler has claimed a Record and has stored no turn of it."""
    books = storm.arena.books
    for _ in _tries(storm):
        claim = _next(storm.arena, "Record", {"updateDescription.updatedFields.status": "running"})
        with _frozen_owner(storm.arena, claim["owner"]) as sampler:
            if sampler is None:
                continue
            held = {"_id": claim["_id"], "owner": claim["owner"], "status": "running"}
            if books.one("Record", held) and not books.one("Turn", {"record": claim["_id"]}):
                storm.say(f"{claim['_id']} is claimed, without a turn")
                storm.kill(sampler)
                return
    raise LostError("no claim without a turn was met")


def during_a_tool_call(role: Role) -> Blow:
    """The call is requested and not answered: its server is frozen meanwhile."""

    def strike(storm: Storm) -> None:
        for _ in _tries(storm):
            server = storm.anybody(Role.TOOL_SERVER)
            with frozen(server):
                call = _open_call(storm)
                if call is None:
                    continue
                with _frozen_victim(storm.arena, role, call, server) as victim:
                    if victim is None or not _is_open(storm.arena, call["_id"]):
                        continue
                    storm.say(f"{call['_id']} is {call['status']}, without an answer")
                    storm.kill(victim)
            if role is not Role.TOOL_SERVER and not server.alive:
                storm.expect(server)
            return
        raise LostError("no tool call was met under way")

    return strike


def during_a_model_call(storm: Storm) -> None:
    """The engine has a call and has not answered it: it is frozen until the call is known to be under way."""
    books = storm.arena.books
    for _ in _tries(storm):
        engine = storm.anybody(Role.ENGINE)
        with frozen(engine):
            sent = {"engine": engine.incarnation, "status": "sent"}
            if _comes_to(lambda sent=sent: books.count("DispatchedSamplingTask", sent) > 0, SHOWN_S):  # type: ignore[misc]
                storm.say(f"{books.count('DispatchedSamplingTask', sent)} calls wait for {engine.incarnation}")
                storm.kill(engine)
                return
    raise LostError("no model call was met under way")


# ---- named points of a step ----


def between_lease_and_optimizer(storm: Storm) -> None:
    """The Step is leased and its trainer has not begun to compute: its next read waits for the frozen database."""
    for _ in _tries(storm):
        trainer, mongod = storm.anybody(Role.TRAINER), storm.anybody(Role.MONGOD)
        with _changes(storm.arena, "Step", {"operationType": "insert"}) as step, frozen(mongod):
            time.sleep(SETTLED_S)
            if _trains(storm.arena, step["step"]):
                storm.say(f"  too late for {step['_id']}")
                continue
            storm.say(f"{step['_id']} is leased, its optimizer has not run")
            storm.kill(trainer)
        _never_committed(storm, step)
        return
    raise LostError("no step was met between its lease and the optimizer")


def between_optimizer_and_commit(storm: Storm) -> None:
    """The optimizer has run and its commit waits for the frozen database, which dies before it could read it."""
    delay_s = 0.02
    for _ in _tries(storm):
        trainer, mongod = storm.anybody(Role.TRAINER), storm.anybody(Role.MONGOD)
        with _changes(storm.arena, "Step", {"operationType": "insert"}) as step:
            # Its tasks are leased and its tokens are read meanwhile.
            time.sleep(delay_s)
            with frozen(mongod):
                if not _comes_past_the_optimizer(storm.arena, step["step"]):
                    # It did not get all it has to read.
                    storm.say(f"  too early for {step['_id']}")
                    delay_s *= 2
                    continue
                storm.kill(trainer)
                storm.kill(mongod)
        storm.calm()
        if storm.arena.books.one("Step", {"_id": step["_id"], "status": {"$in": ["committed", "rolled_back"]}}):
            storm.say(f"  too late for {step['_id']}")
            delay_s *= 0.6
            continue
        storm.say(f"{step['_id']} was trained and not committed")
        _never_committed(storm, step)
        return
    raise LostError("no step was met between the optimizer and its commit")


def between_rename_and_document(storm: Storm) -> None:
    """The checkpoint has its name and its document does not know: the database is frozen since before the rename."""
    for _ in _tries(storm):
        trainer, mongod = storm.anybody(Role.TRAINER), storm.anybody(Role.MONGOD)
        with _changes(storm.arena, "Checkpoint", {"operationType": "insert"}) as checkpoint, frozen(mongod):
            target = storm.arena.dir / checkpoint["path"]
            if target.exists():
                storm.say(f"  too late for {checkpoint['_id']}")
                continue
            if not _comes_to(target.exists):
                continue
            storm.say(f"{checkpoint['_id']} is renamed, its document says {checkpoint['status']}")
            storm.kill(trainer)
            storm.kill(mongod)
        storm.calm()
        found = storm.arena.books.one("Checkpoint", {"_id": checkpoint["_id"]})
        if found is None or found["status"] == "complete":
            raise LostError(f"{checkpoint['_id']} should not be complete: {found}")
        return
    raise LostError("no checkpoint was met between its rename and its document")


def _never_committed(storm: Storm, step: Plain) -> None:
    """What died before its commit has to be released by whoever comes next."""

    def released() -> bool:
        found = storm.arena.books.one("Step", {"_id": step["_id"]})
        if found is not None and found["status"] not in ("leased", "released"):
            raise LostError(f"{step['_id']} is {found['status']}, and its trainer died before it could commit it")
        return found is not None and found["status"] == "released"

    storm.until(released, f"{step['_id']} to be released", within_s=COMES_WITHIN_S)


# ---- everything ----

DEATHS: dict[str, Blow] = {f"kill {role}": killed(role) for role in Role}
POINTS: dict[str, Blow] = {
    "between lease and optimizer": between_lease_and_optimizer,
    "between optimizer and commit": between_optimizer_and_commit,
    "between rename and checkpoint document": between_rename_and_document,
    "between claim and first turn": between_claim_and_first_turn,
    "sampler dies in a tool call": during_a_tool_call(Role.SAMPLER),
    "toolbox dies in a tool call": during_a_tool_call(Role.TOOLBOX),
    "tool server dies in a call": during_a_tool_call(Role.TOOL_SERVER),
    "engine dies in a model call": during_a_model_call,
}
SLEEPERS: dict[str, Blow] = {
    "a sampler wakes up after it was declared dead": frozen_processes.sampler,
    "a trainer wakes up after it was replaced": frozen_processes.trainer,
    "two stewards": frozen_processes.two_stewards,
}
MORE: dict[str, Blow] = {
    "sampler and toolbox at once": killed(Role.SAMPLER, Role.TOOLBOX),
    "mongod and trainer at once": killed(Role.MONGOD, Role.TRAINER),
    "mongod and steward at once": killed(Role.MONGOD, Role.STEWARD),
    "coordinator and agent at once": both_keepers_killed,
    "agent and sampler at once": killed(Role.AGENT, Role.SAMPLER),
    "freeze mongod": stopped(Role.MONGOD, 4.0),
    "freeze a tool server": stopped(Role.TOOL_SERVER, 3.0),
    "freeze an engine": stopped(Role.ENGINE, 3.0),
    "freeze the coordinator": stopped(Role.COORDINATOR, 3.0),
    "freeze a sampler": stopped(Role.SAMPLER, 3.0),
}
REQUIRED = DEATHS | POINTS | SLEEPERS
ALL = REQUIRED | MORE


# ---- inside ----


def _tries(storm: Storm) -> Iterator[int]:
    """As often as it takes, always with everybody there."""
    for number in range(TRIES):
        storm.calm()
        yield number


@contextmanager
def _changes(arena: Arena, collection: str, match: Plain) -> Iterator[Plain]:
    """The document of the next change that fits."""
    with arena.books.changes(collection, match) as stream:
        yield _first(stream, collection)


def _next(arena: Arena, collection: str, match: Plain) -> Plain:
    with _changes(arena, collection, match) as document:
        return document


def _first(stream: Iterator[Plain | None], collection: str) -> Plain:
    deadline = time.monotonic() + COMES_WITHIN_S
    for change in stream:
        if change is not None and change.get("fullDocument") is not None:
            document: Plain = change["fullDocument"]
            return document
        if time.monotonic() > deadline:
            break
    raise LostError(f"nothing happened in {collection} within {COMES_WITHIN_S:g} s")


@contextmanager
def _frozen_owner(arena: Arena, incarnation: str) -> Iterator[Process | None]:
    """The leader of this incarnation, which does nothing while the body runs."""
    leaders = arena.who(None, lambda one: one.incarnation == incarnation and one.role is not Role.TOOL_SERVER)
    if not leaders:
        yield None
        return
    with frozen(leaders[0]):
        yield leaders[0]


@contextmanager
def _frozen_victim(arena: Arena, role: Role, call: Plain, server: Process) -> Iterator[Process | None]:
    match role:
        case Role.TOOL_SERVER:
            yield server
        case Role.TOOLBOX:
            with _frozen_owner(arena, server.incarnation) as toolbox:
                yield toolbox
        case _:
            with _frozen_owner(arena, call["owner"]) as sampler:
                yield sampler


def _open_call(storm: Storm) -> Plain | None:
    """A tool call that is under way while its server stands still."""
    deadline = time.monotonic() + FROZEN_AT_MOST_S
    while time.monotonic() < deadline:
        for call in storm.arena.books.find("ToolCall", {"status": {"$in": ["requested", "running"]}}):
            if storm.arena.books.one("Record", {"_id": call["record"], "status": "running", "owner": call["owner"]}):
                return call
        time.sleep(0.05)
    return None


def _is_open(arena: Arena, call: str) -> bool:
    return arena.books.one("ToolCall", {"_id": call, "status": {"$in": ["requested", "running"]}}) is not None


def _comes_to(condition: Callable[[], bool], within_s: float = FROZEN_AT_MOST_S) -> bool:
    """Within a time for which the database can be away."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _trains(arena: Arena, step: int) -> bool:
    return f"trains step {step}," in arena.unit_row("trainer-0").status


def _comes_past_the_optimizer(arena: Arena, step: int) -> bool:
    """It computes, or has computed; and then its phase is over."""
    return _comes_to(lambda: _trains(arena, step), SETTLED_S) and _comes_to(
        lambda: arena.unit_row("trainer-0").phase != "step"
    )
