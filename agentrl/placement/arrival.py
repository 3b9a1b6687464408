"""Runs on a machine that becomes a host of a run: `python -m agentrl.placement.arrival`.

It reads an Order on standard input, prints an `Arrived` as one line of JSON, and ends. With `--stay` it becomes the
agent after it has printed the line, for schedulers that also end the children of the process that they started. With
`--bound` the host leaves when the parent of this process ends, for schedulers whose reservation lasts as long as that
parent.

Invariants:
- The key arrives on standard input, and is kept in a file of mode 0600 in a directory that no other user can enter.
- An agent of another version than the coordinator's is never started.
- A directory that another user made is not used.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Literal

import msgspec

from agentrl import __version__
from agentrl.errors import AgentrlError, ConfigError, ConflictError, ExitCode, NotProvenError, VersionMismatchError
from agentrl.host import process_scan, procfs
from agentrl.host.agent_lock import AgentFile
from agentrl.placement import Invitation
from agentrl.placement.agent_process import (
    agent_command,
    agent_environment,
    end_agent,
    living_agent,
    start_agent,
)
from agentrl.placement.until import until
from agentrl.transport.curve_keys import ClientKey

KEY_FILE = "access.key"
_LONGEST_ORDER = 1 << 20
_OTHER_START_WITHIN_S = 10.0
Act = Literal["start", "look", "end", "leave", "forget", "wipe"]


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """What to do here. `start` needs the invitation; the other acts need the fields after it, and `forget` and `wipe`
    also need `run_dir`."""

    act: Act = "start"
    invitation: Invitation | None = None
    host: str = ""
    run: str = ""
    state_dir: str = ""
    run_dir: str = ""


class Arrived(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer."""

    host: str
    pid: int = 0
    """0: no agent runs here."""
    state_dir: str = ""
    version: str = __version__
    error: str = ""
    hint: str = ""
    code: int = 0


def usual_state_dir(run: str, host: str) -> Path:
    """On a local disk that keeps its files over a reboot, because a home directory is often shared by machines."""
    return Path("/var/tmp") / f"agentrl-{os.getuid()}" / run / host


def carry_out(order: Order, *, stay: bool = False, bound_to: int = 0) -> Arrived:
    """Raises AgentrlError. With `stay`, a start returns before the agent exists, and `become_agent` follows."""
    if order.invitation is not None:
        return _prepared(order.invitation) if stay else _started(order.invitation, bound_to)
    state_dir = Path(order.state_dir) if order.state_dir else usual_state_dir(order.run, order.host)
    if order.act == "end":
        end_agent(state_dir, order.host)
        _prove(order.run, order.host)
    elif order.act == "leave" and (known := living_agent(state_dir, order.host)):
        procfs.kill_exactly(known.pid, known.start_ticks, 15)
    elif order.act in ("forget", "wipe"):
        # Imported late, because a start does not need it.
        from agentrl.placement.clearing import clear

        _prove(order.run, order.host)
        clear(order.host, state_dir, Path(order.run_dir), wipe=order.act == "wipe")
    return _answer(order.host, state_dir, living_agent(state_dir, order.host))


def _answer(host: str, state_dir: Path, known: AgentFile | None) -> Arrived:
    return Arrived(host, pid=known.pid if known else 0, state_dir=str(state_dir))


def _started(invitation: Invitation, bound_to: int) -> Arrived:
    state_dir = _make_ready(invitation)
    arguments = _agent_arguments(invitation, state_dir)
    arguments += ["--bound-to", str(bound_to)] if bound_to else []
    try:
        known: AgentFile | None = start_agent(
            state_dir, Path(invitation.run_dir), invitation.run, invitation.host, arguments
        )
    except ConflictError:
        # Another start was first: its agent has the lock, and has written its file or soon will.
        known = living_agent(state_dir, invitation.host) or _living_soon(state_dir, invitation.host)
    return _answer(invitation.host, state_dir, known)


def _living_soon(state_dir: Path, host: str) -> AgentFile | None:
    return until(lambda: living_agent(state_dir, host), _OTHER_START_WITHIN_S)


