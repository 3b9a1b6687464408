"""What units write: followed, searched, and of several units in the order of time.

Invariant: the log is asked for only while it is looked at, and painted as seldom as other data.
"""

from __future__ import annotations

import asyncio

from rich.cells import set_cell_size
from textual import events
from textual.app import ComposeResult
from textual.worker import Worker

from agentrl.errors import AgentrlError
from agentrl.words.amounts import counted
from tui.model.ink import Line, Span, Tone, cut, fitted
from tui.model.logbook import Entry, Logbook
from tui.tail import Tail
from tui.views.base import View
from tui.widgets.lines import WHEEL_ROWS, Drawn, Painted

POLL_S = 0.4
SIDEWAYS = 20


class LogLines(Painted):
    """A window on a logbook."""

    can_focus = True

    def __init__(self) -> None:
        super().__init__()
        self.book = Logbook()
        self.follow = True
        self.top = 0
        self._left = 0
        self._at: Entry | None = None
        """The mark that was gone to; none after any other move."""

    def take(self, book: Logbook) -> None:
        self.book, self.top, self.follow, self._left, self._at = book, 0, True, 0, None

    def drawing(self, width: int, height: int) -> list[Drawn]:
        most = max(0, len(self.book) - height)
        self.top = most if self.follow else max(0, min(self.top, most))
        drawn = [self._drawn_line(entry, width) for entry in self.book.window(self.top, height)]
        return drawn or [((Span(" nothing written yet", Tone.DIM),), "")]

    def _drawn_line(self, entry: Entry, width: int) -> Drawn:
        if not self.book.is_marked(entry):
            return self._line(entry, width), ""
        sign = Span("◆ ", Tone.ACCENT)
        return (sign, *self._line(entry, max(1, width - 2))), "cursor" if entry is self._at else "match"

    def _line(self, entry: Entry, width: int) -> Line:
        if entry.aside:
            return (Span(fitted(f"── {entry.text} ", min(width, len(entry.text) + 4)), Tone.BUSY),)
        head: tuple[Span, ...] = ()
        if self.book.merged:
            head = (Span(fitted(entry.source, 12), Tone.ACCENT), Span(" "))
        room = max(1, width - (13 if head else 0))
        text = entry.text[self._left :]
        shown = set_cell_size(text, room - 1) + "…" if len(text) > room else text
        return cut((*head, *self._marked(shown)), width)

    def _marked(self, text: str) -> list[Span]:
        """The parts that the search found stand out."""
        spans, at = list[Span](), 0
        for start, end in self.book.matches_in(text):
            spans += [Span(text[at:start]), Span(text[start:end], Tone.ACCENT)]
            at = end
        return [*spans, Span(text[at:])]

    def move(self, how: str) -> None:
        page = max(1, self.size.height - 2)
        if how in ("left", "right"):
            self._left = max(0, self._left + (SIDEWAYS if how == "right" else -SIDEWAYS))
        else:
            most = len(self.book)
            by = {"up": -1, "down": 1, "page-up": -page, "page-down": page, "first": -most, "last": most}[how]
            self.scroll_lines(by)
        self.repaint()

    def scroll_lines(self, by: int) -> None:
        self._show(self.top + by)
        self._at = None

    def _show(self, top: int) -> None:
        most = max(0, len(self.book) - self.size.height)
        self.top = max(0, min(most, top))
        self.follow = self.top >= most

    # ---- marks ----

    def mark(self) -> str:
        """On or off: of the mark that was gone to, else of the newest line while that is followed, else of the top one.
        What is wrong, if nothing can be marked."""
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
        """Go to the next mark, or the one before; what is wrong, if there is none."""
        marks, here = self.book.marks(), self._place_of_mark()
        if here is None:
            seen = self.top + self.size.height if self.follow else self.top
            here = seen if by < 0 else self.top - 1
        found = [place for place in marks if (place > here if by > 0 else place < here)]
        if not found:
            return f"There is no mark {'after' if by > 0 else 'before'} this." if marks else "m marks a line."
        place = found[0] if by > 0 else found[-1]
        self._show(place - self.size.height // 3)
        self._at = self._entry(place)
        self.repaint()
        return ""

    def _entry(self, place: int) -> Entry:
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
        self._tails: list[Tail] = []
        self._life = 0
        self._said = ""
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
        """Other units, or another life: -1 the one before, a number that one."""
        self._tails = [Tail(unit, life) for unit in units]
        self._life, self._said = life, ""
        self.lines.take(Logbook(merged=len(units) > 1))
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
            self._polling = self.run_worker(self._poll(), name="logs", group="logs")

    async def _poll(self) -> None:
        while True:
            for tail in list(self._tails):
                try:
                    found = await tail.news(self.console_app.connection.client)
                except AgentrlError as error:
                    if error.message != self._said:
                        self._said = error.message
                        self.lines.book.add(tail.unit, [error.message], aside=True)
                    continue
                self.lines.book.add(tail.unit, found.asides, aside=True)
                self.lines.book.add(tail.unit, found.lines)
            await asyncio.sleep(POLL_S)

    # ---- actions ----

    def do_move(self, how: str) -> None:
        self.lines.move(how)

    def do_logs_follow(self) -> None:
        self.lines.follow = not self.lines.follow
        self.repaint()

    def do_logs_mark(self) -> None:
        self._tell(self.lines.mark())

    def do_logs_next_mark(self) -> None:
        self._tell(self.lines.to_mark(1))

    def do_logs_previous_mark(self) -> None:
        self._tell(self.lines.to_mark(-1))

    def _tell(self, wrong: str) -> None:
        if wrong:
            self.console_app.say(wrong)

    def do_logs_unit(self) -> None:
        self.console_app.asking.choose_unit(lambda unit: self.open([unit]))

    def do_logs_older(self) -> None:
        self._to_life(-1)

    def do_logs_newer(self) -> None:
        self._to_life(1)

    def _to_life(self, by: int) -> None:
        if len(self._tails) != 1 or not self._tails[0].incarnation:
            self.console_app.say("Lives are looked at one unit at a time.")
            return
        tail = self._tails[0]
        row = self.mirror.unit(tail.unit)
        newest = row.incarnation if row else tail.incarnation
        life = tail.incarnation + by
        if not 1 <= life <= newest:
            self.console_app.say(f"{tail.unit}.{tail.incarnation} is its {'first' if by < 0 else 'present'} life.")
        else:
            self.open([tail.unit], 0 if life == newest else life)
