"""Shows the logs of one unit, or of several merged by time: followed, filtered, marked.

Invariants:
- Logs are queried only while the view is shown, and painted as rarely as other data.
"""

from __future__ import annotations

import asyncio
from itertools import chain, repeat

from rich.cells import set_cell_size
from textual import events
from textual.app import ComposeResult
from textual.worker import Worker

from agentrl.client import Client
from agentrl.errors import AgentrlError, NoCoordinatorError
from agentrl.formatting.amounts import counted
from tui.dialogs.palette import Palette, unit_choices
from tui.log_tail import LogTail
from tui.model.log_buffer import LogBuffer, LogEntry
from tui.model.styled_text import Line, Span, Tone, cut, fitted, folded, width_of, wrapped
from tui.playback_connection import PlaybackConnection
from tui.views.view import View
from tui.widgets.lines import WHEEL_ROWS, Drawn, Painted

POLL_S = 0.4
SIDEWAYS = 20
SOURCE = 12
"""Width of the unit name, where several units are shown."""


class LogLines(Painted):
    """A viewport on a log buffer. It begins at a line of the log and, if lines are wrapped, at a row of that line."""

    can_focus = True

    def __init__(self) -> None:
        super().__init__()
        self.book = LogBuffer()
        self.follow = True
        self.wraps = False
        """Long lines are wrapped."""
        self.top = 0
        self._skipped = 0
        """Rows of the top line that are above the viewport."""
        self._left = 0
        self._at: LogEntry | None = None
        """The mark that was jumped to; None after any other move."""

    def take(self, book: LogBuffer) -> None:
        self.book, self.top, self._skipped, self.follow, self._left, self._at = book, 0, 0, True, 0, None

    def turn_wrapping(self) -> None:
        self.wraps, self._left, self._skipped = not self.wraps, 0, 0
        self.repaint()

    def drawing(self, width: int, height: int) -> list[Drawn]:
        last = self._above(len(self.book), 0, height)
        self.top, self._skipped = last if self.follow else min((self.top, self._skipped), last)
        drawn = list[Drawn]()
        for entry in self.book.window(self.top, height):
            if len(drawn) >= self._skipped + height:
                break
            ground = ("cursor" if entry is self._at else "match") if self.book.is_marked(entry) else ""
            drawn += [(line, ground) for line in self._pieces(entry, width)]
        return drawn[self._skipped :] or [((Span(" nothing written yet", Tone.DIM),), "")]

    # ---- wrapped lines ----

    def _pieces(self, entry: LogEntry, width: int) -> list[Line]:
        """The rows of a line: all of them if lines are wrapped, else one."""
        if entry.aside:
            first, *more = wrapped(entry.text, max(1, width - 3))
            return [(Span(f"── {first}", Tone.BUSY),), *((Span(f"   {part}", Tone.BUSY),) for part in more)]
        sign = (Span("◆ ", Tone.ACCENT),) if self.book.is_marked(entry) else ()
        source = (Span(fitted(entry.source, SOURCE), Tone.ACCENT), Span(" ")) if self.book.merged else ()
        room = max(1, width - width_of((*sign, *source)))
        below = Span(" " * (width - room))
        heads = chain([(*sign, *source)], repeat((below,)))
        return [cut((*head, *body), width) for head, body in zip(heads, self._bodies(entry.text, room), strict=False)]

    def _bodies(self, text: str, room: int) -> list[Line]:
        if self.wraps:
            return folded(self._marked(text), room, len(text) + 1)
        rest = text[self._left :]
        return [self._marked(set_cell_size(rest, room - 1) + "…" if len(rest) > room else rest)]

    def _marked(self, text: str) -> Line:
        """The text with its matches highlighted."""
        spans, at = list[Span](), 0
        for start, end in self.book.matches_in(text):
            spans += [Span(text[at:start]), Span(text[start:end], Tone.ACCENT)]
            at = end
        return (*spans, Span(text[at:]))

    def _above(self, place: int, skipped: int, rows: int) -> tuple[int, int]:
        """The start of a viewport that is this many rows further up."""
        rows -= skipped
        while rows > 0 and place > 0:
            place -= 1
            rows -= len(self._pieces(self._entry(place), self.size.width))
        return place, max(0, -rows)

    def _below(self, place: int, skipped: int, rows: int) -> tuple[int, int]:
        rows += skipped
        while place < len(self.book) and rows >= (many := len(self._pieces(self._entry(place), self.size.width))):
            place, rows = place + 1, rows - many
        return place, rows

    # ---- moving ----

    def move(self, how: str) -> None:
        page = max(1, self.size.height - 2)
        if how in ("left", "right"):
            self._left = max(0, self._left + (SIDEWAYS if how == "right" else -SIDEWAYS))
        elif how in ("first", "last"):
            self._show((0 if how == "first" else len(self.book), 0))
            self._at = None
        else:
            self.scroll_lines({"up": -1, "down": 1, "page-up": -page, "page-down": page}[how])
        self.repaint()

    def scroll_lines(self, by: int) -> None:
        self._show((self._below if by > 0 else self._above)(self.top, self._skipped, abs(by)))
        self._at = None

    def _show(self, begin: tuple[int, int]) -> None:
        last = self._above(len(self.book), 0, self.size.height)
        self.top, self._skipped = min(begin, last)
        self.follow = begin >= last

    # ---- marks ----

    def mark(self) -> str:
        """Mark or unmark a line: the line of the last jump, else the newest one while following, else the top one.
        Returns what is wrong, or an empty string."""
        if not len(self.book):
            return "Nothing is written yet."
        place = self._place_of_mark()
        if place is None:
            place = len(self.book) - 1 if self.follow else self.top
        stays = self.book.mark(place) and not self.follow
        self._at = self._entry(place) if stays else None
        self.repaint()
        return ""

    def to_mark(self, by: int) -> str:
        """Jump to the next mark or the one before. Returns the reason if that fails, or an empty string."""
        marks, here = self.book.marks(), self._place_of_mark()
        if here is None:
            seen = self.top + self.size.height if self.follow else self.top
            here = seen if by < 0 else self.top - 1
        found = [place for place in marks if (place > here if by > 0 else place < here)]
        if not found:
            return f"There is no mark {'after' if by > 0 else 'before'} this." if marks else "m marks a line."
        place = found[0] if by > 0 else found[-1]
        self._show(self._above(place, 0, self.size.height // 3))
        self._at = self._entry(place)
        self.repaint()
        return ""

    def _entry(self, place: int) -> LogEntry:
        (entry,) = self.book.window(place, 1)
        return entry

    def _place_of_mark(self) -> int | None:
        if self._at is None:
            return None
        return next((place for place in self.book.marks() if self._entry(place) is self._at), None)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.scroll_lines(WHEEL_ROWS)
        self.repaint()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.scroll_lines(-WHEEL_ROWS)
        self.repaint()


class Logs(View):
    name_in_registry = "logs"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._tails: list[LogTail] = []
        self._life = 0
        self._last_error = ""
        self._polling: Worker[None] | None = None

    def compose(self) -> ComposeResult:
        self.lines = LogLines()
        yield self.lines

    @property
    def filter_text(self) -> str:
        return self.lines.book.pattern

    def take_filter(self, text: str) -> str:
        wrong = self.lines.book.only(text)
        self.lines.repaint()
        return wrong

    def heading(self) -> str:
        names = ", ".join(f"{t.unit}.{t.incarnation}" if t.incarnation else t.unit for t in self._tails)
        if not names:
            return "no unit"
        if isinstance(self.actions.connection, PlaybackConnection):
            return f"{names} · not in a recording"
        book = self.lines.book
        dropped = f", {counted(book.dropped, 'older ones')} dropped" if book.dropped else ""
        return f"{names} · {'following' if self.lines.follow else 'standing'} · {counted(len(book), 'lines')}{dropped}"

    def cli_line(self) -> tuple[str, ...]:
        if not self._tails:
            return ("logs",)
        tail = self._tails[0]
        name = f"{tail.unit}.{tail.incarnation}" if self._life and tail.incarnation else tail.unit
        words = ("logs", name, *(() if self._life else ("--follow",)))
        return (*words, "--grep", self.filter_text) if self.filter_text else words

    def open(self, units: list[str], life: int = 0) -> None:
        """Show the logs of these units; `life` -1 is the incarnation before, a number that incarnation."""
        self._tails = [LogTail(unit, life) for unit in units]
        self._life, self._last_error = life, ""
        self.lines.take(LogBuffer(merged=len(units) > 1))
        self._begin()

    def shown(self) -> None:
        super().shown()
        if not self._tails and (units := self.mirror.units):
            self.open([units[0].unit])
        else:
            self._begin()

    def hidden(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            self._polling = None

    def _begin(self) -> None:
        idle = self._polling is None or self._polling.is_finished
        if idle and self.is_attached and self.display:
            self._polling = self.run_worker(self._poll, name="logs", group="logs")

    def _client(self) -> Client:
        """The client that reads logs. Raises NoCoordinatorError in playback."""
        link = self.actions.connection
        if isinstance(link, PlaybackConnection):
            raise NoCoordinatorError(link.without_logs())
        return link.client

    async def _poll(self) -> None:
        while True:
            for tail in list(self._tails):
                try:
                    found = await tail.news(self._client())
                except AgentrlError as error:
                    if str(error) != self._last_error:
                        self._last_error = str(error)
                        self.lines.book.add(tail.unit, [self._last_error], aside=True)
                    continue
                self.lines.book.add(tail.unit, found.asides, aside=True)
                self.lines.book.add(tail.unit, found.lines)
            await asyncio.sleep(POLL_S)

    # ---- actions ----

    def do_move(self, how: str) -> None:
        if self.lines.wraps and how in ("left", "right"):
            self._say_if("Long lines are wrapped; W cuts them again.")
        else:
            self.lines.move(how)

    def do_logs_follow(self) -> None:
        self.lines.follow = not self.lines.follow
        self.repaint()

    def do_logs_wrap(self) -> None:
        self.lines.turn_wrapping()

    def do_logs_mark(self) -> None:
        self._say_if(self.lines.mark())

    def do_logs_to_mark(self, by: int) -> None:
        self._say_if(self.lines.to_mark(by))

    def _say_if(self, wrong: str) -> None:
        if wrong:
            self.actions.say(wrong)

    def do_logs_unit(self) -> None:
        choices = unit_choices(self.mirror)
        self.app.push_screen(Palette(choices, hint="which unit"), lambda unit: self.open([unit]) if unit else None)

    def do_logs_to_life(self, by: int) -> None:
        if len(self._tails) != 1 or not self._tails[0].incarnation:
            self.actions.say("Lives are looked at one unit at a time.")
            return
        tail = self._tails[0]
        row = self.mirror.unit(tail.unit)
        newest = row.incarnation if row else tail.incarnation
        life = tail.incarnation + by
        if not 1 <= life <= newest:
            self.actions.say(f"{tail.unit}.{tail.incarnation} is its {'first' if by < 0 else 'present'} life.")
        else:
            self.open([tail.unit], 0 if life == newest else life)
