"""The backend `ssh`: agents that are started over OpenSSH.

The agent detaches from the ssh session, so the connection lasts only as long as a start. A machine whose login ends all
processes of its user (`KillUserProcesses` of systemd) needs `loginctl enable-linger` there.

Invariants:
- ssh never asks a question (`BatchMode`), and never waits without a limit.
- A machine that does not answer is LOST, never GONE: its units may still run.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from agentrl.config.placement import Ssh
from agentrl.errors import AgentrlError, ConfigError, NotProvenError, UnavailableError
from agentrl.placement import HostRemains, HostRequest, Placed, PlacedRun, State
from agentrl.placement.arrival import Act, Arrived, Order
from agentrl.placement.notes import Notes
from agentrl.placement.remote_python import arrival_command, read_arrived

_AT_ONCE = 16
_ACT_WITHIN_S = 120.0
"""Longer than the start of an agent may take."""
_SSH_FAILED = 255
_REASONS = (
    (
        "Permission denied",
        "refuses the key",
        "Put the public key into authorized_keys there, or set placement.ssh.identity.",
    ),
    ("Host key verification failed", "has an unknown or another host key", "Connect once by hand, or fix known_hosts."),
    ("Could not resolve hostname", "has no address", "Set `node` of the host to a name that ssh knows."),
    ("Connection refused", "does not take connections of ssh", "Start sshd there, or set placement.ssh.port."),
    ("timed out", "cannot be reached", "Look at the machine and the network."),
    ("No route to host", "cannot be reached", "Look at the machine and the network."),
    ("Bad configuration option", "cannot be reached with these options", "Correct placement.ssh.options."),
)
"""What ssh writes, and what it means for the host."""
_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class SshNote(msgspec.Struct, frozen=True):
    node: str
    state_dir: str
    run: str


class SshPlacement:
    def __init__(self, settings: Ssh, run: PlacedRun) -> None:
        self._settings = settings
        self._run = run
        self._notes = Notes(run.state_dir, "ssh", SshNote)

    def ensure(self, wanted: Sequence[HostRequest]) -> tuple[Placed, ...]:
        return tuple(_on_all(self._ensure, wanted))

    def describe(self) -> tuple[Placed, ...]:
        return tuple(_on_all(self._look, sorted(self._notes.all().items())))

    def release(self, hosts: Sequence[str]) -> None:
        notes = self._notes.all()
        problems = [
            each for each in _on_all(self._end, [(host, notes[host]) for host in hosts if host in notes]) if each
        ]
        if problems:
            raise NotProvenError(" ".join(problems))

    def clear(self, left: HostRemains) -> str:
        act: Act = "wipe" if left.wipe else "forget"
        order = Order(act, host=left.host, run=self._run.uuid, state_dir=left.state_dir, run_dir=left.run_dir)
        try:
            self._act(left.host, left.node or left.host, order)
        except AgentrlError as failed:
            return failed.message.rstrip(".")
        return ""

    def _ensure(self, wanted: HostRequest) -> Placed:
        host, node = wanted.host, wanted.node or wanted.host
        try:
            arrived = self._act(host, node, Order(invitation=wanted.invitation))
        except AgentrlError as failed:
            return Placed(host, State.LOST, node, failed.message, failed.hint)
        self._notes.update({host: SshNote(node, arrived.state_dir, wanted.invitation.run)})
        return _placed(host, node, arrived)

    def _look(self, noted: tuple[str, SshNote]) -> Placed:
        host, note = noted
        try:
            return _placed(host, note.node, self._act(host, note.node, _order("look", host, note)))
        except AgentrlError as failed:
            return Placed(host, State.LOST, note.node, failed.message, failed.hint)

    def _end(self, noted: tuple[str, SshNote]) -> str:
        host, note = noted
        try:
            self._act(host, note.node, _order("end", host, note))
        except AgentrlError as failed:
            return str(failed)
        self._notes.update({host: None})
        return ""

    def _act(self, host: str, node: str, order: Order) -> Arrived:
        """Carry out an order there. Raises AgentrlError with a sentence about the host."""
        command = [*self._ssh(), node, "--", shlex.join(arrival_command(self._settings.python))]
        try:
            done = subprocess.run(
                command,
                input=msgspec.json.encode(order),
                capture_output=True,
                timeout=self._settings.connect_s + _ACT_WITHIN_S,
                check=False,
            )
        except FileNotFoundError:
            raise ConfigError(
                "There is no program ssh on the host of the coordinator.", hint="Install OpenSSH."
            ) from None
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"Host {host} ({node}) did not answer over ssh in time.") from None
        if done.returncode == _SSH_FAILED:
            raise _ssh_failed(host, node, done.stderr.decode(errors="replace"))
        return read_arrived(host, node, done.stdout, done.stderr, done.returncode, self._settings.python)

    def _ssh(self) -> list[str]:
        given = self._settings
        command = ["ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, round(given.connect_s))}"]
        # These options notice a machine that stops in the middle of a start.
        command += ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o", "ClearAllForwardings=yes"]
        command += ["-F", given.config] if given.config else []
        command += ["-l", given.user] if given.user else []
        command += ["-p", str(given.port)] if given.port else []
        command += ["-i", given.identity, "-o", "IdentitiesOnly=yes"] if given.identity else []
        for option in given.options:
            command += ["-o", option]
        return command


def _order(act: Act, host: str, note: SshNote) -> Order:
    return Order(act, host=host, run=note.run, state_dir=note.state_dir)


def _placed(host: str, node: str, arrived: Arrived) -> Placed:
    if arrived.pid:
        return Placed(host, State.ALIVE, f"process {arrived.pid} on {node}")
    return Placed(host, State.LOST, node, "its agent has ended")


def _ssh_failed(host: str, node: str, complaint: str) -> AgentrlError:
    """ssh itself failed, so the program there did not run."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    last = lines[-1] if lines else "ssh ended without a word"
    for words, meaning, hint in _REASONS:
        if words in complaint:
            return UnavailableError(f"Host {host} ({node}) {meaning}: {last}", hint=hint)
    return UnavailableError(f"Host {host} ({node}) cannot be reached over ssh: {last}")


def _on_all(act: Callable[[_Item], _Answer], items: Sequence[_Item]) -> list[_Answer]:
    if not items:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(items))) as pool:
        return list(pool.map(act, items))
