"""Removes what a run left on one of its machines, after the run is down.

Invariants:
- Nothing is removed while a process of the run may live there.
- Only what agents and units of the run make is removed, because a person may have named a directory that holds more.
- `forget` keeps what units wrote in the run's directory there: logs, checkpoints. `wipe` removes that, and keeps the
  identity of the host.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from agentrl.config.http_token import TOKEN_FILE
from agentrl.config.paths import MADE
from agentrl.config.this_host import HOST_FILE
from agentrl.errors import DiskError
from agentrl.files.cache import FOLDER, Cache
from agentrl.files.named_files import COPIED
from agentrl.host.tunnel_process import MONGO


def clear(host: str, state_dir: Path, run_dir: Path, *, wipe: bool) -> None:
    """Raises DiskError."""
    try:
        if run_dir.is_dir():
            Cache(run_dir, host).remove_all()
            _remove(run_dir / COPIED)
            _remove_if_empty(run_dir / FOLDER)
            for name in MADE if wipe else ():
                _remove(run_dir / name)
        if not wipe:
            _remove_state(state_dir, host)
    except OSError as failed:
        what = failed.filename or run_dir
        raise DiskError(f"{what} on host {host} cannot be removed: {failed.strerror}.") from failed


def _remove_state(state_dir: Path, host: str) -> None:
    _remove(state_dir / "hosts" / host)
    _remove_if_empty(state_dir / "hosts")
    if (state_dir / "hosts").exists():
        return
    for name in (TOKEN_FILE, HOST_FILE):
        (state_dir / name).unlink(missing_ok=True)
    for file in [*(state_dir / MONGO).glob("*.pem"), state_dir / MONGO / "url"]:
        file.unlink(missing_ok=True)
    for folder in (state_dir / MONGO, state_dir, state_dir.parent):
        _remove_if_empty(folder)


def _remove(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
