"""Runs the command line in forks of a process that has imported it already.

Tests run hundreds of commands, and most of the time of each goes into imports. A server imports everything once; each
command is a fork of it with its own arguments, environment, directory and streams.

Invariants:
- A command is a process of its own, and shares nothing with the next one. So is each program of agentrl that it starts.
- The server starts no thread and opens nothing before it forks; it ends with the process that started it.
- The whole suite has a server per lane, which the lane forks from the process that imported everything once.
- If the server or a fork ends before its command, the caller gets an error, and the next command gets a new server.

Tests of imports, signals or terminals start a fresh interpreter instead.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]
ADDRESS = "TESTS_COMMAND_SERVER"
"""The variable with the address of the server of a lane. Without it a process of tests starts its own server."""
PROGRAMS = (
    *("agentrl.doctor", "agentrl.control.offline_events", "agentrl.control.other_hosts"),
    *("agentrl.store.run_wipe", "daemons.tool_preflight"),
)
"""The programs of agentrl that commands start, and whose imports take longer than they do."""
LARGEST = 2**20
PING = b"ping"
ENDS_WITHIN_S = 5.0
ALSO = (
    *("agentrl.client.client", "agentrl.config.load", "agentrl.config.show", "agentrl.config.serialization"),
    "rich.table",
)
"""Modules that commands import later, besides those of the command line."""


class LostError(RuntimeError):
    """The end of a command is unknown, because the process that waited for it ended first."""


def run(
    arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout: float
) -> subprocess.CompletedProcess[str]:
    """`agentrl ARGUMENTS` to its end, like `subprocess.run` with empty input and captured output."""
    order = json.dumps({"arguments": list(arguments), "env": dict(env), "cwd": str(cwd)})
    server = _running()
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        open(os.devnull, "rb") as nothing,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
    ):
        streams = array.array("i", [nothing.fileno(), out.fileno(), err.fileno()])
        pid = 0
        try:
            connection.connect(_address)
            connection.sendmsg([order.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
            pid = _number(connection)
            connection.settimeout(timeout)
            code = _number(connection)
        except TimeoutError:
            _end_command(pid)
            raise subprocess.TimeoutExpired(list(arguments), timeout, _text_of(out), _text_of(err)) from None
        except ConnectionError:
            _end_command(pid)
            raise LostError(f"{_what_ended(server)} before `agentrl {' '.join(arguments)}` did.") from None
        return subprocess.CompletedProcess(["agentrl", *arguments], code, _text_of(out), _text_of(err))


def _number(connection: socket.socket) -> int:
    message = connection.recv(64)
    if not message:
        raise ConnectionResetError
    return int(message)


def _end_command(pid: int) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _text_of(stream: Any) -> str:
    stream.seek(0)
    text: str = stream.read().decode()
    return text


# ---- the server, seen from the tests ----

_server: subprocess.Popen[bytes] | None = None
_address = ""


def _running() -> subprocess.Popen[bytes] | None:
    """The server of this process, None if it uses that of its lane; a new one if it was killed, as tests of host
    agents kill all their descendants."""
    global _server, _address
    if ADDRESS in os.environ:
        _address = f"\0{os.environ[ADDRESS]}"
        return None
    if _server is None or _server.poll() is not None:
        _address = f"\0agentrl-tests-{os.getpid()}-{os.urandom(8).hex()}"
        with listening(_address) as listener:
            _server = subprocess.Popen(
                [sys.executable, "-m", "tests.preloaded", str(listener.fileno())],
                cwd=ROOT,
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
            )
        atexit.register(_end, _server)
    return _server


def _what_ended(server: subprocess.Popen[bytes] | None) -> str:
    """Which process ended. A server that was killed with a fork may end a moment later, so it gets a ping."""
    if server is None:
        return f"The {'fork of the ' if _answers() else ''}server of preloaded commands of the lane ended"
    if _answers():
        return f"The fork of the server of preloaded commands (pid {server.pid}, which lives) ended"
    try:
        return f"The server of preloaded commands ended with exit code {server.wait(ENDS_WITHIN_S)}"
    except subprocess.TimeoutExpired:
        return f"The server of preloaded commands (pid {server.pid}) hangs"


def _answers() -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(ENDS_WITHIN_S)
        try:
            connection.connect(_address)
            connection.send(PING)
            return bool(connection.recv(64))
        except OSError:
            return False


def _end(server: subprocess.Popen[bytes]) -> None:
    server.kill()
    server.wait()
    assert server.stdin is not None
    server.stdin.close()


# ---- the server ----


def listening(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen()
    return listener


def serve(listener: socket.socket, end: int) -> None:
    """Run commands until the descriptor `end` is at its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listener, end], [], [])
        _reap_forks()
        if end in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _execute(connection)
        connection.close()


