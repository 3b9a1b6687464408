"""The processes that the agent started or adopted: their identity, their signals, their end.

* Every process has a pidfd with a checked start time, so a signal never reaches another process with the same pid.
* The end of a process is reported exactly once.
* Orphans that became children of the agent are reaped without touching the status of a known child.
* Nothing here blocks the loop for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import signal
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agentrl.host import procfs
from agentrl.host.process_spawner import ProcessSpawner
from agentrl.protocol.messages import ExitStatus

log = logging.getLogger(__name__)

_PR_SET_CHILD_SUBREAPER = 36
# struct pidfd_info of linux/pidfd.h in its first size; the kernel fills exit_code since 6.15.
_PIDFD_INFO_BYTES = 64
_PIDFD_GET_INFO = (3 << 30) | (_PIDFD_INFO_BYTES << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3
_EXIT_CODE_OFFSET = 60
# How long to look for the status of an adopted process: its own parent must reap it first.
_STATUS_TRIES_S = (0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4)

NOT_ITS_PARENT = "the process that started it was killed before it ended"

OnExit = Callable[["Process", ExitStatus], None]


class Process:
    """One process, ours or adopted."""

    def __init__(self, pid: int, start_ticks: int, pidfd: int, on_exit: OnExit, status_file: Path | None = None):
        self.pid = pid
        self.start_ticks = start_ticks
        self.status_file = status_file
        """The file into which the spawn helper of an earlier agent writes its exit status."""
        self.exit: ExitStatus | None = None
        self._pidfd = pidfd
        self._on_exit = on_exit

    @property
    def identity(self) -> procfs.Identity:
        return procfs.Identity(self.pid, self.start_ticks, procfs.boot_id())

    def signal(self, number: int) -> bool:
        """Signal this process; False if it has ended."""
        if self._pidfd < 0:
            return False
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def signal_group(self, number: int) -> bool:
        """Signal the process group that the process leads; False if it has ended."""
        if not self.signal(0):
            return False
        # The pidfd proves that the leader was not reaped, so the group's number cannot belong to another group.
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return self.signal(number)
        return True


class ChildProcesses:
    """All processes of the agent. One instance per process, because reaping concerns the whole process."""

    def __init__(self, run: str = "", *, clone_into_cgroup: bool = True) -> None:
        _let_children_have_default_signals()
        self._spawner = ProcessSpawner(run, clone_into_cgroup=clone_into_cgroup)
        self._loop = asyncio.get_running_loop()
        self._known: dict[int, Process] = {}
        self._unwatched: set[int] = set()
        """Killed children that could not be watched."""
        self._asking: set[asyncio.Task[None]] = set()
        self._reap_planned = False
        self._closed = False
        self._subreaper = False

    def become_parent_of_orphans(self) -> None:
        """Make this process the parent of descendants whose parents die, so that they can be found and reaped."""
        self._subreaper = _set_subreaper(True)
        self._loop.add_signal_handler(signal.SIGCHLD, self._plan_reaping)

    def expect_spawns(self) -> None:
        """Start the spawn helper, so that the first unit does not wait for it."""
        try:
            self._spawner.start()
        except OSError as failed:
            log.warning("The spawn helper cannot be started now: %s.", failed)

    def spawn_unit(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        on_exit: OnExit,
        output: int,
        status_file: Path,
        cwd: str | Path | None = None,
        cgroups: Sequence[Path] = (),
    ) -> Process:
        """Start a process in its own session, whose exit status outlives this agent. Raises OSError if that is not
        possible, ValueError for NUL.

        `output` is a file descriptor for stdout and stderr; never a pipe that dies with the agent.
        `cgroups` are entered before the program runs.
        """
        pid = self._spawner.spawn(command, env, cwd, output, cgroups, status_file)
        return self.watch_child(pid, on_exit)

    def spawn(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        on_exit: OnExit,
        output: int,
        cwd: str | Path | None = None,
    ) -> Process:
        """Start a process in its own session that matters only to this agent. Raises OSError or ValueError."""
        popen = subprocess.Popen(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        popen.returncode = 0  # This object reaps it; Popen must neither do that nor warn about it.
        return self.watch_child(popen.pid, on_exit)

    def watch_child(self, pid: int, on_exit: OnExit) -> Process:
        """Take charge of a child of this process or of the spawn helper. Raises OSError after it killed the child if
        the child cannot be watched."""
        try:
            stat = procfs.read_stat(pid)
            if stat is None:
                raise OSError(errno.EMFILE, f"/proc/{pid} cannot be read")
            process = Process(pid, stat.start_ticks, os.pidfd_open(pid), on_exit)
        except OSError:
            # The child is not reaped, so its pid still belongs to it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            self._unwatched.add(pid)
            raise
        self._watch(process)
        return process

    def adopt(self, identity: procfs.Identity, on_exit: OnExit, status_file: Path | None = None) -> Process | None:
        """Watch a process that another process started; returns None if it does not live. Raises OSError if no file
        descriptor is left, because then the process may live."""
        try:
            pidfd = os.pidfd_open(identity.pid)
        except OSError as failed:
            if failed.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise
            return None
        # This is checked after opening: from here on the descriptor cannot refer to another process.
        if not identity.alive():
            os.close(pidfd)
            return None
        process = Process(identity.pid, identity.start_ticks, pidfd, on_exit, status_file)
        self._watch(process)
        return process

    def own_pids(self) -> frozenset[int]:
        return frozenset({*self._known, self._spawner.pid})

    def close(self) -> None:
        """Stop watching. The processes live on."""
        self._closed = True
        self._spawner.close()
        if self._subreaper:
            _set_subreaper(False)
        self._loop.remove_signal_handler(signal.SIGCHLD)
        for task in self._asking:
            task.cancel()
        for process in self._known.values():
            self._unwatch(process)
        self._known.clear()

    def _watch(self, process: Process) -> None:
        self._known[process.pid] = process
        self._loop.add_reader(process._pidfd, self._on_ended, process)

    def _unwatch(self, process: Process) -> None:
        if process._pidfd >= 0:
            self._loop.remove_reader(process._pidfd)
            os.close(process._pidfd)
            process._pidfd = -1

    def _on_ended(self, process: Process) -> None:
        if (status := self._reap(process.pid)) is not None:
            self._finish(process, status)
            return
        self._loop.remove_reader(process._pidfd)
        task = self._loop.create_task(self._ask_status(process), name=f"status of {process.pid}")
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def _reap(self, pid: int) -> ExitStatus | None:
        """Reaps an ended child of this process or of its spawn helper and returns its status; None for other
        processes."""
        raw = _wait_status(pid)
        if raw is None:
            raw = self._spawner.reap(pid)
        if raw is None:
            raw = _wait_status(pid)  # The helper was replaced just now, so its child became a child of this process.
        return None if raw is None else _status_of_wait(raw)

    async def _ask_status(self, process: Process) -> None:
        """Get the status of an adopted process: from the spawn helper that started it, or from a newer kernel."""
        for pause_s in _STATUS_TRIES_S:
            await asyncio.sleep(pause_s)
            status = status_in(process.status_file) or _status_by_pidfd(process._pidfd)
            if status is not None:
                break
        self._finish(process, status or ExitStatus(unknown=NOT_ITS_PARENT))

    def _finish(self, process: Process, status: ExitStatus) -> None:
        if process.exit is not None:
            return
        process.exit = status
        self._known.pop(process.pid, None)
        self._unwatch(process)
        process._on_exit(process, status)

    def _plan_reaping(self) -> None:
        if not self._reap_planned:
            self._reap_planned = True
            self._loop.call_soon(self.reap)

    def reap(self) -> None:
        """Reap every child that ended: known ones with their status, orphans without."""
        self._reap_planned = False
        self._unwatched = {pid for pid in self._unwatched if self._reap(pid) is None}
        while not self._closed:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            process = self._known.get(ended.si_pid)
            raw = _wait_status(ended.si_pid)
            if process is not None:
                unknown = ExitStatus(unknown="another part of the host agent read its status")
                self._finish(process, unknown if raw is None else _status_of_wait(raw))


def _set_subreaper(wanted: bool) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0) == 0:
        return True
    log.warning("Being parent of orphans cannot be switched: %s.", os.strerror(ctypes.get_errno()))
    return False


def status_of(returncode: int) -> ExitStatus:
    """The status from a number in the convention of subprocess: negative numbers are signals."""
    return ExitStatus(signal=-returncode) if returncode < 0 else ExitStatus(code=returncode)


def status_in(path: Path | None) -> ExitStatus | None:
    """The status that a spawn helper wrote; None if it has not written one."""
    text = procfs.read_bytes(str(path)) if path is not None else b""
    # A line is complete if it ends with a newline.
    return _status_of_wait(int(text)) if text.endswith(b"\n") else None


def _wait_status(pid: int) -> int | None:
    """The wait status of an ended child of this process; None if there is none."""
    try:
        ended, raw = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return raw if ended else None


def _status_of_wait(raw: int) -> ExitStatus:
    return status_of(os.waitstatus_to_exitcode(raw))


def _status_by_pidfd(pidfd: int) -> ExitStatus | None:
    info = bytearray(_PIDFD_INFO_BYTES)
    struct.pack_into("Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return None
    (mask,) = struct.unpack_from("Q", info, 0)
    if not mask & _PIDFD_INFO_EXIT:
        return None
    (raw,) = struct.unpack_from("i", info, _EXIT_CODE_OFFSET)
    return _status_of_wait(raw)


def _let_children_have_default_signals() -> None:
    """A child inherits ignored signals (SIGHUP under nohup, SIGQUIT in the background of a script), but not handlers.
    So this gives ignored signals a handler without effect.
    """
    for number in signal.valid_signals():
        # subprocess and the spawn helper reset these two signals by themselves, and Python needs them ignored.
        if number not in (signal.SIGPIPE, signal.SIGXFSZ) and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
