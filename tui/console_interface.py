"""Defines the interface of the application for the parts of the console.

Views, widgets and services depend on this protocol and never on the application, so imports run in one direction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from textual.screen import Screen

from tui.connection import Connection
from tui.model.mirror import Mirror
from tui.model.notices import Notices
from tui.model.playback import Playback
from tui.model.styled_text import Tone
from tui.playback_connection import PlaybackConnection
from tui.result_files import ResultFiles
from tui.widgets.themes import DARK

A = TypeVar("A")


def work(function: Callable[..., Awaitable[None]], *args: object) -> Callable[[], Awaitable[None]]:
    """A call for a worker. It is not a coroutine, because the coroutine of a worker that is replaced before it begins
    would never be awaited."""
    return partial(function, *args)


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of one console."""

    theme: str = DARK
    read_only: bool = False
    ascii_only: bool = False
    colour: bool = True
    colours: dict[str, dict[str, str]] = field(default_factory=dict)
    """The person's own colours, by theme and name."""
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The person's own keys, by the id of the action."""
    target_options: tuple[str, ...] = ()
    """Options that make a command line reach the same run."""
    local: bool = True
    """The run's state directory is on this host."""
    in_browser: bool = False
    """The console is drawn in a browser page: it has no clipboard and must not write files on this host."""
    key_files: tuple[str, ...] = ()
    """Key files of runs on other hosts, for the list of runs."""


class Host(Protocol):
    """The state and the methods of the application that every part of the console may use."""

    @property
    def settings(self) -> Settings: ...
    @property
    def mirror(self) -> Mirror: ...
    @property
    def connection(self) -> Connection | PlaybackConnection: ...
    @property
    def playback(self) -> Playback | None:
        """The playback that replaces a live run."""

    @property
    def notices(self) -> Notices: ...
    @property
    def result_files(self) -> ResultFiles: ...
    @property
    def read_only(self) -> bool: ...
    @property
    def fresh(self) -> bool:
        """Whether the rows on the screen are recent enough for commands."""

    @property
    def clock(self) -> Callable[[], float]:
        """Monotonic seconds."""

    def now(self) -> float:
        """The wall-clock time that the screens show."""

    def say(self, text: str, tone: Tone = Tone.PLAIN, *, fleeting: bool = False) -> None:
        """Show a message that belongs to this view. A fleeting one ends with the next action."""

    def report(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        """Show the result of an action; it stays when the view changes."""

    def copy(self, text: str, message: str) -> None:
        """Put text on the clipboard."""

    def paint_frame(self) -> None:
        """Paint header, notice and footer."""

    def update_view(self) -> None:
        """Show the present rows of the mirror at once."""

    # ---- of Textual ----

    def push_screen(self, screen: Screen[A], callback: Callable[[A | None], None] | None = None) -> Any: ...
    async def push_screen_wait(self, screen: Screen[A]) -> A: ...
    def guarded(self, doing: str) -> AbstractContextManager[None]:
        """The boundary of one part: a fault in it is written to a file and shown, and the rest keeps working."""

    def run_worker(
        self,
        work: Callable[[], Awaitable[Any]],
        name: str | None = "",
        group: str = "default",
        *,
        exclusive: bool = False,
    ) -> Any: ...
    def export_screenshot(self) -> str: ...
