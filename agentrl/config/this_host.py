"""The name and the key of this machine as a host of a run, in `host.json` of the state directory.

A hostname is not an identity: it may have dots, it may change, and two machines may have the same one. So the name of a
host is chosen at its first start and then kept, and the key proves that a later agent is on the same machine.

Invariants:
- One state directory belongs to one host, whatever the hostname becomes later.
- All processes of a run on this machine use the same name, even if two of them choose it at the same moment.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from agentrl.errors import ConfigError, DiskError

HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NAME_VARIABLE = "AGENTRL_HOST_NAME"
"""Replaces the hostname, for containers whose hostname is random."""
HOST_FILE = "host.json"


@dataclass(frozen=True, slots=True)
class ThisHost:
    """The content of `host.json`."""

    name: str
    key: str = field(repr=False)


def this_host(state_dir: Path, wanted: str = "") -> ThisHost:
    """The identity of this machine in the run of that state directory. The first call makes it, named `wanted`."""
    path = state_dir / HOST_FILE
    try:
        found = _read(path)
        if found is not None:
            return found
        if wanted and not HOST_NAME.fullmatch(wanted):
            raise ConfigError(f"{wanted!r} is not a name of a host: use at most 64 letters, digits, dots and dashes.")
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_once(path, ThisHost(wanted or _former_name(state_dir) or default_name(), secrets.token_hex(32)))
        found = _read(path)
    except OSError as failed:
        raise DiskError(f"{path} cannot be made: {failed.strerror}.") from failed
    assert found is not None
    return found


def known_name(state_dir: Path) -> str:
    """The name of this machine in the run of that state directory. Unlike `this_host`, this makes nothing and never
    fails."""
    try:
        found = _read(state_dir / HOST_FILE)
    except (OSError, ConfigError):
        found = None
    return found.name if found is not None else _former_name(state_dir) or default_name()


def default_name(environ: Mapping[str, str] | None = None) -> str:
    """The hostname up to its first dot, without characters that a file name or a cgroup cannot have."""
    given = (os.environ if environ is None else environ).get(NAME_VARIABLE) or socket.gethostname().partition(".")[0]
    return re.sub(r"[^A-Za-z0-9._-]", "-", given).lstrip("._-")[:64] or "local"


def machine_id() -> str:
    """The id of the installed system; empty if it has none. Copied disks have the same one."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            return Path(path).read_text().strip()
        except OSError:
            continue
    return ""


def _former_name(state_dir: Path) -> str:
    """The name that an earlier version used here, so that its ledger is found; empty if it is not certain."""
    try:
        names = [entry.name for entry in (state_dir / "hosts").iterdir()]
    except OSError:
        return ""
    return names[0] if len(names) == 1 and HOST_NAME.fullmatch(names[0]) else ""


def _read(path: Path) -> ThisHost | None:
    try:
        plain = json.loads(path.read_bytes())
        return ThisHost(name=str(plain["name"]), key=str(plain["key"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as broken:
        raise ConfigError(
            f"{path} is damaged.", hint="Restore it; without it this machine is another host."
        ) from broken


def _write_once(path: Path, host: ThisHost) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        json.dump(asdict(host), file)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)
    except FileExistsError:
        pass  # Another process was first.
    finally:
        draft.unlink()
