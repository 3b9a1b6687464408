"""Runs a program in a living sandbox, for an operator.

Invariants:
- The program is a list of words, which are not passed to a shell.
- It runs in the namespaces, the cgroup and the limits of the sandbox, with its filter of system calls. When its time is
  over, it and everything that it started are ended.
- Its output is bounded, and secrets of the server are removed from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import platform
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from agentrl.config.tool_sandbox import Sandbox
from agentrl.errors import RefusedError, UnavailableError
from agentrl.host import procfs
from agentrl.sandboxes import bubblewrap, system_calls
from agentrl.sandboxes.launch_environment import Launch

MOST_BYTES = 256 << 10
"""The most bytes of each of the two outputs."""
MARK = "AGENTRL_EXEC"
"""A variable in the environment of the program and of what it starts; it has the id of the operation."""
_PASSED = ("HOME", "LANG", "LC_ALL", "PATH", "TZ")
_ROUNDS, _ROUND_S = 20, 0.05
_ENTER = Path(__file__).with_name("enter_sandbox.py")


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended."""

    exit: int | None
    """None if it was ended because it took too long."""
    stdout: str
    stderr: str
    cut: bool
    seconds: float
    not_started: str = ""
    """Why nothing was run."""


async def run_inside(
    launch: Launch,
    limits: Sandbox,
    first: int,
    command: Sequence[str],
    *,
    within_s: float,
    secrets: Sequence[str],
    mark: str,
) -> Ran:
    """Run a program in the sandbox whose first process on the host is `first`. Raises UnavailableError, RefusedError.

    `secrets` are removed from the output; `mark` names the program for a search of what it started.
    """
    began = time.monotonic()
    words = _command(launch, limits, first, command)
    env = {name: launch.env[name] for name in _PASSED if name in launch.env} | {MARK: mark}
    process = await asyncio.create_subprocess_exec(
        *words, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=env, start_new_session=True, cwd="/"
    )
    assert process.stdout is not None
    assert process.stderr is not None
    outputs = [asyncio.create_task(_bounded(stream)) for stream in (process.stdout, process.stderr)]
    code: int | None = None
    try:
        async with asyncio.timeout(within_s):
            code = await process.wait()
    except TimeoutError:
        pass
    finally:
        _end(process, first, mark)
    for _ in range(_ROUNDS):
        # A process that left the group is found only when its parent is dead. Until then it may hold the pipes open.
        await asyncio.sleep(_ROUND_S)
        _end(process, first, mark)
        if all(task.done() for task in outputs):
            break
    texts = [_text(task, secrets) for task in outputs]
    process._transport.close()  # type: ignore[attr-defined]
    seconds = round(time.monotonic() - began, 3)
    why = not_started(launch.sandbox, command[0], code, texts[1][0])
    return Ran(code, texts[0][0], texts[1][0], texts[0][1] or texts[1][1], seconds, why)


def _command(launch: Launch, limits: Sandbox, first: int, command: Sequence[str]) -> list[str]:
    match launch.sandbox:
        case "process":
            calls = "" if bubblewrap.problem_of_filter() else system_calls.program(platform.machine()).hex()
            words = [sys.executable, "-I", "-S", str(_ENTER), str(_inside(first)), str(launch.cwd)]
            words += [_limits(limits), calls, *command]
            return list(launch.cgroup.entered(words)) if launch.cgroup is not None else words
        case "container":
            engine, *_, name = launch.removal
            return [engine, "exec", name, *command]
        case _:
            raise RefusedError(
                "The server runs without a sandbox, so there is nothing to enter.", hint="Use a shell of its host."
            )


def not_started(kind: str, program: str, code: int | None, complaint: str) -> str:
    """Why a program was not started, by what `enter_sandbox` or the engine wrote; a program may exit with 127 too."""
    if code not in (126, 127):
        return ""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    if kind == "container":
        return next((line for line in lines if "exec failed" in line or "executable file not found" in line), "")
    reasons = [os.strerror(number) for number in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR)]
    return next((why for why in reasons if lines == [f"{program}: {why}"]), "")


def _inside(first: int) -> int:
    """The process of the server, as the host sees it: the first one below that of bubblewrap."""
    found: dict[int, int] = {}
    with contextlib.suppress(psutil.Error):
        for each in psutil.Process(first).children(recursive=True):
            if (inner := _inner_pid(each.pid)) > 1:
                found[inner] = each.pid
    if not found:
        raise UnavailableError("The sandbox has no process to enter; it is starting or ending.")
    return found[min(found)]


def _inner_pid(pid: int) -> int:
    """The pid in its own pid namespace; 0 if it is in the namespace of the host."""
    lines = procfs.read_bytes(f"/proc/{pid}/status").splitlines()
    words = next((line.split() for line in lines if line.startswith(b"NSpid:")), [])
    return int(words[-1]) if len(words) > 2 else 0


def _limits(limits: Sandbox) -> str:
    values = {"data": limits.memory, "nproc": limits.processes, "nofile": limits.open_files, "fsize": limits.file_size}
    values |= {"core": 0, **({"cpu": limits.cpu_s} if limits.cpu_s else {})}
    return ",".join(f"{name}={value}" for name, value in values.items())


def _end(process: Process, first: int, mark: str) -> None:
    """Kill the program and everything that it started, including processes that left its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    marked = f"{MARK}={mark}".encode()
    with contextlib.suppress(psutil.Error):
        for each in psutil.Process(first).children(recursive=True):
            if marked in procfs.read_bytes(f"/proc/{each.pid}/environ").split(b"\0"):
                with contextlib.suppress(psutil.Error):
                    each.kill()


async def _bounded(stream: asyncio.StreamReader) -> tuple[bytes, bool]:
    """The beginning of an output, and whether there was more. The rest is read too, so that the program is not
    blocked."""
    kept = bytearray()
    cut = False
    while data := await stream.read(1 << 16):
        room = MOST_BYTES - len(kept)
        kept += data[:room]
        cut = cut or len(data) > room
    return bytes(kept), cut


def _text(task: asyncio.Task[tuple[bytes, bool]], secrets: Sequence[str]) -> tuple[str, bool]:
    if not task.done():
        task.cancel()
        return "", True
    data, cut = task.result()
    text = data.decode(errors="replace")
    for secret in secrets:
        text = text.replace(secret, "***")
    return text, cut


def secrets_of(env: Mapping[str, str], declared: Sequence[str]) -> list[str]:
    """The values of these variables that are long enough to be recognised."""
    return sorted({value for name in declared if len(value := env.get(name, "")) >= 6}, key=len, reverse=True)