def _reap_forks() -> None:
    """Reap those that have ended; the others wait until the next command."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def import_everything() -> None:
    package = importlib.import_module("agentrl.cli")
    names = [f"agentrl.cli.{module.name}" for module in pkgutil.iter_modules(package.__path__)]
    programs = (f"{name}.__main__" if name == "agentrl.doctor" else name for name in PROGRAMS)
    for name in (*names, *ALSO, *programs):
        importlib.import_module(name)


def _execute(connection: socket.socket) -> None:
    """Start one command and wait for its end."""
    order, ancillary, _, _ = connection.recvmsg(LARGEST, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    if order == PING:
        connection.send(b"0")
        os._exit(0)
    streams = array.array("i")
    streams.frombytes(ancillary[0][2])
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(json.loads(order), streams)
    connection.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(order: dict[str, Any], streams: Sequence[int]) -> None:
    """What `python -m agentrl` does from here on."""

    def command() -> int:
        _fork_programs()
        os.environ.clear()
        os.environ.update(order["env"])
        os.chdir(order["cwd"])
        sys.argv = ["agentrl", *order["arguments"]]
        return int(importlib.import_module("agentrl.cli.app").run(order["arguments"]))

    _live(command, streams)


def _live(program: Callable[[], object], streams: Sequence[int]) -> NoReturn:
    """Run a program to its end in this fork, with these streams and no other descriptor."""
    code: object = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for descriptor, stream in enumerate(streams):
            os.dup2(stream, descriptor)
        os.closerange(3, 1 << 16)
        try:
            code = program()
        except SystemExit as end:
            code = end.code
        # `os._exit` skips this part of the normal end of an interpreter.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - a fork must never go on as the server
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code if isinstance(code, int) else int(code is not None))


def _fork_programs() -> None:
    """A program of agentrl that this command starts is a fork as well, with the arguments, environment, directory and
    streams that it would get."""
    execute = subprocess._fork_exec  # type: ignore[attr-defined]

    def fork_or_execute(command: Sequence[bytes | str], *rest: Any) -> int:
        words = [os.fsdecode(word) for word in command]
        _, _, passed, cwd, env, read, _, _, out, _, err, *_ = rest
        if words[:2] != [sys.executable, "-m"] or words[2] not in PROGRAMS or passed:
            return int(execute(command, *rest))
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid

        def program() -> None:
            if cwd is not None:
                os.chdir(cwd)
            if env is not None:
                os.environ.clear()
                os.environ.update(dict(os.fsdecode(pair).split("=", 1) for pair in env))
            sys.argv = words[2:]
            runpy.run_module(words[2], run_name="__main__", alter_sys=True)

        # Above the three that they become, because one of them may be the number of another.
        streams = [
            fcntl.fcntl(number if number >= 0 else own, fcntl.F_DUPFD, 16)
            for own, number in enumerate((read, out, err))
        ]
        _live(program, streams)

    subprocess._fork_exec = fork_or_execute  # type: ignore[attr-defined]


if __name__ == "__main__":
    import_everything()
    serve(socket.socket(fileno=int(sys.argv[1])), sys.stdin.fileno())
