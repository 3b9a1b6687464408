"""Runs each batch of test files in a fork of this process, which has imported what most tests import.

Invariants:
- A batch is a process of its own, so that tests which kill all their descendants, or change their process, harm no
  other batch.
- What a batch leaves behind is reaped by its lane: the lane counts the processor seconds of every process that its
  tests started, also of those whose parent ended first.
- After its tests have ended a lane ends what they left, and removes their directory.
- This process starts no thread before it forks.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import resource
import shutil
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tests import preloaded
from tests.suite.schedule import Batch

PACKAGES = ("agentrl.client", "agentrl.config", "agentrl.protocol", "agentrl.store", "agentrl.transport")
LIBRARIES = ("hypothesis", "httpx", "mcp", "motor.motor_asyncio", "starlette.applications", "textual.app", "yaml")
HEAVY = ("torch", "transformers", "transformers.modeling_utils")
PLUGINS = ("pytest_asyncio", "pytest_timeout", "_hypothesis_pytestplugin", "anyio.pytest_plugin")
ENDED_IN_ORDER = (0, 1, 5)
"""Exit codes of pytest: all passed, some failed, no test selected."""
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
_libc = ctypes.CDLL(None, use_errno=True)


def preload() -> None:
    """Import what most tests import."""
    for name in (*LIBRARIES, *HEAVY, "pytest", *PLUGINS):
        importlib.import_module(name)
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{name}.{module.name}")
    preloaded.import_everything()
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, threading.enumerate()


@dataclass
class Lane:
    """A batch that runs."""

    batch: Batch
    pid: int
    channel: int
    output: Path
    begun_at: float
    now: str = ""
    """The test that runs."""
    tests: int = 0
    """How many it has; before they are collected, how many it is expected to have."""
    collected: bool = False
    unread: bytes = b""
    results: dict[str, str] = field(default_factory=dict)
    """The outcome of each test so far."""
    spent: list[tuple[str, float, float]] = field(default_factory=list)
    """Test, seconds, processor seconds."""
    code: int = -1
    cpu_s: float = 0.0
    left: int = 0
    """Processes that its tests left behind."""

    @property
    def ended_in_order(self) -> bool:
        return not self.now and self.code in ENDED_IN_ORDER

    def messages(self) -> list[dict[str, Any]] | None:
        """What has arrived; None after the end of the lane."""
        data = os.read(self.channel, 1 << 16)
        if not data:
            os.close(self.channel)
            os.waitpid(self.pid, 0)
            return None
        *lines, self.unread = (self.unread + data).split(b"\n")
        return [json.loads(line) for line in lines]


def start(batch: Batch, directory: Path, arguments: Sequence[str], begun_at: float) -> Lane:
    """Fork a lane. Its directory is short, because paths of sockets are."""
    reading, writing = os.pipe()
    output = directory.with_suffix(".txt")
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be_lane(batch, directory, output, arguments, writing)
    os.close(writing)
    return Lane(batch, pid, reading, output, begun_at, tests=batch.tests)


# ---- in the fork ----


def _be_lane(batch: Batch, directory: Path, output: Path, arguments: Sequence[str], channel: int) -> NoReturn:
    code = 70
    try:
        os.setsid()
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        _name("suite-lane")
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _redirect(output)
        address = f"agentrl-tests-{os.getpid()}"
        listener = preloaded.listening(f"\0{address}")
        reading, writing = os.pipe()
        commands = os.fork()
        if commands == 0:
            os.close(writing)
            os.close(channel)
            _serve_commands(listener, reading)
        os.close(reading)
        tests = os.fork()
        if tests == 0:
            os.close(writing)
            listener.close()
            _be_tests(batch, directory, [*arguments, *batch.files], address, channel)
        listener.close()
        signal.signal(signal.SIGINT, lambda *_: os.kill(tests, signal.SIGINT))
        code = _wait(tests)
        os.close(writing)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(commands, 0)
        left = _end_rest()
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        end = {"kind": "lane", "code": code, "cpu_s": usage.ru_utime + usage.ru_stime, "left": left}
        shutil.rmtree(directory, ignore_errors=True)
        os.write(channel, json.dumps(end).encode() + b"\n")
    except BaseException:  # noqa: BLE001 - a fork must never go on as the suite
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


def _be_tests(batch: Batch, directory: Path, arguments: Sequence[str], address: str, channel: int) -> NoReturn:
    code = 70
    try:
        os.setsid()
        _name("suite-tests")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ[preloaded.ADDRESS] = address
        sys.argv = ["pytest", *arguments]
        pytest = importlib.import_module("pytest")
        reporter = importlib.import_module("tests.suite.reporter").Reporter(channel)
        code = int(pytest.main([f"--basetemp={directory}", *arguments], plugins=[reporter]))
        # `os._exit` skips this part of the normal end of an interpreter.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001 - a fork must never go on as the suite
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


def _serve_commands(listener: socket.socket, end: int) -> NoReturn:
    """The server of preloaded commands of this lane. It is no child of the tests, some of which kill all theirs."""
    try:
        _name("suite-command")
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        preloaded.serve(listener, end)
    finally:
        os._exit(0)


def _name(title: str) -> None:
    _libc.prctl(PR_SET_NAME, title.encode(), 0, 0, 0)


def _redirect(output: Path) -> None:
    for descriptor, path, flags in ((0, os.devnull, os.O_RDONLY), (1, str(output), os.O_WRONLY | os.O_CREAT)):
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.dup2(1, 2)


def _wait(tests: int) -> int:
    """Reap everything until the tests have ended; returns their exit code."""
    while True:
        pid, status = os.wait()
        if pid == tests:
            return os.waitstatus_to_exitcode(status)


def _end_rest() -> int:
    """End what is left, which gets no time: the tests that started it have ended. Returns how many were alive."""
    alive = 0
    while True:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        if not children:
            return alive
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        for child in children:
            with contextlib.suppress(ChildProcessError):
                _, status = os.waitpid(int(child), 0)
                alive += os.WIFSIGNALED(status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
