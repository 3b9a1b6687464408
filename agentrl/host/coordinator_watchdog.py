"""The host agent as guardian of the coordinator.

Invariants: at most one coordinator is started by this agent at a time, and a living one is adopted, never doubled; it
is restarted at once after its first death and with growing pauses after that; one that says nothing for too long is
continued if somebody stopped it, and else made to write its stacks, ended and replaced; an end that a restart cannot
cure (a wrong configuration, a lock held by another, an orderly end) is written down and left, but for an orderly end
with which the agent ends. Whatever befell a coordinator is told to the one that listens next.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from agentrl.errors import ExitCode
from agentrl.host import procfs, spawn_environment
from agentrl.host.child_processes import ChildProcesses, Process
from agentrl.host.log_files import tail_of
from agentrl.host.silence import SilenceTimer
from agentrl.protocol.message_base import Message
from agentrl.protocol.messages import BeatAck, CoordinatorTrouble, ExitStatus, ToHost, Welcome

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_GOOD_LIFE_S = 60.0
# Who holds the lock may have been started a moment ago and not have said yet which process it is.
_HOLDER_WITHIN_S = 5.0
_HOLDER_POLL_S = 0.2
_STACKS_GRACE_S = 2.0
"""How long one that hangs has to write its stacks before it is killed."""
_MOST_UNTOLD = 20


class CoordinatorFile(msgspec.Struct, frozen=True):
    """The part of coordinator.json that tells which process it is."""

    pid: int
    start_ticks: int
    boot_id: str


def read_coordinator_identity(state_dir: Path) -> procfs.Identity | None:
    try:
        found = msgspec.json.decode((state_dir / "coordinator.json").read_bytes(), type=CoordinatorFile)
    except (OSError, msgspec.DecodeError):
        return None
    return procfs.Identity(found.pid, found.start_ticks, found.boot_id)


class CoordinatorWatchdog:
    """Keeps one coordinator alive."""

    def __init__(
        self,
        processes: ChildProcesses,
        state_dir: Path,
        log_path: Path,
        run: str,
        *,
        on_given_up: Callable[[str], None],
        on_left: Callable[[], bool],
        command: tuple[str, ...] = (),
    ) -> None:
        self._processes = processes
        self._state_dir = state_dir
        self._log_path = log_path
        self._run = run
        self._on_given_up = on_given_up
        self._on_left = on_left
        """The coordinator went in order. Answers whether the agent ends with it."""
        self._command = command or (sys.executable, "-m", "daemons.coordinator", "--state-dir", str(state_dir))
        self._process: Process | None = None
        self._began = 0.0
        self._deaths = 0
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._silence = SilenceTimer()
        self._continued = False
        """This coordinator was stopped by a signal once, and continued."""
        self._ending_because = ""
        self._untold: deque[tuple[float, CoordinatorTrouble]] = deque(maxlen=_MOST_UNTOLD)
        self.given_up = ""
        """Why no coordinator is started any more."""

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def keeping(self) -> bool:
        """True while a coordinator lives or will be started again."""
        return not self.given_up

    def start(self) -> None:
        """Adopt the living coordinator, or start one."""
        self._timer = None
        if self._process is not None or self.given_up:
            return
        self._began = asyncio.get_running_loop().time()
        self._look_again()
        if self._adopted():
            return
        try:
            self._guard(self._spawn())
            log.info("The coordinator was started as process %d.", self.pid)
        except OSError as failed:
            log.error("The coordinator cannot be started: %s.", failed)
            self._again()

    def stop(self) -> None:
        """No restarts any more; a living coordinator lives on."""
        self.given_up = self.given_up or "the host agent ends"
        for timer in (self._timer, self._watch):
            if timer is not None:
                timer.cancel()

    def heard(self, message: ToHost, send: Callable[[Message], bool]) -> None:
        """The coordinator said something. One that knows this host is told what befell others before it."""
        self._silence.heard()
        if isinstance(message, Welcome):
            self._silence.patience_s = message.coordinator_silent_s or self._silence.patience_s
        if isinstance(message, Welcome | BeatAck):
            self._tell(send)

    def _tell(self, send: Callable[[Message], bool]) -> None:
        now = asyncio.get_running_loop().time()
        while self._untold:
            at, trouble = self._untold[0]
            if not send(msgspec.structs.replace(trouble, age_s=now - at)):
                return
            self._untold.popleft()

    def _guard(self, process: Process) -> None:
        self._process = process
        self._continued, self._ending_because = False, ""
        self._silence.begin(asyncio.get_running_loop().time())

    def _adopted(self) -> bool:
        identity = read_coordinator_identity(self._state_dir)
        if identity is None:
            return False
        process = self._processes.adopt(identity, self._on_exit)
        if process is None:
            return False
        self._guard(process)
        log.info("The coordinator lives as process %d and was adopted.", process.pid)
        return True

    def _spawn(self) -> Process:
        env = spawn_environment.without_marks(os.environ) | {"AGENTRL_RUN": self._run}
        output = os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            return self._processes.spawn(self._command, env=env, on_exit=self._on_exit, output=output)
        finally:
            os.close(output)

    # ---- silence ----

    def _look_again(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = asyncio.get_running_loop().call_later(self._silence.pace_s, self._look)

    def _look(self) -> None:
        self._look_again()
        self._silence.look(asyncio.get_running_loop().time())
        if self._process is not None and self._silence.too_long:
            self._unhang(self._process)

    def _unhang(self, process: Process) -> None:
        """Nothing was heard of it for too long."""
        stat = procfs.read_stat(process.pid)
        stopped = stat is not None and stat.state in ("T", "t")
        lasted_s = self._silence.lasted_s
        self._silence.once_more()
        if stopped and not self._continued:
            self._continued = True
            process.signal(signal.SIGCONT)
            self._note(process, "was stopped by a signal", f"it was continued after {lasted_s:.0f} s of silence")
        elif not self._ending_because:
            self._ending_because = f"was silent for {lasted_s:.0f} s"
            log.warning("The coordinator (process %d) %s: it is replaced.", process.pid, self._ending_because)
            process.signal(signal.SIGABRT)
            process.signal(signal.SIGCONT)
            asyncio.get_running_loop().call_later(_STACKS_GRACE_S, process.signal, signal.SIGKILL)

    def _note(self, process: Process, what: str, done: str, exit: ExitStatus | None = None) -> None:
        trouble = CoordinatorTrouble(
            process.pid, what, done, exit=exit, tail=tail_of(self._log_path), log=str(self._log_path)
        )
        self._untold.append((asyncio.get_running_loop().time(), trouble))
        log.warning("The coordinator (process %d) %s: %s.", process.pid, what, done)

    # ---- ends ----

    def _on_exit(self, process: Process, status: ExitStatus) -> None:
        self._process = None
        if self.given_up:
            return
        log.warning("The coordinator (process %d) ended: %s.", process.pid, status)
        if status.code == ExitCode.OK:
            if not self._on_left():
                self._give_up("The coordinator ended by itself.")
        elif status.code == ExitCode.CONFIG:
            self._give_up(f"The coordinator's configuration is wrong; its reason stands in {self._log_path}.")
        elif status.code == ExitCode.CONFLICT:
            self._look_for_holder(asyncio.get_running_loop().time() + _HOLDER_WITHIN_S)
        else:
            self._note(process, self._ending_because or "ended", "another one was started", status)
            self._again()

    def _look_for_holder(self, deadline: float) -> None:
        """Another coordinator holds the lock: adopt it as soon as it says which process it is."""
        loop = asyncio.get_running_loop()
        self._timer = None
        if self._adopted():
            return
        if loop.time() >= deadline:
            self._give_up(f"Another coordinator holds {self._state_dir}; the reason stands in {self._log_path}.")
            return
        self._timer = loop.call_later(_HOLDER_POLL_S, self._look_for_holder, deadline)

    def _give_up(self, sentence: str) -> None:
        log.error("%s No other is started.", sentence)
        self.given_up = sentence
        self._on_given_up(sentence)

    def _again(self) -> None:
        loop = asyncio.get_running_loop()
        self._deaths = 0 if loop.time() - self._began > _GOOD_LIFE_S else self._deaths
        pause_s = 0.0 if self._deaths == 0 else min(_FIRST_PAUSE_S * 2 ** (self._deaths - 1), _LONGEST_PAUSE_S)
        self._deaths += 1
        self._timer = loop.call_later(pause_s, self.start)
