"""The backend `ray`: a placement group whose bundles are hosts; an actor in each bundle carries the host agent.

Group and actors are detached, so they outlive the process that made them. If an actor dies, Ray starts it again, on
another node if its node is gone; the next `ensure` then starts the agent there. An agent whose actor has ended leaves
in order, so that no unit of the run works where Ray counts the bundle as free.

Invariants:
- A bundle is one host. All bundles of one `ensure` are reserved together or not at all.
- The key of a host goes to its actor in a call, never in the arguments that Ray keeps to start the actor again.
- A node that Ray or its autoscaler has ended is GONE. One that Ray has lost is LOST for `lost_s`, in which an agent
  that still lives there notices that its actor has ended, and leaves; then it is GONE, and its host starts elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from agentrl.config.placement import Ray
from agentrl.errors import AgentrlError, ConfigError, NotProvenError, UnavailableError
from agentrl.placement import HostRemains, HostRequest, Placed, PlacedRun, State
from agentrl.placement.arrival import Order
from agentrl.placement.notes import Notes
from agentrl.placement.remote_python import arrival_command, read_arrived

_ROOM_WITHIN_S = 10.0
"""How long `ensure` waits for a group that has no room yet; the next one finds it."""
_LOOK_WITHIN_S = 20.0
_CONNECT_WITHIN_S = 5.0
_EXPECTED, _PREEMPTED, _IDLE = 1, 3, 4
_ENDED_ON_PURPOSE = (_EXPECTED, _PREEMPTED, _IDLE)
"""Ray's reasons for the death of a node that prove that its machine runs nothing any more."""


class RayNote(msgspec.Struct, frozen=True):
    group: str
    """The name of the placement group."""
    bundle: int
    run: str
    state_dir: str = ""
    node: str = ""
    """The node on which the agent was started; empty before that."""
    lost_at: float = 0.0
    """When it was first seen that Ray has lost that node; 0 if the node is alive."""