def _prepared(invitation: Invitation) -> Arrived:
    state_dir = _make_ready(invitation)
    if known := living_agent(state_dir, invitation.host):
        raise ConflictError(f"An agent of host {invitation.host} lives here already (process {known.pid}).")
    return Arrived(invitation.host, pid=os.getpid(), state_dir=str(state_dir))


def _make_ready(invitation: Invitation) -> Path:
    if invitation.version != __version__:
        raise VersionMismatchError(
            f"Host {invitation.host} has agentrl {__version__}, the coordinator {invitation.version}.",
            hint="Install the same version there.",
        )
    host, run = invitation.host, invitation.run
    state_dir = Path(invitation.state_dir) if invitation.state_dir else usual_state_dir(run, host)
    _make_own(state_dir if invitation.state_dir else state_dir.parents[1])
    key = ClientKey(
        name=invitation.key_name,
        public=invitation.public,
        secret=invitation.secret,
        server_public=invitation.server_public,
        address=invitation.coordinator,
    )
    key.save(state_dir / "hosts" / host / KEY_FILE)
    return state_dir


def _make_own(folder: Path) -> None:
    """Other users can write to /var/tmp, so a directory with this name may be theirs, or a link."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as failed:
        raise ConfigError(f"{folder} cannot be made: {failed.strerror}.", hint="Set `disk` of the host.") from failed
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigError(
            f"{folder} is not a directory of this user alone, so it may not hold a key.",
            hint="Set `disk` of the host, or remove that directory.",
        )


def _agent_arguments(invitation: Invitation, state_dir: Path) -> list[str]:
    key = state_dir / "hosts" / invitation.host / KEY_FILE
    arguments = ["--coordinator", invitation.coordinator, "--key", str(key)]
    if invitation.leave_within_s:
        arguments += ["--leave-within", f"{invitation.leave_within_s:g}"]
    return arguments


def become_agent(invitation: Invitation, state_dir: Path) -> None:
    """Replace this process by the agent. Its output goes to its log, because the pipe of the scheduler may have no
    reader."""
    arguments = _agent_arguments(invitation, state_dir)
    command = agent_command(state_dir, Path(invitation.run_dir), invitation.run, invitation.host, arguments)
    log = os.open(
        state_dir / "hosts" / invitation.host / "agent.log",
        os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
        0o600,
    )
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for number, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(number, target)
    os.execve(command[0], command, agent_environment(invitation.run, invitation.host))


def _prove(run: str, host: str) -> None:
    """Raises NotProvenError if a process of the host is left."""
    report = process_scan.scan(run, host)
    left = [info for info in report.found if _is_of(host, info.pid)]
    if left:
        names = ", ".join(f"{info.incarnation or info.command[:60]} (pid {info.pid})" for info in left[:5])
        raise NotProvenError(f"On host {host} these are left: {names}.")
    if report.unproven:
        raise NotProvenError(f"On host {host}: {report.unproven}")


def _is_of(host: str, pid: int) -> bool:
    return (procfs.marks(pid) or {}).get(procfs.MARK_HOST) == host.encode()


def main() -> int:
    order: Order | None = None
    try:
        order = msgspec.json.decode(sys.stdin.buffer.read(_LONGEST_ORDER), type=Order)
        stay = "--stay" in sys.argv[1:]
        arrived = carry_out(order, stay=stay, bound_to=os.getppid() if "--bound" in sys.argv[1:] else 0)
    except msgspec.DecodeError as broken:
        arrived = Arrived("", error=f"The order on standard input is not understood: {broken}.", code=ExitCode.VERSION)
    except AgentrlError as failed:
        host = order.invitation.host if order and order.invitation else order.host if order else ""
        arrived = Arrived(host, error=failed.message, hint=failed.hint, code=failed.exit_code)
    print(msgspec.json.encode(arrived).decode(), flush=True)
    if arrived.error:
        return arrived.code
    if stay and order is not None and order.invitation is not None:
        become_agent(order.invitation, Path(arrived.state_dir))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
