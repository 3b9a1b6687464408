"""The error tree: every error for a person has a message, a hint and an exit code.

Invariants:
- A message is one sentence that names what is wrong and where; the hint is one sentence or command that repairs it.
- Each kind of failure has its own exit code, so that scripts can distinguish them.
"""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """What `agentrl` and its daemons exit with. 75 and 78 follow sysexits.h: supervisors act on them."""

    OK = 0
    FAILED = 1
    """An operation was accepted and then failed."""
    USAGE = 2
    NO_COORDINATOR = 3
    """No coordinator answers for this run."""
    REFUSED = 4
    """The coordinator refused: permission, an expired deadline, a state in which the command means nothing."""
    UNKNOWN = 5
    """No such run, unit, knob, alert, operation or command."""
    CONFLICT = 6
    """Another command was first: the run is up elsewhere, a knob or a unit changed meanwhile, or an operation was
    superseded."""
    TIMEOUT = 7
    """Not finished in the given time; it goes on."""
    KEY_REFUSED = 8
    """The coordinator does not know this key, or it was revoked."""
    VERSION = 9
    """The two sides speak different protocol versions."""
    NOT_PROVEN = 10
    """`down` could not prove that nothing is left."""
    DISK = 11
    """A disk is full or not writable; nothing was changed."""
    UNHEALTHY = 12
    """`doctor` found a fault that stops a run, `status --check` found the run degraded, or a unit was not up when `up`
    ended."""
    UNAVAILABLE = 13
    """The unit that serves this command is not ready; it got no request."""
    UNBALANCED = 14
    """`accounting` found sums that do not agree."""
    TAKEN_DOWN = 15
    """The run was taken down while `up` waited for it."""
    CONTRACT = 16
    """`check` found a fault in an environment."""
    TOOLS = 17
    """A tool failed when it was called before the run; nothing was started."""
    TEMPORARY = 75
    """A unit requests its restart; not counted as a death."""
    CONFIG = 78
    """The configuration is wrong; starting again cannot help."""
    INTERRUPTED = 130


class AgentrlError(Exception):
    """Root of every error that agentrl raises on purpose."""

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()

    def document(self) -> dict[str, object]:
        """For `--json`."""
        code = self.exit_code
        return {"error": {"code": int(code), "name": code.name.lower(), "message": self.message, "hint": self.hint}}


class ConfigError(AgentrlError):
    """The configuration is wrong: which key, where it was written, what is allowed."""

    exit_code = ExitCode.CONFIG


class UsageError(AgentrlError):
    """The command line does not make sense."""

    exit_code = ExitCode.USAGE


class NoCoordinatorError(AgentrlError):
    """No coordinator answers for the run."""

    exit_code = ExitCode.NO_COORDINATOR


class RefusedError(AgentrlError):
    """The coordinator understood the command and refuses it."""

    exit_code = ExitCode.REFUSED


class UnknownNameError(AgentrlError):
    """A run, unit, knob, alert, operation or command of that name does not exist."""

    exit_code = ExitCode.UNKNOWN


class ConflictError(AgentrlError):
    """Another command was first; nothing was overwritten."""

    exit_code = ExitCode.CONFLICT


class WaitTimeoutError(AgentrlError):
    """The answer did not come in the time given."""

    exit_code = ExitCode.TIMEOUT


class KeyRefusedError(AgentrlError):
    """The coordinator does not accept this key."""

    exit_code = ExitCode.KEY_REFUSED


class VersionMismatchError(AgentrlError):
    """The two sides speak different major versions of the protocol, or belong to different runs."""

    exit_code = ExitCode.VERSION


class OperationFailedError(AgentrlError):
    """An accepted operation ended as failed, cancelled or expired."""

    exit_code = ExitCode.FAILED


class NotProvenError(AgentrlError):
    """Something of the run may still be alive."""

    exit_code = ExitCode.NOT_PROVEN


class DiskError(AgentrlError):
    """A write failed because the disk is full or read-only."""

    exit_code = ExitCode.DISK


class UnavailableError(AgentrlError):
    """The unit that serves this command is not ready."""

    exit_code = ExitCode.UNAVAILABLE


class TakenDownError(AgentrlError):
    """The run was taken down while `up` waited for it."""

    exit_code = ExitCode.TAKEN_DOWN


class ToolPreflightError(AgentrlError):
    """A tool failed when it was called before the run."""

    exit_code = ExitCode.TOOLS


class ToldError(AgentrlError):
    """The error that another program of agentrl ended with, as that program reported it."""

    def __init__(self, message: str, *, hint: str, code: int) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = ExitCode(code)


class ProtocolError(AgentrlError):
    """A message could not be decoded or breaks the protocol."""

    exit_code = ExitCode.REFUSED


def error_for(code: int, message: str, hint: str = "") -> AgentrlError:
    """The error class that belongs to an exit code which came over the wire."""
    for kind in AgentrlError.__subclasses__():
        if kind.exit_code == code and kind is not ProtocolError:
            return kind(message, hint=hint)
    return AgentrlError(message, hint=hint)
