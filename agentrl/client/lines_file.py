"""A file that takes exported lines.

Invariants:
- Lines are in the file when `write` returns, so a caller may count them.
- Of lines that a full disk did not take as a whole, nothing is in the file: what is added later begins a line.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import Literal, Self


class LinesFile:
    """In a `with` block. Raises OSError, also if the file exists and has to be new (`x`)."""

    def __init__(self, path: Path, mode: Literal["a", "x"] = "a") -> None:
        self._file = path.open(f"{mode}b", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, lines: bytes) -> None:
        before, rest = os.fstat(self._file.fileno()).st_size, memoryview(lines)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):  # a device has no end
                self._file.truncate(before)
            raise
