"""Paints the lines around the view (header, notice, footer), and decides whether the screen is fresh enough for
commands.

Invariants:
- Data is painted at most `PAINTS_PER_S` times a second, a key press at once.
- A frozen screen ages and then allows no command.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from textual.css.scalar import Scalar
from textual.geometry import Size
from textual.screen import Screen

from tui.console_interface import Host
from tui.model import header_footer
from tui.model.actions import Action, sign
from tui.model.mirror import STALE_S
from tui.model.styled_text import Line, Tone, span
from tui.navigation import Navigation
from tui.widgets.lines import Lines, Painted
from tui.widgets.themes import DARK, LIGHT, Styles

PAINTS_PER_S = 4


class FramedApp(Host, Protocol):
    """The interface of the application that the frame needs besides `Host`."""

    theme: str
    line_styles: Styles

    @property
    def navigation(self) -> Navigation: ...
    @property
    def size(self) -> Size: ...
    @property
    def screen_stack(self) -> Sequence[Screen[Any]]: ...
    def possible(self) -> list[Action]: ...


class Frame:
    def __init__(self, app: FramedApp) -> None:
        self._app = app
        self.header = Lines(self._header, ground="bar", id="head")
        self.notice = Lines(self._notice, id="notice")
        self.footer = Lines(self._footer, ground="bar", id="keys")
        self.reset()

    def reset(self) -> None:
        """Begin with another run."""
        self._frozen_at: float | None = None
        self._was_fresh = True
        self._app.line_styles = self._new_styles()

    @property
    def fresh(self) -> bool:
        """Whether the screen is recent enough for commands."""
        clock = self._app.clock()
        frozen = self._frozen_at is not None and clock - self._frozen_at > STALE_S
        return self._app.mirror.fresh(clock) and not frozen

    def _new_styles(self) -> Styles:
        app, settings = self._app, self._app.settings
        return Styles(
            app.theme,
            colour=settings.colour,
            ascii_only=settings.ascii_only,
            dimmed=not self._was_fresh,
            own=settings.colours,
        )

    # ---- painting ----

    def paint_new_data(self) -> None:
        """Paint the rows that the feed has changed."""
        app = self._app
        clock = app.clock()
        app.mirror.sample(clock)
        fresh = app.mirror.fresh(clock) or not app.mirror.link.tries
        if fresh != self._was_fresh:
            self._was_fresh = fresh
            self.repaint_all()
        view = app.navigation.view
        # A page that was just opened has no widgets yet; it paints itself when it is composed.
        if self._frozen_at is None and len(app.screen_stack) == 1 and view.ready:
            with app.guarded(f"show {view.name_in_registry}"):
                view.update()
        # After the view: the header counts its rows.
        self.paint()

    def paint(self) -> None:
        lines = len(self._notice(self._app.size.width, 0))
        if self.notice.styles.height != Scalar.from_number(lines):
            self.notice.styles.height = lines
        for widget in (self.header, self.notice, self.footer):
            widget.repaint()

    def repaint_all(self) -> None:
        """Paint all lines again with other colours."""
        self._app.line_styles = self._new_styles()
        for screen in self._app.screen_stack:
            for widget in screen.query(Painted):
                widget.repaint(all=True)

    # ---- the lines ----

    def _header(self, width: int, _: int) -> list[Line]:
        app = self._app
        clock = app.clock()
        next_try = app.connection.next_try_at
        state = header_footer.HeaderState(
            app.now(),
            clock,
            None if next_try is None else next_try - clock,
            app.read_only,
            None if self._frozen_at is None else clock - self._frozen_at,
            header_footer.played(app.playback) if app.playback else "",
        )
        view = app.navigation.view
        tabs = header_footer.tabs(app.mirror, app.navigation.tab, view.heading(), view.filter_text, width)
        return [header_footer.header(app.mirror, state, width), tabs]

    def _notice(self, width: int, _: int) -> list[Line]:
        app, link = self._app, self._app.mirror.link
        message, why_old = app.notices.line(app.mirror, app.clock()), app.navigation.view.why_old()
        old = (span(why_old, Tone.WARN),) if why_old else ()
        if message and old:
            # The reason stays on the screen as long as it holds, also beside other messages.
            return [*header_footer.notice(message, width), *header_footer.notice(old, width)]
        if not message and link.tries and not link.connected:
            message = (span(f"{link.why} {link.hint}{self._way_up()}", Tone.BAD),)
        message = message or old
        if not message and app.playback and app.playback.problem:
            message = (span(app.playback.problem, Tone.WARN),)
        return header_footer.notice(message, width)

    def _way_up(self) -> str:
        """The key that starts the dead processes of the control plane."""
        up = next((each for each in self._app.possible() if each.id == "run.up" and each.keys), None)
        return f" {sign(up.keys[0])}: {up.title}." if up is not None and not self._app.settings.in_browser else ""

    def _footer(self, width: int, _: int) -> list[Line]:
        return [header_footer.footer(self._app.possible(), width)]

    # ---- actions ----

    def do_freeze(self) -> None:
        self._frozen_at = self._app.clock() if self._frozen_at is None else None
        self.paint_new_data()

    def do_theme(self) -> None:
        self._app.theme = LIGHT if self._app.theme == DARK else DARK
        self.repaint_all()