class RayPlacement:
    def __init__(self, settings: Ray, run: PlacedRun) -> None:
        self._settings = settings
        self._namespace = f"agentrl-{run.uuid}"
        self._notes = Notes(run.state_dir, "ray", RayNote)

    def ensure(self, wanted: Sequence[HostRequest]) -> tuple[Placed, ...]:
        # Two starts at once must not reserve two groups.
        with self._notes.locked("ensure"), self._cluster() as ray:
            nodes = {node["NodeID"]: node for node in ray.nodes()}
            notes = self._notes.all()
            away = [placed for one in wanted if (placed := self._take_out(nodes, one.host, notes.get(one.host)))]
            there = [one for one in wanted if one.host not in {placed.host for placed in away}]
            self._reserve(ray, there)
            return (*away, *_on_all(lambda one: self._ensure(ray, one), there))

    def describe(self) -> tuple[Placed, ...]:
        notes = sorted(self._notes.all().items())
        if not notes:
            return ()
        with self._cluster() as ray:
            nodes = {node["NodeID"]: node for node in ray.nodes()}
            return tuple(_on_all(lambda noted: self._look(ray, nodes, *noted), notes))

    def release(self, hosts: Sequence[str]) -> None:
        notes = self._notes.all()
        mine = [(host, notes[host]) for host in hosts if host in notes]
        if not mine:
            return
        with self._cluster() as ray:
            problems = [problem for problem in _on_all(lambda noted: self._end(ray, *noted), mine) if problem]
            left = {note.group for note in self._notes.all().values()}
            for group in {note.group for _, note in mine} - left:
                self._remove_group(ray, group)
        if problems:
            raise NotProvenError(" ".join(problems))

    def clear(self, left: HostRemains) -> str:
        return "its node has been given back to Ray"

    @contextlib.contextmanager
    def _cluster(self) -> Iterator[Any]:
        """The module `ray`, connected. Nothing that Ray prints gets into the answer of this process."""
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError:
            raise ConfigError("The placement ray needs Ray.", hint="pip install 'agentrl[ray]'") from None
        with contextlib.redirect_stdout(sys.stderr):
            try:
                _reach(self._settings.address)
                ray.init(
                    address=self._settings.address,
                    namespace=self._namespace,
                    log_to_driver=False,
                    logging_level="ERROR",
                    configure_logging=False,
                )
            except (OSError, RuntimeError, ValueError) as failed:
                raise UnavailableError(
                    f"The Ray cluster at {self._settings.address} does not answer: {_first_line(failed)}",
                    hint="The coordinator runs on a node of it, or placement.ray.address is ray://HOST:10001.",
                ) from failed
            try:
                yield ray
            finally:
                ray.shutdown()

    # ---- reserving ----

    def _reserve(self, ray: Any, wanted: Sequence[HostRequest]) -> None:
        """Make the actors that do not exist: in their bundle if its group exists, otherwise in a new group."""
        notes, fresh = self._notes.all(), []
        for one in wanted:
            note = notes.get(one.host)
            if note is not None and _actor(ray, one.host) is not None:
                continue
            group = _group(ray, note.group) if note is not None else None
            if note is not None and group is not None:
                self._make_actor(ray, one.host, group, note.bundle)
            else:
                fresh.append(one)
        if not fresh:
            return
        name = f"{self._namespace}-{uuid.uuid4().hex[:8]}"
        bundles = [self._bundle(one.host) for one in fresh]
        made = ray.util.placement_group(bundles, strategy=self._settings.strategy, name=name, lifetime="detached")
        # Noted first, so that `release` finds everything even if this process dies here.
        self._notes.update({one.host: RayNote(name, at, one.invitation.run) for at, one in enumerate(fresh)})
        for at, one in enumerate(fresh):
            self._make_actor(ray, one.host, made, at)
        made.wait(_ROOM_WITHIN_S)

    def _bundle(self, host: str) -> dict[str, float]:
        own = self._settings.of(host)
        plain = {"CPU": own.cpus, "GPU": own.gpus, **own.resources}
        return {name: amount for name, amount in plain.items() if amount} or {"CPU": 0.001}

    def _make_actor(self, ray: Any, host: str, group: Any, bundle: int) -> None:
        own = self._settings.of(host)
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=bundle
        )
        ray.remote(carrier_class()).options(
            name=host,
            namespace=self._namespace,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_concurrency=4,
            num_cpus=own.cpus,
            num_gpus=own.gpus,
            resources=dict(own.resources),
            scheduling_strategy=strategy,
        ).remote()

    # ---- agents ----

    def _ensure(self, ray: Any, one: HostRequest) -> Placed:
        note = self._notes.all()[one.host]
        if waits := self._waits(ray, one.host, note):
            return waits
        leaves = msgspec.structs.replace(one.invitation, leave_within_s=self._settings.drain_s)
        try:
            placed, node, state_dir = self._act(ray, one.host, Order(invitation=leaves), self._settings.start_s)
        except AgentrlError as failed:
            return Placed(one.host, State.LOST, note.group, failed.message, failed.hint)
        self._notes.update({one.host: msgspec.structs.replace(note, node=node, state_dir=state_dir, lost_at=0.0)})
        return placed

    def _take_out(self, nodes: Mapping[str, Any], host: str, note: RayNote | None) -> Placed | None:
        """The answer if the node of the agent is dead. After an answer of GONE, the next `ensure` starts another
        agent."""
        placed = None if note is None else self._dead(nodes, host, note, time.time())
        if note is None or placed is None:
            return None
        if placed.state is State.GONE:
            self._notes.update({host: msgspec.structs.replace(note, node="", lost_at=0.0)})
        elif not note.lost_at:
            self._notes.update({host: msgspec.structs.replace(note, lost_at=time.time())})
        return placed

    def _dead(self, nodes: Mapping[str, Any], host: str, note: RayNote, now: float) -> Placed | None:
        """None if the node of the agent is alive, or if the agent has no node yet."""
        dead = nodes.get(note.node, {})
        if not note.node or dead.get("Alive"):
            return None
        why = str(dead.get("DeathReasonMessage") or "").strip().rstrip(".") or "Ray has lost it"
        left_s = self._settings.lost_s - (now - (note.lost_at or now))
        if dead.get("DeathReason") in _ENDED_ON_PURPOSE or left_s <= 0:
            return Placed(host, State.GONE, _where(note.node, dead), f"its node is gone: {why[:200]}.")
        waits = f"its node is lost, and counts as gone in {left_s:.0f} s: {why[:200]}."
        return Placed(host, State.LOST, _where(note.node, dead), waits)

    def _look(self, ray: Any, nodes: Mapping[str, Any], host: str, note: RayNote) -> Placed:
        if placed := self._dead(nodes, host, note, time.time()):
            return placed
        if waits := self._waits(ray, host, note):
            return waits
        order = Order("look", host=host, run=note.run, state_dir=note.state_dir)
        try:
            placed, node, _ = self._act(ray, host, order, _LOOK_WITHIN_S)
        except AgentrlError as failed:
            where = _where(note.node, nodes.get(note.node, {}))
            return Placed(host, State.LOST, where, failed.message, failed.hint)
        if not placed.alive and note.node and node != note.node:
            return msgspec.structs.replace(placed, why="Ray has moved its actor to another node.")
        return placed

    def _waits(self, ray: Any, host: str, note: RayNote) -> Placed | None:
        """The answer if the bundle has no room, or its actor does not exist."""
        group = _group(ray, note.group)
        if group is None or _actor(ray, host) is None:
            return Placed(host, State.LOST, note.group, "its actor has ended.")
        if ray.util.placement_group_table(group)["state"] == "CREATED":
            return None
        needs = ", ".join(f"{name} {amount:g}" for name, amount in self._bundle(host).items())
        why = f"Ray has no room for its group yet; this host needs {needs} on a node."
        return Placed(host, State.STARTING, note.group, why, "`ray status` shows what is free.")

    def _end(self, ray: Any, host: str, note: RayNote) -> str:
        """What may be left, as a sentence; empty if nothing is."""
        actor = _actor(ray, host)
        if note.node:
            order = Order("end", host=host, run=note.run, state_dir=note.state_dir)
            try:
                if actor is None:
                    raise UnavailableError(f"Host {host}: its actor has ended, so it cannot be searched.")
                _, node, _ = self._act(ray, host, order, self._settings.start_s)
                if node != note.node:
                    raise UnavailableError(f"Host {host} was on node {note.node[:8]}, which Ray has lost.")
            except AgentrlError as failed:
                return str(failed)
        if actor is not None:
            ray.kill(actor, no_restart=True)
        self._notes.update({host: None})
        return ""

    def _remove_group(self, ray: Any, name: str) -> None:
        if (group := _group(ray, name)) is not None:
            ray.util.remove_placement_group(group)

    def _act(self, ray: Any, host: str, order: Order, within_s: float) -> tuple[Placed, str, str]:
        """Carry out an order there. Returns the answer, the node and the state directory. Raises AgentrlError."""
        actor = _actor(ray, host)
        command = arrival_command(self._settings.python, "--bound")
        try:
            if actor is None:
                raise UnavailableError(f"The actor of host {host} has ended.")
            call = actor.act.remote(command, msgspec.json.encode(order), within_s)
            output, complaint, code, node, address = ray.get(call, timeout=within_s + _LOOK_WITHIN_S)
        except ray.exceptions.GetTimeoutError:
            raise UnavailableError(f"The actor of host {host} does not answer within {within_s:g} s.") from None
        except (ray.exceptions.ActorUnavailableError, ray.exceptions.ActorDiedError):
            raise UnavailableError(f"The actor of host {host} cannot be reached; its node may be lost.") from None
        except ray.exceptions.RayError as failed:
            raise UnavailableError(f"The actor of host {host} does not answer: {_first_line(failed)}") from failed
        arrived = read_arrived(host, address, output, complaint, code, self._settings.python)
        where = f"{address}, node {node[:8]} of Ray"
        if arrived.pid:
            return Placed(host, State.ALIVE, f"process {arrived.pid} on {where}"), node, arrived.state_dir
        return Placed(host, State.LOST, where, "its agent has ended."), node, arrived.state_dir


