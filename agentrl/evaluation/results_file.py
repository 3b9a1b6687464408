"""The file of results: one attempt per line of JSON.

Invariants:
- An attempt is in the file as a whole line or not at all; what a killed program left of a line is no attempt.
- Only one program at a time appends to the file. Reading needs no lock.
- If a key has several lines, the last one counts.
- A file that does not contain results is never changed.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

import msgspec

from agentrl.errors import AgentrlError, ConfigError, RefusedError
from agentrl.evaluation import attempts
from agentrl.protocol.evaluation_commands import Attempt


def read(file: Path) -> list[Attempt]:
    """The newest of each key, in the order of the file."""
    try:
        body = file.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"There is no file {file}.", hint="`agentrl eval run` writes one.") from None
    except OSError as wrong:
        raise ConfigError(f"{file} cannot be read: {wrong.strerror}.") from wrong
    whole, _, _ = body.rpartition(b"\n")
    found: dict[str, Attempt] = {}
    for number, line in enumerate(whole.split(b"\n") if whole else (), 1):
        if not line.strip():
            continue
        try:
            attempt = msgspec.json.decode(line, type=Attempt)
        except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
            raise ConfigError(f"{file}:{number} is no result of an attempt: {wrong}.") from wrong
        found.pop(attempt.key, None)
        found[attempt.key] = attempt
    return list(found.values())


def counting(file: Path) -> list[Attempt]:
    """The attempts from which figures are computed."""
    return attempts.counting(read(file))


_BEGIN = b'{"key":'
"""The beginning of every line that `add` writes."""


class ResultsFile:
    """A file that this process appends to, as a context. Raises RefusedError if another process appends to it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._open = -1

    def __enter__(self) -> ResultsFile:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._open = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._open, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._cut_half_a_line()
        except BlockingIOError:
            self._close()
            raise RefusedError(
                f"Another `agentrl eval run` adds to {self.file}.", hint="Wait for it, or name another file: --out."
            ) from None
        except OSError as wrong:
            self._close()
            raise ConfigError(f"{self.file} cannot be written: {wrong.strerror}.") from wrong
        except ConfigError:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        if self._open >= 0:
            os.close(self._open)
            self._open = -1

    def add(self, attempt: Attempt) -> None:
        """Appends an attempt. It is on disk when this returns."""
        line = msgspec.json.encode(msgspec.structs.asdict(attempt)) + b"\n"
        try:
            while line:
                line = line[os.write(self._open, line) :]
            os.fdatasync(self._open)
        except OSError as wrong:
            raise AgentrlError(f"{self.file} cannot be written: {wrong.strerror}.") from wrong

    def _cut_half_a_line(self) -> None:
        """Raises ConfigError if it is not one of results: a file that was named by mistake loses nothing."""
        size = os.fstat(self._open).st_size
        at = size
        while at > 0:
            begin = max(0, at - (1 << 16))
            if (found := os.pread(self._open, at - begin, begin).rfind(b"\n")) >= 0:
                at = begin + found + 1
                break
            at = begin
        # A loss of power may leave zeros.
        rest = os.pread(self._open, len(_BEGIN), at).rstrip(b"\0")
        if rest and not _BEGIN.startswith(rest):
            raise ConfigError(f"{self.file} is no file of results.", hint="Name another file: --out.")
        if at != size:
            os.ftruncate(self._open, at)
