"""Finds the coordinator of a run.

Invariants:
- A run is found by the arguments of the caller, else by the environment, else because it is the only one that is up.
- If several runs match, none is chosen, and the error names them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

from agentrl.client.run_processes import agents_of, coordinator_of, given_up, keepers_of, left_up
from agentrl.config import paths
from agentrl.errors import ConfigError, KeyRefusedError, NoCoordinatorError, UnknownNameError, UsageError
from agentrl.formatting.sentences import ended
from agentrl.transport.addresses import remove_sockets, tcp_triplet
from agentrl.transport.curve_keys import ClientKey

COORDINATOR_FILE = "coordinator.json"
STARTS = "agentrl up starts it."
STARTS_AGAIN = "agentrl up starts it again and keeps the units that run."
_BEGINS_OR_ENDS = (
    "Its host agent is there alone: the run is just beginning, or coming to its end. `agentrl runs` shows which."
)


class Target(msgspec.Struct, frozen=True):
    """Everything needed to reach a coordinator."""

    what: str
    """The name of the run, or the address of its coordinator, for messages."""
    address: str
    feed: str
    metrics: str
    run: str = ""
    """The uuid of the run; empty if it is not known before the hello."""
    key: ClientKey | None = None
    state_dir: Path | None = None

    def refused(self, sentence: str) -> KeyRefusedError:
        """The error for a key that the coordinator does not accept."""
        hint = "An admin makes a key with `agentrl keys new NAME`."
        return KeyRefusedError(f"{sentence} The key is {self.key.name!r}." if self.key else sentence, hint=hint)


class CoordinatorFile(msgspec.Struct, frozen=True):
    """The part of `coordinator.json` that a client needs."""

    address: str
    feed: str
    metrics: str


def find(
    run: str | None = None,
    *,
    key_file: Path | str | None = None,
    address: str | None = None,
    state_dir: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Target:
    """The address of the coordinator. Raises NoCoordinatorError, UnknownNameError or UsageError."""
    env = os.environ if environ is None else environ
    named = bool(run or state_dir)
    key_path = key_file or (None if named or address else env.get("AGENTRL_KEY"))
    key = ClientKey.load(key_path) if key_path else None
    if address or key:
        return _by_address(address or (key.address if key else ""), key)
    if state_dir is None and not run and env.get("AGENTRL_STATE_DIR"):
        state_dir = Path(env["AGENTRL_STATE_DIR"])
    if state_dir is not None:
        return _by_state(state_dir)
    if run:
        return _by_state(state_of(run, env))
    return _by_state(_only_one(env))


def read_coordinator(state_dir: Path) -> CoordinatorFile | None:
    """The addresses that the coordinator wrote; None if there is no such file. That coordinator may be dead."""
    path = state_dir / COORDINATOR_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=CoordinatorFile)
    except FileNotFoundError:
        return None
    except OSError as broken:
        raise ConfigError(f"{path} cannot be read: {broken.strerror}.") from broken
    except (msgspec.DecodeError, UnicodeDecodeError) as broken:
        raise ConfigError(f"{path} is damaged: {broken}.", hint="agentrl up writes it again.") from broken


def _by_address(address: str, key: ClientKey | None) -> Target:
    if address.startswith("ipc://"):
        hub = address.removesuffix("/hub")
        return Target(address, address, f"{hub}/feed", f"{hub}/metrics", key=key)
    hub, feed, metrics = tcp_triplet(address)
    if key and address == key.address:
        feed, metrics = key.feed or feed, key.metrics or metrics
    return Target(hub, hub, feed, metrics, key=key)


def _by_state(state_dir: Path) -> Target:
    run = paths.read_run(state_dir)
    name = run.name if run else state_dir.name
    found = read_coordinator(state_dir)
    if found is None:
        if agents_of(state_dir):
            raise NoCoordinatorError(f"The run {name} has no coordinator now.", hint=hint_of(state_dir))
        raise NoCoordinatorError(f"The run {name} is not up.", hint=STARTS)
    return Target(name, found.address, found.feed, found.metrics, run.uuid if run else "", state_dir=state_dir)


def state_of(run: str, env: Mapping[str, str] | None = None) -> Path:
    """The state directory of an existing run. Raises UnknownNameError."""
    state = paths.state_dir(run, env)
    if not state.is_dir():
        known = ", ".join(each.name for each in paths.list_runs(env))
        raise UnknownNameError(
            f"There is no run named {run} on this host, in {paths.home(env)}.",
            hint=f"There are: {known}." if known else "agentrl up makes one.",
        )
    return state


def _only_one(env: Mapping[str, str]) -> Path:
    found = {run.name: paths.state_dir(run.name, env) for run in paths.list_runs(env) if not run.broken}
    up = {name: state for name, state in found.items() if (state / COORDINATOR_FILE).exists()}
    if not up:
        hint = f"Down: {', '.join(sorted(found))}. agentrl up --run NAME brings one up again." if found else ""
        raise NoCoordinatorError(
            f"No run is up on this host, of those in {paths.home(env)}.",
            hint=hint or "agentrl up RUN.yaml starts one.",
        )
    if len(up) > 1:
        # Used only to choose between runs: the coordinator of a run that is up may be restarting.
        up = {name: state for name, state in up.items() if coordinator_of(state)} or up
    if len(up) > 1:
        raise UsageError(f"Several runs are up here: {', '.join(sorted(up))}.", hint="Say which one: --run NAME.")
    return next(iter(up.values()))


def refuse_if_dead(target: Target) -> None:
    """Raise NoCoordinatorError if neither the coordinator nor a host agent that restarts it is alive on this host."""
    if target.state_dir is None or keepers_of(target.state_dir) or _is_listened_at(target.address):
        return
    if not left_up(target.state_dir):
        raise NoCoordinatorError(f"The run {target.what} was taken down just now.", hint=STARTS)
    raise NoCoordinatorError(
        f"The coordinator of {target.what} is dead, and so is the host agent that would start it again.",
        hint="agentrl up starts both and keeps the units that run.",
    )


def what_to_do(target: Target) -> str:
    """A hint for a caller without an answer: what happens automatically, or what a person has to do."""
    if target.key is not None:
        return f"Is the run up there, and can {target.address} be reached from here?"
    return hint_of(target.state_dir) if target.state_dir is not None else STARTS_AGAIN


def hint_of(state_dir: Path) -> str:
    """The hint for a run of this host. It must still be true a second later, even while the run is ending: a
    coordinator that ends in order removes its file, and one that died leaves it."""
    silent, agents = coordinator_of(state_dir), agents_of(state_dir)
    if why := given_up(state_dir):
        return ended(f"Its host agent has given up starting it: {why}") + " Then `agentrl down`, and up again."
    if not left_up(state_dir):
        return _BEGINS_OR_ENDS if agents else STARTS
    if silent is not None and not agents:
        return (
            f"Its process ({silent.pid}) {silent.condition} and no host agent watches over it. Where the run is not "
            "just ending, `agentrl up` starts one and keeps the units that run."
        )
    if silent is not None:
        return (
            f"Its process ({silent.pid}) {silent.condition}. The host agent replaces a coordinator that is silent "
            "for supervision.coordinator_silent_s; `agentrl up` waits for that. The units go on."
        )
    if agents:
        return "Its host agent starts it again by itself, within seconds: nothing has to be done. The units go on."
    return STARTS_AGAIN


def forget_dead(state_dir: Path, run_uuid: str) -> None:
    """After a proven end, removes the address of a coordinator that died and could not remove it."""
    if not keepers_of(state_dir):
        (state_dir / COORDINATOR_FILE).unlink(missing_ok=True)
        remove_sockets(run_uuid)


def _is_listened_at(address: str) -> bool:
    """Whether a process listens on the socket. Inside a container that process may be invisible."""
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(address.removeprefix("ipc://"))
        except OSError:
            return False
    return True
