"""A small disk for tests with a full disk. Such a test fails on a machine that cannot mount one."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path


def fill(ballast: Path) -> None:
    """Fill the disk with a file. Deleting the file frees the space."""
    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """`folder` is a disk of that size (`512k`, `300m`) while the body runs."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    assert mounted.returncode == 0, f"these tests mount small disks, which needs root: {mounted.stderr}"
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
