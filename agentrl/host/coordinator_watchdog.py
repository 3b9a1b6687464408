"""Keeps one coordinator alive: starts or adopts it, replaces it when it dies or hangs, and reports these events.

Invariants:
- At most one coordinator is started at a time; a living one is adopted.
- The first death is followed by a restart at once, later ones after growing pauses.
- A coordinator that is silent for too long is continued if a signal stopped it. Otherwise it writes its stacks and is
  replaced.
- An end is final if a restart cannot help (wrong configuration, another process or host has the run) or if it was
  orderly.
- The next coordinator that greets this agent gets reports about its predecessors.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from agentrl.errors import ExitCode
from agentrl.host import procfs
from agentrl.host.child_processes import ChildProcesses, Process
from agentrl.host.coordinator_process import coordinator_command, living_coordinator, start_coordinator
from agentrl.host.log_files import tail_of
from agentrl.protocol.message_base import Message
from agentrl.protocol.messages import BeatAck, CoordinatorTrouble, ExitStatus, ToHost, Welcome

log = logging.getLogger(__name__)

START_WITHIN_S = 60.0
"""A new coordinator reads its journal before it sends its first message."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_GOOD_LIFE_S = 60.0
# The holder of the lock may have started a moment ago, before it wrote coordinator.json.
_HOLDER_WITHIN_S = 5.0
_HOLDER_POLL_S = 0.2
_STACKS_GRACE_S = 2.0
"""How long a coordinator that hangs has to write its stacks before it is killed."""
_MOST_TROUBLES = 20
_LOOKS_PER_PATIENCE = 20
_PACE_S = (0.05, 1.0)


class SilenceTimer:
    """Measures how long the coordinator has been silent, in periodic looks of the agent's own loop.

    Each look adds at most twice the usual interval. So time in which this agent was stopped, or the host slept, does
    not count.
    """

    def __init__(self) -> None:
        self.patience_s = START_WITHIN_S
        """How long a silence may last; the coordinator's Welcome sets it."""
        self.lasted_s = 0.0
        self._received = False
        self._looked_at = 0.0

    @property
    def pace_s(self) -> float:
        """The time between looks."""
        least, most = _PACE_S
        return min(max(self.patience_s / _LOOKS_PER_PATIENCE, least), most)

    @property
    def too_long(self) -> bool:
        return self.lasted_s >= (self.patience_s if self._received else max(self.patience_s, START_WITHIN_S))

    def begin(self, now: float) -> None:
        """Begin with a new coordinator process; until its first message it has the time of a slow start."""
        self._received, self._looked_at, self.lasted_s = False, now, 0.0

    def message_received(self) -> None:
        self._received, self.lasted_s = True, 0.0

    def reset(self) -> None:
        self.lasted_s = 0.0

    def look(self, now: float) -> None:
        # Twice the interval: a loop that is only a little late was not stopped.
        self.lasted_s += min(now - self._looked_at, 2 * self.pace_s)
        self._looked_at = now


