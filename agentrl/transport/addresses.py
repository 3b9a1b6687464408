"""Builds the addresses of a run's sockets.

Local sockets are in a directory that only its owner can enter. An address that the operating system would refuse raises
a clear error here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

from agentrl.errors import ConfigError

IPC_PATH_MAX_BYTES = 107
"""sun_path has 108 bytes, the last one is zero."""


def runtime_dir(run_uuid: str) -> Path:
    """The directory (0700) of a run's local sockets; created if it does not exist.

    It is not in /run/user/UID, because logind removes that directory at the last logout and a run outlives its logins.
    """
    wanted = Path(os.environ.get("XDG_RUNTIME_DIR", "") or _of_the_login())
    usable = wanted != _of_the_login() and _is_mine(wanted)
    directory = (wanted / "agentrl" if usable else Path(f"/tmp/agentrl-{os.getuid()}")) / run_uuid[:8]
    make_socket_directory(directory)
    return directory


def make_socket_directory(directory: Path) -> None:
    """Create the directory and the one above it. Raises ConfigError if that is not possible or not safe."""
    for each in (directory.parent, directory):
        _make_private(each)


def former_hub_address(run_uuid: str) -> str:
    """The socket that an earlier version made in /run/user/UID, where its units connect; empty if there is none."""
    former = _of_the_login() / "agentrl" / run_uuid[:8] / "hub"
    return f"ipc://{former}" if former.parent.is_dir() and _is_mine(former.parent) else ""


def _of_the_login() -> Path:
    return Path(f"/run/user/{os.getuid()}")


def remove_sockets(run_uuid: str) -> None:
    """Remove the socket files of a coordinator whose run has ended."""
    directory = runtime_dir(run_uuid)
    for name in ("hub", "feed", "metrics"):
        (directory / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # Another file is in the directory.
        directory.rmdir()


def hub_address(run_uuid: str) -> str:
    """The address at which units, host agents and clients of this host reach the coordinator."""
    return _ipc(runtime_dir(run_uuid) / "hub")


def feed_address(run_uuid: str) -> str:
    """The address at which the coordinator publishes rows."""
    return _ipc(runtime_dir(run_uuid) / "feed")


def metrics_address(run_uuid: str) -> str:
    """The address at which the coordinator publishes metric values."""
    return _ipc(runtime_dir(run_uuid) / "metrics")


def tcp_triplet(listen: str) -> tuple[str, str, str]:
    """`host:port` -> addresses of hub, feed and metrics: port, port + 1 and port + 2."""
    host, _, port_text = listen.removeprefix("tcp://").rpartition(":")
    port = int(port_text) if port_text.isascii() and port_text.isdecimal() else 0
    if not host or not 1 <= port <= 65533:
        raise ConfigError(
            f"{listen!r} is not an address to listen on: host:port is wanted, with a port from 1 to 65533.",
            hint="For example 127.0.0.1:7600; the two ports after it are used as well.",
        )
    return f"tcp://{host}:{port}", f"tcp://{host}:{port + 1}", f"tcp://{host}:{port + 2}"


def why_not_free(address: str) -> str:
    """Return why a socket cannot listen at a tcp address now; empty if it can. No socket stays bound."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        kind, _, _, _, place = socket.getaddrinfo(
            host.strip("[]") if host != "*" else None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(kind, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen()
    except OSError as refused:
        return refused.strerror or str(refused)
    return ""


def cannot_listen(address: str, why: str) -> ConfigError:
    of_the_port = why in (os.strerror(errno.EADDRINUSE), os.strerror(errno.EACCES))
    return ConfigError(
        f"Nothing can listen on {address}: {why}.",
        hint="Choose another port in coordinator.listen (the next two are used as well), or see `ss -ltnp`."
        if of_the_port
        else "Name an address of this host in coordinator.listen (`ip addr` has them); 0.0.0.0 stands for all of them.",
    )


def _ipc(path: Path) -> str:
    length = len(os.fsencode(path))
    if length > IPC_PATH_MAX_BYTES:
        raise ConfigError(
            f"The socket path {path} has {length} bytes; the system allows {IPC_PATH_MAX_BYTES}.",
            hint="Set XDG_RUNTIME_DIR to a shorter directory.",
        )
    return f"ipc://{path}"


def _is_mine(directory: Path) -> bool:
    try:
        return directory.stat().st_uid == os.getuid() and os.access(directory, os.W_OK | os.X_OK)
    except OSError:
        return False


def _make_private(directory: Path) -> None:
    """Create a directory with mode 0700. Refuses one of another user, who could replace our sockets."""
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as broken:
        raise ConfigError(f"The socket directory {directory} cannot be made: {broken.strerror}.") from broken
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ConfigError(
            f"{directory} belongs to another user or is not a directory; sockets there would not be safe.",
            hint="Remove it, or set XDG_RUNTIME_DIR to a directory of your own.",
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        directory.chmod(0o700)
