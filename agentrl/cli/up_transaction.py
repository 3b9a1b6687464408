"""What an `up` has begun before it is accepted: kept when it is, taken back where it comes to nothing.

Invariants: a run that was never accepted is not there afterwards, unless something of it lives; of a run that another
command brought up nothing is taken back, whenever that was accepted. From its beginning until it is accepted or taken
back an `up` has the run's turn, so that none finds the half of what another makes or takes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from agentrl.cli.cleanup_check import end, until_gone
from agentrl.cli.forget_run import finish_removals, remove_state
from agentrl.cli.progress import Progress
from agentrl.cli.start_coordinator import Place
from agentrl.client import Client
from agentrl.client.run_processes import keepers_of, read_json
from agentrl.config import paths
from agentrl.errors import AgentrlError, ConflictError
from agentrl.protocol.commands import Accepted, Down
from agentrl.protocol.rows import OperationState

_TAKEN_BACK_WITHIN_S = 20.0
NOTHING_CHANGED = "Nothing was started or changed."
_LEFT_TO_ANOTHER = "Another `up` was accepted meanwhile; this one started and changed nothing else."
_POLL_S = 0.05


class Turn:
    """The right to begin a run. It goes with its holder, however that ends."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    @classmethod
    def take(cls, state_dir: Path) -> Turn | None:
        """None while another has it, or if there is no such directory any more."""
        try:
            handle = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        turn = cls(handle)
        try:
            # On the directory itself, so that what is taken back leaves no lock behind.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.stat(state_dir)):
                return turn
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError:
            return turn  # a place without locks is refused by the coordinator, with a better sentence
        turn.release()
        return None

    def release(self) -> None:
        """May be said twice."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Beginning:
    """One `up`, until it is accepted or refused."""

    place: Place
    file: Path | None = None
    """The run file, to be remembered; None where there is none, or where it is not of this host."""
    sets: tuple[str, ...] = ()
    new_run: bool = False
    new_dir: bool = False
    """The state directory, and the run's, were not there before."""
    started: bool = False
    """Agent and coordinator are there for this command alone."""
    turn: Turn | None = None
    """None for a run elsewhere, which is never begun from here."""

    @classmethod
    def make(cls, place: Place, file: Path | None, sets: tuple[str, ...], *, elsewhere: Path | None) -> Beginning:
        """Make the run of that place where there is none yet."""
        finish_removals(paths.home())
        new_dir = not place.run_dir.exists()
        # What a directory of before holds besides is not ours to remove, nor a link to one that is not mounted now.
        new_run = not os.path.lexists(place.state_dir) and not (elsewhere and os.path.lexists(elsewhere))
        paths.create_run(place.name, place.run_dir, elsewhere=elsewhere)
        return cls(place, file, sets, new_run, new_dir)

    @classmethod
    async def in_turn(
        cls, place: Place, make: Callable[[], Beginning], progress: Progress, within_s: float
    ) -> Beginning:
        """What `make` makes, and the turn. ConflictError if another `up` has it for longer than that."""
        deadline, begun = time.monotonic() + within_s, make()
        while (turn := Turn.take(place.state_dir)) is None:
            if not place.state_dir.is_dir():
                begun = make()  # the other one has taken the run back
                continue
            if time.monotonic() > deadline:
                raise ConflictError(
                    f"Another `agentrl up` begins the run {place.name}, and was not accepted within {within_s:g} s.",
                    hint="It goes on. `agentrl status` shows what became of it; or say `agentrl up` again.",
                )
            progress.step(f"another `agentrl up` begins the run {place.name}: this one joins it when that is accepted")
            await asyncio.sleep(_POLL_S)
        return dataclasses.replace(begun, turn=turn)

    def let_go(self) -> None:
        """Accepted or taken back, or nothing is there to be taken back: others may begin."""
        if self.turn is not None:
            self.turn.release()

    def accepted(self) -> None:
        """Remember what the run was last started with, for `agentrl up --run NAME`, and that it was accepted."""
        state_dir = self.place.state_dir
        # Another command that made the run may have taken it away again before it heard of this one.
        if self.file is None or not state_dir.is_dir():
            return
        target = state_dir / paths.LAST_UP
        draft = target.with_suffix(f".{os.getpid()}")  # two `up` at once write one after the other, not into one draft
        draft.write_text(json.dumps({"file": str(self.file), "sets": list(self.sets)}))
        draft.replace(target)

    async def taken_back(self) -> str:
        """Leave everything as it was before; what is then true, in a sentence."""
        if not self.started:
            return NOTHING_CHANGED
        told = await _keepers_ended(self.place)
        if self.new_run:
            self._remove()
        return told

    def _remove(self) -> None:
        """The state of a run that was never accepted, and its directory if nothing is in it."""
        state_dir = self.place.state_dir
        if keepers_of(state_dir) or (state_dir / paths.LAST_UP).exists():
            return
        if self.new_dir:
            with contextlib.suppress(OSError):
                self.place.run_dir.rmdir()
        # Last: from now on another `up` makes the run anew.
        remove_state(state_dir)


async def _keepers_ended(place: Place) -> str:
    """End agent and coordinator of a run that is not up: they were started for a command that came to nothing.

    Those of a run that is up stay: it was without them and its units live on, or another `up` was accepted meanwhile,
    which only the coordinator can tell, in the moment in which it is told to end.
    """
    left = keepers_of(place.state_dir)
    with contextlib.suppress(AgentrlError):
        async with Client.connect(run=place.name, timeout_s=_TAKEN_BACK_WITHIN_S) as client:
            # An agent that has not come yet would not be told to leave.
            deadline = time.monotonic() + _TAKEN_BACK_WITHIN_S
            while not (report := await client.status()).hosts and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
            if report.run.desired == "up":
                return "Agent and coordinator of the run are up again; nothing else was started or changed."
            try:
                down: Accepted = await client.call("down", Down(now=True, unless_up=True))
            except ConflictError:
                return _LEFT_TO_ANOTHER
            if await _is_wanted_again(client, down.operation):
                return _LEFT_TO_ANOTHER
        await end(await until_gone(left, _TAKEN_BACK_WITHIN_S))
    # Whoever lives now, who need not be who lived at first: an agent may have brought its coordinator back.
    return what_lives(place) if keepers_of(place.state_dir) else NOTHING_CHANGED


async def _is_wanted_again(client: Client, down: str) -> bool:
    """Whether an `up` came after this `down` and before the run's end: agent and coordinator stay for it."""
    try:
        row = await client.wait(down, timeout_s=_TAKEN_BACK_WITHIN_S)
    except AgentrlError:
        return False  # It left before it could say so, or hangs.
    return row.state is OperationState.SUPERSEDED


def what_lives(place: Place) -> str:
    """Of an `up` that ended before any unit was started."""
    names = ", ".join(f"{one.what} (pid {one.pid})" for one in keepers_of(place.state_dir))
    if not names:
        return "Nothing was started."
    return f"No unit was started. Still there: {names}. `agentrl down --run {place.name}` ends it."


def remembered(state_dir: Path) -> tuple[Path, tuple[str, ...]] | None:
    """The run file and settings of the last `up`; None if there was none."""
    found = read_json(state_dir / paths.LAST_UP)
    file, sets = found.get("file"), found.get("sets", [])
    if not isinstance(file, str) or not isinstance(sets, list):
        return None
    return Path(file), tuple(str(one) for one in sets)