class CoordinatorWatchdog:
    """Owns the coordinator process of one run on this host."""

    def __init__(
        self,
        processes: ChildProcesses,
        state_dir: Path,
        log_path: Path,
        run: str,
        *,
        on_given_up: Callable[[str], None],
        on_left: Callable[[], bool],
        on_taken: Callable[[], bool],
        command: tuple[str, ...] = (),
        started_pid: int = 0,
    ) -> None:
        """`on_left` is called when the coordinator ended in order, and `on_taken` when it ended because another one has
        the run; they return whether the agent ends too.
        `started_pid` is a coordinator that this process has started already."""
        self._processes = processes
        self._state_dir = state_dir
        self._log_path = log_path
        self._run = run
        self._on_given_up = on_given_up
        self._on_left = on_left
        self._on_taken = on_taken
        self._command = command or coordinator_command(state_dir)
        self._started_pid = started_pid
        self._process: Process | None = None
        self._began = 0.0
        self._deaths = 0
        self._restart_timer: asyncio.TimerHandle | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._silence = SilenceTimer()
        self._continued = False
        """Whether a signal stopped this coordinator and the watchdog continued it."""
        self._ending_because = ""
        self._unreported: deque[tuple[float, CoordinatorTrouble]] = deque(maxlen=_MOST_TROUBLES)
        self.given_up = ""
        """The reason why no coordinator is started any more; empty if one is."""

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def active(self) -> bool:
        """Whether a coordinator lives or will be started again."""
        return not self.given_up

    def start(self) -> None:
        """Adopt the living coordinator, or start one."""
        self._restart_timer = None
        if self._process is not None or self.given_up:
            return
        self._began = asyncio.get_running_loop().time()
        self._schedule_look()
        pid, self._started_pid = self._started_pid, 0
        if not pid and self._adopt():
            return
        try:
            pid = pid or start_coordinator(self._command, self._run, self._log_path)
            self._watch(self._processes.watch_child(pid, self._on_exit))
        except OSError as failed:
            log.error("The coordinator cannot be started: %s.", failed)
            self._restart()
            return
        log.info("The coordinator was started as process %d.", pid)

    def stop(self) -> None:
        """End the restarts. A living coordinator lives on."""
        self.given_up = self.given_up or "the host agent ends"
        for timer in (self._restart_timer, self._look_timer):
            if timer is not None:
                timer.cancel()

    def end(self) -> None:
        """End the coordinator with this agent, because this host goes away."""
        self.stop()
        if self._process is not None:
            self._process.signal(signal.SIGTERM)

    def received(self, message: ToHost, send: Callable[[Message], bool]) -> None:
        """Handle a message of the coordinator. One that knows this host gets the reports about earlier coordinators."""
        self._silence.message_received()
        if isinstance(message, Welcome):
            self._silence.patience_s = message.coordinator_silent_s or self._silence.patience_s
        if isinstance(message, Welcome | BeatAck):
            self._report(send)

    def _report(self, send: Callable[[Message], bool]) -> None:
        now = asyncio.get_running_loop().time()
        while self._unreported:
            at, trouble = self._unreported[0]
            if not send(msgspec.structs.replace(trouble, age_s=now - at)):
                return
            self._unreported.popleft()

    def _watch(self, process: Process) -> None:
        self._process = process
        self._continued, self._ending_because = False, ""
        self._silence.begin(asyncio.get_running_loop().time())

    def _adopt(self) -> bool:
        identity = living_coordinator(self._state_dir)
        process = self._processes.adopt(identity, self._on_exit) if identity is not None else None
        if process is None:
            return False
        self._watch(process)
        log.info("The coordinator lives as process %d and was adopted.", process.pid)
        return True

    # ---- silence ----

    def _schedule_look(self) -> None:
        if self._look_timer is not None:
            self._look_timer.cancel()
        self._look_timer = asyncio.get_running_loop().call_later(self._silence.pace_s, self._look)

    def _look(self) -> None:
        self._schedule_look()
        self._silence.look(asyncio.get_running_loop().time())
        if self._process is not None and self._silence.too_long:
            self._continue_or_replace(self._process)

    def _continue_or_replace(self, process: Process) -> None:
        stat = procfs.read_stat(process.pid)
        stopped = stat is not None and stat.state in ("T", "t")
        lasted_s = self._silence.lasted_s
        self._silence.reset()
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
        self._unreported.append((asyncio.get_running_loop().time(), trouble))
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
            self._give_up(f"The coordinator's configuration is wrong; {self._log_path} has the reason.")
        elif status.code == ExitCode.CONFLICT and not self._on_taken():
            self._adopt_holder(asyncio.get_running_loop().time() + _HOLDER_WITHIN_S)
        else:
            self._note(process, self._ending_because or "ended", "another one was started", status)
            self._restart()

    def _adopt_holder(self, deadline: float) -> None:
        """Another coordinator holds the lock: adopt it as soon as coordinator.json names it."""
        loop = asyncio.get_running_loop()
        self._restart_timer = None
        if self._adopt():
            return
        if loop.time() >= deadline:
            self._give_up(f"Another coordinator holds {self._state_dir}; {self._log_path} has the reason.")
            return
        self._restart_timer = loop.call_later(_HOLDER_POLL_S, self._adopt_holder, deadline)

    def _give_up(self, sentence: str) -> None:
        log.error("%s No other coordinator is started.", sentence)
        self.given_up = sentence
        self._on_given_up(sentence)

    def _restart(self) -> None:
        loop = asyncio.get_running_loop()
        self._deaths = 0 if loop.time() - self._began > _GOOD_LIFE_S else self._deaths
        pause_s = 0.0 if self._deaths == 0 else min(_FIRST_PAUSE_S * 2 ** (self._deaths - 1), _LONGEST_PAUSE_S)
        self._deaths += 1
        self._restart_timer = loop.call_later(pause_s, self.start)
