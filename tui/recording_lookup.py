"""Finds the recording that a person names, and the time at which playback begins.

Invariants:
- The shipped recording has a name that no run can have, so it can always be played.
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
from agentrl.protocol.words import seconds
from agentrl.recording.disk_writer import DIRECTORY
from agentrl.recording.reader import Recording
from tui.model.mirror import Mirror
from tui.model.playback import SPEEDS
from tui.playback_connection import PlaybackConnection

_NAMED = 8
SHIPPED = "demo.rec"
"""The recording that comes with the package."""
ALWAYS = "@demo"
"""The name that always means the shipped recording. A file of this name is `./@demo`."""
DEMO = "demo"
"""Also means the shipped recording, if no run has this name."""
OF_A_RUN, THE_SHIPPED = "run's recording", "shipped recording"
"""The name of the kind of recording in the banner."""
_MINUTE_S = 60.0


def link(what: str, at: str, speed: float) -> Callable[[Mirror], PlaybackConnection]:
    """The connection for a run, a file or a directory. Raises AgentrlError if there is no recording."""
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
    """A sentence that names the recordings that can be played, with a suggestion if `named` is similar to a known
    name.
    """
    runs = [run.name for run in paths.list_runs() if (paths.state_dir(run.name) / DIRECTORY).is_dir()]
    near = difflib.get_close_matches(named, [*runs, ALWAYS], n=1)
    meant = f"Did you mean {near[0]}? " if near else ""
    shown = ", ".join(runs[:_NAMED]) + (f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else "")
    of_runs = f"what was recorded of {shown}" if runs else "no run of this host has a recording"
    beside = f"`{ALWAYS}`, which comes with the programs, and any .rec file or directory of them"
    return f"{meant}It plays {of_runs}; {beside}." if runs else f"{meant}It plays {beside}; {of_runs}."


def of_run(name: str, at: str = "", speed: float = 1.0) -> Callable[[Mirror], PlaybackConnection]:
    """The recording of a run of this host."""
    directory = state_of(name) / DIRECTORY
    if not directory.is_dir():
        raise ConfigError(f"Nothing was recorded of {name}.", hint=playable())
    return _of(Recording.open(directory), name, at, speed, OF_A_RUN, run=name)


def _shipped(at: str, speed: float) -> Callable[[Mirror], PlaybackConnection]:
    return _of(Recording.open(Path(str(resources.files("assets") / SHIPPED))), DEMO, at, speed, THE_SHIPPED)


def _of(
    recording: Recording, name: str, at: str, speed: float, what: str = "recording", run: str = ""
) -> Callable[[Mirror], PlaybackConnection]:
    begin_at = moment(at, recording.begin, recording.end) if at else recording.begin
    return lambda mirror: PlaybackConnection(mirror, recording, name=name, at=begin_at, speed=speed, what=what, run=run)


def moment(text: str, begin: float, end: float) -> float:
    """Parses `14:05` (the last one), `2030-01-31T14:05`, or `-10m` (before the end, but not before the beginning).

    Raises UsageError for a time that was not recorded.
    """
    if text.startswith("-"):
        return max(end - seconds(text[1:]), begin)
    try:
        named = _named(text, end)
        at = named.timestamp()
    except (ValueError, OverflowError):
        hint = f"Write 14:05, 2030-01-31T14:05 or -10m; it goes from {_shown(begin)} to {_shown(end)}."
        raise UsageError(f"{text!r} is not a time.", hint=hint) from None
    # A named minute or second may have begun before the recording did.
    if at > end or at + (_MINUTE_S if named.second == 0 else 1.0) <= begin:
        span = f"it goes from {_shown(begin)} to {_shown(end)}"
        raise UsageError(f"At {text} nothing was recorded: {span}.", hint="Without --at it is played from its start.")
    return max(at, begin)


def _named(text: str, end: float) -> datetime.datetime:
    """A date and time; without a date the last such time. Raises ValueError."""
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
