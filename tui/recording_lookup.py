"""Which recording a person means, and where in it to begin.

Invariant: the recording that comes with the programs has a name that no run can have, so it is always reached.
"""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from agentrl.client.discovery import state_of
from agentrl.config import paths
from agentrl.errors import ConfigError, UnknownNameError, UsageError
from agentrl.formatting.amounts import seconds
from agentrl.recording.reader import Recording
from agentrl.recording.recording_files import DIRECTORY
from tui.model.mirror import Mirror
from tui.model.playback import SPEEDS
from tui.playback_connection import Replay

_NAMED = 8
SHIPPED = "demo.rec"
"""Part of a real run, which comes with the programs."""
ALWAYS = "@demo"
"""What plays it, whatever runs and files there are; a file of this name is `./@demo`."""
DEMO = "demo"
"""What plays it, too, where there is no run of that name."""
OF_A_RUN, THE_SHIPPED = "run's recording", "shipped recording"
"""Which of them is played, for the banner."""
_MINUTE_S = 60.0


def link(what: str, at: str, speed: float) -> Callable[[Mirror], Replay]:
    """Of a run by its name, or of a file or directory. Raises an error with a sentence where there is none."""
    if not SPEEDS[0] <= speed <= SPEEDS[-1]:
        raise UsageError(f"{speed:g} is not a speed.", hint=f"It is a number from {SPEEDS[0]:g} to {SPEEDS[-1]:g}.")
    if what == ALWAYS:
        return _shipped(at, speed)
    path = Path(what)
    if path.exists():
        return _of(Recording.open(path), path.stem, at, speed)
    if path.suffix or len(path.parts) != 1:
        raise UsageError(f"There is no file or directory {what}.", hint=playable(what))
    if what == DEMO and not paths.state_dir(what).is_dir():
        return _shipped(at, speed)
    if not paths.state_dir(what).is_dir():
        raise UnknownNameError(f"There is no run named {what}, and no file.", hint=playable(what))
    return of_run(what, at, speed)


def playable(named: str = "") -> str:
    """What can be played, in a sentence; what is meant by a name first, where it is near to one."""
    runs = [run.name for run in paths.list_runs() if (paths.state_dir(run.name) / DIRECTORY).is_dir()]
    near = difflib.get_close_matches(named, [*runs, ALWAYS], n=1)
    meant = f"Did you mean {near[0]}? " if near else ""
    shown = ", ".join(runs[:_NAMED]) + (f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else "")
    of_runs = f"what was recorded of {shown}" if runs else "no run of this host has a recording"
    beside = f"`{ALWAYS}`, which comes with the programs, and any .rec file or directory of them"
    return f"{meant}It plays {of_runs}; {beside}." if runs else f"{meant}It plays {beside}; {of_runs}."


def of_run(name: str, at: str = "", speed: float = 1.0) -> Callable[[Mirror], Replay]:
    """What the coordinator of a run of this host left."""
    directory = state_of(name) / DIRECTORY
    if not directory.is_dir():
        raise ConfigError(f"Nothing was recorded of {name}.", hint=playable())
    return _of(Recording.open(directory), name, at, speed, OF_A_RUN, run=name)


def _shipped(at: str, speed: float) -> Callable[[Mirror], Replay]:
    return _of(Recording.open(Path(str(resources.files("assets") / SHIPPED))), DEMO, at, speed, THE_SHIPPED)


def _of(
    recording: Recording, name: str, at: str, speed: float, what: str = "recording", run: str = ""
) -> Callable[[Mirror], Replay]:
    begin_at = moment(at, recording.begin, recording.end) if at else recording.begin
    return lambda mirror: Replay(mirror, recording, name=name, at=begin_at, speed=speed, what=what, run=run)


def moment(text: str, begin: float, end: float) -> float:
    """`14:05` (the last one), `2030-01-31T14:05`, or `-10m` (before the end; from the beginning, if that is later).

    UsageError for a time that was not recorded: what is shown is never of another time than the one that was named."""
    if text.startswith("-"):
        return max(end - seconds(text[1:]), begin)
    try:
        named = _named(text, end)
        at = named.timestamp()
    except (ValueError, OverflowError):
        hint = f"Write 14:05, 2030-01-31T14:05 or -10m; it goes from {_shown(begin)} to {_shown(end)}."
        raise UsageError(f"{text!r} is not a time.", hint=hint) from None
    # A minute or a second that a person names lasts that long: it may have begun before the recording did.
    if at > end or at + (_MINUTE_S if named.second == 0 else 1.0) <= begin:
        told = f"it goes from {_shown(begin)} to {_shown(end)}"
        raise UsageError(f"At {text} nothing was recorded: {told}.", hint="Without --at it is played from its start.")
    return max(at, begin)


def _named(text: str, end: float) -> datetime.datetime:
    """With its day, where none is said the last one. ValueError if it is no time."""
    if "-" in text:
        return datetime.datetime.fromisoformat(text)
    clock = datetime.time.fromisoformat(text)
    if clock.tzinfo is not None:
        raise UsageError(f"{text!r} has a zone.", hint="Write the time as the clock of this place shows it.")
    last = datetime.datetime.fromtimestamp(end)
    found = datetime.datetime.combine(last.date(), clock)
    return found if found <= last else found - datetime.timedelta(days=1)


def _shown(at: float) -> str:
    return datetime.datetime.fromtimestamp(at).isoformat(sep="T", timespec="seconds")
