"""Runs a program of an environment for what it writes.

Invariants:
- The program ends with its whole group, however this ends: what its package started in the background, too.
- What such a process holds open for longer than the program lives is not waited for.
- No more than MOST_BYTES of its output and the end of its complaints are in memory.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from agentrl import process_start

MOST_BYTES = 512 * 2**20
"""Of standard output."""
KEPT_BYTES = 1 << 16
"""Of standard error: its end."""
OUTPUT_WITHIN_S = 1.0
"""A process in the background may hold the output open for longer than the program lives."""
ENDS_WITHIN_S = 5.0
"""After an interruption, which lets it remove its sandbox."""
LOOK_EVERY_S = 0.05
_PIECE_BYTES = 1 << 16


class TooMuchError(Exception):
    """The program wrote more than MOST_BYTES, as a clause."""


@dataclass(frozen=True, slots=True)
class Output:
    status: int
    written: bytes
    complaints: bytes

    @property
    def last_line(self) -> str:
        """Of its complaints."""
        return self.complaints.decode(errors="replace").strip().rpartition("\n")[2]


def output_of(
    command: Sequence[str], *, asked: bytes = b"", within_s: float, env: Mapping[str, str] | None = None
) -> Output:
    """`asked` is a few lines. Raises OSError if the program does not start, subprocess.TimeoutExpired, TooMuchError."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, start_new_session=True)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    written, complaints = bytearray(), bytearray()
    try:
        with contextlib.suppress(BrokenPipeError):  # Its status says more.
            process.stdin.write(asked)
            process.stdin.close()
        _read(process, {process.stdout: written, process.stderr: complaints}, within_s)
        return Output(process.wait(), bytes(written), bytes(complaints))
    finally:
        _end(process)


def _read(process: subprocess.Popen[bytes], outputs: dict[IO[bytes], bytearray], within_s: float) -> None:
    """Until it has ended."""
    until, ended = time.monotonic() + within_s, False
    with selectors.DefaultSelector() as selector:
        for stream in outputs:
            selector.register(stream, selectors.EVENT_READ)
        while not ended or selector.get_map():
            if not ended and process.poll() is not None:
                ended, until = True, time.monotonic() + OUTPUT_WITHIN_S
            if time.monotonic() > until:
                if ended:
                    return
                raise subprocess.TimeoutExpired(process.args, within_s)
            if not selector.get_map():
                time.sleep(LOOK_EVERY_S)
            for key, _ in selector.select(LOOK_EVERY_S):
                piece = os.read(key.fd, _PIECE_BYTES)
                if not piece:
                    selector.unregister(key.fileobj)
                _add(outputs[key.fileobj], piece, is_output=key.fileobj is process.stdout)  # type: ignore[index]


def _add(kept: bytearray, piece: bytes, *, is_output: bool) -> None:
    kept += piece
    if not is_output:
        del kept[:-KEPT_BYTES]
    elif len(kept) > MOST_BYTES:
        raise TooMuchError(f"its program wrote more than {MOST_BYTES >> 20} MiB")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDS_WITHIN_S)
    process_start.signal_group(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
