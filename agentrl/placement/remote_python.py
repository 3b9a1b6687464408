"""The command that starts an arrival on another machine, and what its output means."""

from __future__ import annotations

import sys

import msgspec

from agentrl.errors import AgentrlError, ConfigError, UnavailableError, error_for
from agentrl.placement.arrival import Arrived

_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
_SHOWN_CHARS = 300


def arrival_command(python: str, *arguments: str) -> list[str]:
    """`python` is the path of Python on that machine; empty means the path of the Python that runs here."""
    return [python or sys.executable, "-m", "agentrl.placement.arrival", *arguments]


def read_arrived(host: str, node: str, output: bytes, complaint: bytes, code: int, python: str) -> Arrived:
    """The answer of an arrival. Raises AgentrlError with one sentence if there is no answer, or if it reports an
    error."""
    for line in reversed(output.splitlines()):  # a login may print a greeting first
        try:
            arrived = msgspec.json.decode(line, type=Arrived)
        except msgspec.DecodeError:
            continue
        if arrived.error:
            raise error_for(arrived.code, arrived.error, arrived.hint)
        return arrived
    raise _no_answer(host, node, complaint.decode(errors="replace"), code, python or sys.executable)


def _no_answer(host: str, node: str, complaint: str, code: int, python: str) -> AgentrlError:
    hint = "Set `python` in the section of the placement to one that has agentrl installed."
    if code in (_NOT_FOUND, _NOT_EXECUTABLE):
        return ConfigError(f"On host {host} ({node}) {python} is no Python that can be started.", hint=hint)
    if "No module named" in complaint:
        return ConfigError(f"On host {host} ({node}) {python} has no agentrl installed, or not all of it.", hint=hint)
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    last = lines[-1][:_SHOWN_CHARS] if lines else "it printed nothing"
    return UnavailableError(f"On host {host} ({node}) the start of the agent ended with {code}: {last}")