def _reach(address: str) -> None:
    """Raises OSError if nothing listens there: Ray itself would try again for minutes."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "")
        with contextlib.suppress(OSError):
            address = address or Path("/tmp/ray/ray_current_cluster").read_text().strip()
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_CONNECT_WITHIN_S).close()


def carrier_class() -> type:
    """The class of the actors. It is defined inside of a function, so Ray carries its code to nodes whose Ray has
    another Python than the agents."""

    class Carrier:
        def act(self, command: list[str], order: bytes, within_s: float) -> tuple[bytes, bytes, int, str, str]:
            import os
            import subprocess

            import ray

            # Ray limits the threads of a worker; those of units are limited by their own reservation.
            environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
            node, address = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
            try:
                done = subprocess.run(
                    command, input=order, capture_output=True, timeout=within_s, env=environ, check=False
                )
            except OSError as failed:
                return b"", str(failed).encode(), 127, node, address
            except subprocess.TimeoutExpired:
                return b"", f"not over after {within_s:g} s".encode(), 1, node, address
            return done.stdout, done.stderr, done.returncode, node, address

    return Carrier


def _actor(ray: Any, host: str) -> Any:
    try:
        return ray.get_actor(host)
    except ValueError:
        return None


def _group(ray: Any, name: str) -> Any:
    try:
        found = ray.util.get_placement_group(name)
    except ValueError:
        return None
    return None if ray.util.placement_group_table(found).get("state") == "REMOVED" else found


def _where(node: str, known: Mapping[str, Any]) -> str:
    return f"{known.get('NodeManagerAddress', '')}, node {node[:8]} of Ray".lstrip(", ") if node else ""


def _first_line(failed: Exception) -> str:
    lines = [line.strip() for line in str(failed).splitlines() if line.strip()]
    return (lines[0] if lines else type(failed).__name__)[:300]


def _on_all(act: Any, items: Sequence[Any]) -> list[Any]:
    if not items:
        return []
    with ThreadPoolExecutor(min(16, len(items))) as pool:
        return list(pool.map(act, items))
