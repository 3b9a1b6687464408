"""Brings a run up as a transaction: creates the run, starts its coordinator, sends the file; or undoes everything.

Invariants:
- A run that was never accepted does not exist afterwards, unless one of its processes lives.
- A run that another command brought up is never undone.
- One `up` at a time begins a run: from its creation until it is accepted or undone the command holds a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from agentrl.cli import output, start_coordinator
from agentrl.cli.execute import agreed, finished, report_accepted
from agentrl.cli.leftover_processes import end, until_gone
from agentrl.cli.options import Cli
from agentrl.cli.progress import Progress
from agentrl.cli.run_removal import finish_removals, remove_state
from agentrl.cli.run_transaction import Transaction
from agentrl.cli.start_coordinator import Place
from agentrl.cli.status import follow_changes
from agentrl.cli.up_report import report
from agentrl.cli.up_wait import until_complete, until_mended
from agentrl.client import Client
from agentrl.client.run_processes import keepers_of, left_up, read_json
from agentrl.config import paths
from agentrl.errors import (
    AgentrlError,
    ConflictError,
    ExitCode,
    NoCoordinatorError,
    TakenDownError,
    WaitTimeoutError,
)
from agentrl.formatting.sentences import ended
from agentrl.protocol.control_commands import Accepted, Apply, Down
from agentrl.protocol.rows import OperationState

_UNDONE_WITHIN_S = 20.0
_POLL_S = 0.05
_COMPLETE_WITHIN_S = 600.0
"""How long `up` without --timeout waits for first versions and tool servers after all units are ready."""
NOTHING_CHANGED = "Nothing was started or changed."
_LEFT_TO_ANOTHER = "Another `up` was accepted meanwhile; this one started and changed nothing else."
_BRINGS_IT_UP = "`agentrl up` brings it up again."


class BeginLock:
    """The right to begin a run. It is released however its holder ends."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    @classmethod
    def take(cls, state_dir: Path) -> BeginLock | None:
        """Returns None while another command holds it, or if the directory does not exist any more."""
        try:
            handle = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        lock = cls(handle)
        try:
            # The lock is on the directory itself, so that an undone run leaves no lock file.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.stat(state_dir)):
                return lock
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError:
            return lock  # the coordinator refuses a file system without locks, with a better message
        lock.release()
        return None

    def release(self) -> None:
        """Releases the lock. Harmless if it is already released."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1


@dataclasses.dataclass(frozen=True, slots=True)
class NewRun:
    """Everything that an `up` created before it was accepted."""

    place: Place
    file: Path | None = None
    """The run file to remember; None if there is none, or if it is on another host."""
    sets: tuple[str, ...] = ()
    new_state_dir: bool = False
    new_run_dir: bool = False
    started: bool = False
    """Whether agent and coordinator were started only for this command."""
    began_at: float = dataclasses.field(default_factory=time.time)
    lock: BeginLock | None = None

    @classmethod
    def create(cls, place: Place, file: Path | None, sets: tuple[str, ...], *, elsewhere: Path | None) -> NewRun:
        """Create the run in its directory unless it exists."""
        finish_removals(paths.home())
        new_run_dir = not place.run_dir.exists()
        # An older directory may hold other files, and a link may lead to a disk that is not mounted now.
        new_state_dir = not os.path.lexists(place.state_dir) and not (elsewhere and os.path.lexists(elsewhere))
        paths.create_run(place.name, place.run_dir, elsewhere=elsewhere)
        return cls(place, file, sets, new_state_dir, new_run_dir)

    @classmethod
    async def create_alone(
        cls, place: Place, create: Callable[[], NewRun], progress: Progress, within_s: float
    ) -> NewRun:
        """Create the run and take its lock. Raises ConflictError if another `up` holds the lock for too long."""
        deadline, run = time.monotonic() + within_s, create()
        while (lock := BeginLock.take(place.state_dir)) is None:
            if not place.state_dir.is_dir():
                run = create()  # the other command undid the run
                continue
            if time.monotonic() > deadline:
                raise ConflictError(
                    f"Another `agentrl up` begins the run {place.name}, and was not accepted within {within_s:g} s.",
                    hint="It goes on. `agentrl status` shows its result; or run `agentrl up` again.",
                )
            progress.step(f"another `agentrl up` begins the run {place.name}: this one joins it when that is accepted")
            await asyncio.sleep(_POLL_S)
        return dataclasses.replace(run, lock=lock)

    def release(self) -> None:
        """Let other commands begin the run."""
        if self.lock is not None:
            self.lock.release()

    def remember(self) -> None:
        """Keep the file and its settings for `agentrl up --run NAME`; the file also shows that an `up` was accepted."""
        state_dir = self.place.state_dir
        # The command that created the run may have undone it since then.
        if self.file is None or not state_dir.is_dir():
            return
        target = state_dir / paths.LAST_UP
        draft = target.with_suffix(f".{os.getpid()}")  # two commands may write at once
        draft.write_text(json.dumps({"file": str(self.file), "sets": list(self.sets)}))
        draft.replace(target)

    async def undo(self) -> str:
        """Restore the state before this command; returns a sentence about the result."""
        if not self.started:
            return NOTHING_CHANGED
        left = await _end_keepers(self.place)
        if self.new_state_dir:
            self._remove()
        return left

    def _remove(self) -> None:
        """Remove the state of a run that was never accepted, and its directory if that is empty."""
        state_dir = self.place.state_dir
        if keepers_of(state_dir) or (state_dir / paths.LAST_UP).exists():
            return
        if self.new_run_dir:
            shutil.rmtree(self.place.run_dir / paths.PINS, ignore_errors=True)
            with contextlib.suppress(OSError):
                self.place.run_dir.rmdir()
        # This comes last, because from then on another `up` may create the run.
        remove_state(state_dir)


async def _end_keepers(place: Place) -> str:
    """End agent and coordinator of a run that is not up; they were started for a command that was not accepted.

    They stay if the run is up after all: because it had lost them while its units live, or another `up` was accepted
    meanwhile. Only the coordinator knows this, at the moment of its `down`.
    """
    left = keepers_of(place.state_dir)
    with contextlib.suppress(AgentrlError):
        async with Client.connect(run=place.name, timeout_s=_UNDONE_WITHIN_S) as client:
            # An agent that has not registered yet would not get the order to end.
            deadline = time.monotonic() + _UNDONE_WITHIN_S
            while not (status := await client.status()).hosts and time.monotonic() < deadline:
                await asyncio.sleep(_POLL_S)
            if status.run.desired == "up":
                return "Agent and coordinator of the run are up again; nothing else was started or changed."
            try:
                down: Accepted = await client.call("down", Down(now=True, unless_up=True))
            except ConflictError:
                return _LEFT_TO_ANOTHER
            if await _was_superseded(client, down.operation):
                return _LEFT_TO_ANOTHER
        await end(await until_gone(left, _UNDONE_WITHIN_S))
    # The processes are read again, because an agent may have restarted its coordinator.
    return what_lives(place) if keepers_of(place.state_dir) else NOTHING_CHANGED


async def _was_superseded(client: Client, down: str) -> bool:
    """Whether another `up`, which needs agent and coordinator, came after this `down`."""
    try:
        row = await client.wait(down, timeout_s=_UNDONE_WITHIN_S)
    except AgentrlError:
        return False  # The coordinator ended before it could answer, or it hangs.
    return row.state is OperationState.SUPERSEDED


def what_lives(place: Place) -> str:
    """Describe the remains of an `up` that ended before a unit was started."""
    names = ", ".join(f"{one.what} (pid {one.pid})" for one in keepers_of(place.state_dir))
    if not names:
        return "Nothing was started."
    return f"No unit was started. Still there: {names}. `agentrl down --run {place.name}` ends it."


def last_up(state_dir: Path) -> tuple[Path, tuple[str, ...]] | None:
    """The run file and settings of the last `up`; None if there was none."""
    found = read_json(state_dir / paths.LAST_UP)
    file, sets = found.get("file"), found.get("sets", [])
    if not isinstance(file, str) or not isinstance(sets, list):
        return None
    return Path(file), tuple(str(one) for one in sets)


class Up(Transaction):
    """Sends a configuration to the coordinator of a run, which it starts if the run is on this host."""

    def __init__(
        self, cli: Cli, place: Place, args: Apply, *, create: Callable[[], NewRun], silent_s: float, follow: bool
    ) -> None:
        super().__init__(cli)
        self._place = place
        self._args = args
        self._create = create
        self._silent_s = silent_s
        self._follow = follow
        self._run: NewRun | None = None
        self._connected = False
        self._sent = False

    async def prepare(self) -> None:
        if not self.cli.remote:
            await self._start()
        name = self._place.name
        connection = self.cli.connect() if self.cli.remote else Client.connect(run=name, timeout_s=5.0)
        self._client = await self.resources.enter_async_context(connection)
        self._connected = True

    async def _start(self) -> None:
        within_s = start_coordinator.START_WITHIN_S + self._silent_s
        if self.cli.timeout_s is not None:
            within_s = self.cli.timeout_s
        with Progress(self.cli) as progress:
            run = await NewRun.create_alone(self._place, self._create, progress, within_s)
            self._run = dataclasses.replace(run, started=not keepers_of(self._place.state_dir))
            await start_coordinator.ensure_coordinator(self._place, progress, self._silent_s, self.cli.timeout_s)
        if not self._run.started:
            self._run.release()

    async def consent(self) -> bool:
        self._send = await agreed(self.cli, self._client, "apply", self._args)
        return self._send is not None

    async def act(self) -> None:
        assert self._send is not None
        self._sent = True
        self._accepted = await self._send()

    def commit(self) -> None:
        if self._run is not None:
            self._run.remember()
            self._run.release()

    async def roll_back(self, cause: BaseException | None) -> str:
        if self._sent and not _is_refusal(cause):
            self.commit()
            return self.cli.aimed("It was sent, and may still be done: `agentrl status` shows it.")
        run = self._run
        if run is None:
            return NOTHING_CHANGED if self._connected and cause is not None else ""
        try:
            if not self._connected:
                return what_lives(self._place)
            return await run.undo() if run.started or cause is not None else ""
        except BaseException:
            output.note(what_lives(self._place))
            raise
        finally:
            run.release()

    async def finish(self) -> ExitCode:
        cli, name = self.cli, self._place.name
        with self._explained():
            if cli.wait:
                began = time.monotonic()
                row = await finished(cli, self._client, self._accepted.operation)
                if row.superseded_by == "down":
                    raise TakenDownError(ended(f"The run {name} is not up: {row.reason}"), hint=_BRINGS_IT_UP)
                if row.state is OperationState.SUCCEEDED:
                    until = time.monotonic() + _COMPLETE_WITHIN_S
                    until = until if cli.timeout_s is None else began + cli.timeout_s
                    await until_complete(cli, self._client, until)
                    await until_mended(cli, self._client, self._accepted.effect.changes, until)
                # Units may be up again before the coordinator that this command started accepts it.
                since = self._run.began_at if self._run is not None and self._run.started else row.accepted_at
                effect = self._accepted.effect
                code = await report(cli, self._client, name, row, effect, since=since, line=self._follow)
            else:
                report_accepted(cli, self._accepted)
                code = ExitCode.OK
            if self._follow and code in (ExitCode.OK, ExitCode.UNHEALTHY):
                await follow_changes(cli, self._client, until_the_run_ends=True)
        return code

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Print that the run keeps running if the waiting ends early, or that another command took it down."""
        name = self._place.name
        try:
            yield
        except TakenDownError:
            raise
        except BaseException as error:
            silent = isinstance(error, NoCoordinatorError | WaitTimeoutError)
            if silent and not self.cli.remote and not left_up(self._place.state_dir):
                # A coordinator that ends with its run may end before it answers.
                raise TakenDownError(f"The run {name} was taken down meanwhile.", hint=_BRINGS_IT_UP) from None
            if self.cli.remote or keepers_of(self._place.state_dir):
                goes_on = f"The run {name} goes on. `agentrl status` shows it, `agentrl down` ends it."
                output.note(self.cli.aimed(goes_on))
            raise


def _is_refusal(error: BaseException | None) -> bool:
    return isinstance(error, AgentrlError) and not isinstance(error, NoCoordinatorError | WaitTimeoutError)
