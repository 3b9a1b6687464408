"""A walk to every screen of the console, and the checks that hold for each screen at any size.

Invariant: views come from the registry and are opened by their digits; pages and dialogs are listed here.
"""

from __future__ import annotations

import asyncio
import unicodedata
from dataclasses import dataclass

from rich.cells import cell_len
from textual import events
from textual.widgets import Input

from tests.tui.conftest import Screen
from tests.tui.fixed_console import TIMES, Still
from tests.waiting import aeventually
from tui.action_registry import BY_ID
from tui.dialogs.form import Form
from tui.model.actions import VIEWS as VIEW_NAMES
from tui.model.notices import Notices
from tui.view_registry import TABLES
from tui.views.query_views import ASKING, QueryPage, QueryTable
from tui.views.runs import Runs
from tui.views.tuning import Tuning
from tui.widgets.lines import Table


@dataclass(frozen=True, slots=True)
class Stop:
    """One screen of the walk."""

    name: str
    keys: tuple[str, ...]
    times: tuple[str, ...] = ("normal", "disconnected", "overflowing")
    """The conditions in which the screen exists. A page about a row needs rows."""
    before_the_silence: bool = True
    """Without a connection, the screen is opened before the loss, because the rows on the way are answers."""


def _first_row(view: str) -> Stop:
    digit = BY_ID[f"go.{view}"].keys[0]
    return Stop(view, (digit, "home") if view in TABLES else (digit,), TIMES, before_the_silence=False)


def _asked(name: str, *keys: str) -> Stop:
    """A screen that needs no row, so it can be opened without a connection."""
    return Stop(name, keys, TIMES, before_the_silence=False)


VIEWS = tuple(_first_row(view) for view in VIEW_NAMES)
PAGES = (
    Stop("unit page", ("2", "home", "enter")),
    Stop("incident page", ("2", "home", "i")),
    _asked("account", "7", "A"),
    Stop("alert page", ("1", "a")),
    Stop("happening page", ("3", "home", "enter")),
    Stop("record page", ("7", "end", "enter")),
    Stop("record unfolded", ("7", "end", "enter", "f")),
    Stop("record tokens", ("7", "end", "enter", "c")),
    Stop("record branches", ("7", "end", "enter", "b")),
    Stop("attempts", ("7", "end", "a")),
    _asked("tool errors", "7", "e"),
    _asked("calls", "7", "t"),
    Stop("call page", ("7", "t", "enter")),
    Stop("step page", ("8", "home", "enter")),
    _asked("replays", "7", "V"),
    _asked("reviews", "7", "v"),
    Stop("replay page", ("7", "V", "enter")),
    _asked("tool servers", "1", "T"),
    Stop("tools of a server", ("1", "T", "enter")),
    Stop("log of a tool server", ("1", "T", "l")),
    Stop("tool sessions", ("1", "T", "s")),
    _asked("tasks", "7", "T"),
    Stop("task page", ("7", "T", "enter")),
    Stop("tasks again", ("7", "T", "r")),
    Stop("tasks of a file", ("7", "T", "a"), ("normal",)),
    _asked("checkpoints", "8", "C"),
    Stop("checkpoint page", ("8", "C", "enter")),
    _asked("evaluations", "8", "V"),
    Stop("evaluation page", ("8", "V", "down", "down", "enter")),
    Stop("comparison page", ("8", "V", "down", "down", "c"), ("normal", "overflowing")),
    _asked("other models", "7", "M"),
    Stop("other model page", ("7", "M", "home", "enter")),
    _asked("keys", "9", "K"),
    _asked("hosts", "2", "H"),
    Stop("host page", ("2", "H", "home", "enter")),
    Stop("key page", ("9", "K", "enter")),
    Stop("new key", ("9", "K", "n"), ("normal",)),
    Stop("waits", ("1", "w"), TIMES),
    _asked("help", "2", "question_mark"),
    _asked("palette", "2", "colon"),
    Stop("value of a knob", ("5", "home", "enter")),
)


OPEN_LISTS = ("T", "C", "K", "M", "V", "e", "t", "w")
"""Keys on the way that need no row."""


async def walk_to(screen: Screen, stop: Stop, *, silence: bool = False) -> None:
    """Press the keys of a screen, each after the effect of the one before. With `silence`, lose the connection at the
    end, or before the keys if the screen needs no answers.
    """
    await back(screen)
    link = screen.app.connection
    assert isinstance(link, Still)
    if silence and stop.before_the_silence:
        await aeventually(link.can_hear)
        link.hear()
    await _press_all(screen, stop)
    if silence:
        if stop.before_the_silence:
            await aeventually(lambda: _all_answered(screen, link), what=f"answers to all questions of {stop.name}")
        link.lose()
        await _shows_why_no_answer(screen)


def _all_answered(screen: Screen, link: Still) -> bool:
    """Wait for all answers, so that none arrives after the loss of the connection."""
    screen.app._paint_new_data()
    view = screen.app.view
    # Drawing a first answer may start another query, which the view awaits.
    drawn = not isinstance(view, QueryPage) or view.scroll.size.height > 0
    first = drawn and not view.awaits_rows
    if isinstance(view, QueryPage | QueryTable):
        first = first and view._answered_at is not None
    asks = any(each.node is view and each.group != "ask" and not each.is_finished for each in screen.app.workers)
    return first and not asks and screen.app.why is not None and not link.asked()


async def _shows_why_no_answer(screen: Screen) -> None:
    """Wait until lists have queried again and show why there is no answer."""
    view = screen.app.view
    if isinstance(view, QueryTable) and not isinstance(view, Runs):
        view._ask_now.set()
        await aeventually(lambda: view._reason not in ("", ASKING), what=f"{view.what} that nobody tells")


async def _press_all(screen: Screen, stop: Stop) -> None:
    for key, following in zip(stop.keys, (*stop.keys[1:], ""), strict=True):
        if key in ("end", "enter"):
            await aeventually(lambda: _has_rows(screen), what=f"rows to point at, on the way to {stop.name}")
        if key == "enter":
            await _open(screen)
        else:
            await press(screen, key)
        if following not in OPEN_LISTS:
            await answered(screen)


async def _open(screen: Screen) -> None:
    """Wait for the page or dialog that the key opens."""
    view, link = screen.app.view, screen.app.connection
    if isinstance(view, Tuning) and isinstance(link, Still) and link.hears:
        await aeventually(lambda: view._history, what="the history of the knob, which stands in its question")
    before = view, len(screen.app.screen_stack)
    await press(screen, "enter")
    await aeventually(lambda: (screen.app.view, len(screen.app.screen_stack)) != before, what="what enter opens")


def _has_rows(screen: Screen) -> bool:
    return any(len(table.model) for table in screen.app.view.query(Table))


async def back(screen: Screen) -> None:
    """Return to a view without dialog and notice."""
    while len(screen.app.screen_stack) > 1:
        await press(screen, "escape")
    screen.app.notices = Notices()


async def press(screen: Screen, key: str) -> None:
    """Press a key and wait until it is processed. The pilot's own method waits until all threads are idle."""
    taken = asyncio.Event()
    screen.app.post_message(events.Key(key, None))
    screen.app.call_later(taken.set)
    await taken.wait()
    target = screen.app.screen
    taken.clear()
    target.call_later(taken.set)
    await taken.wait()


async def answered(screen: Screen) -> None:
    """Wait until nothing on the screen waits for an answer."""

    def whole() -> bool:
        screen.app._paint_new_data()
        seen = screen.text
        return "▸ asking" not in seen and "\n asking" not in seen

    await aeventually(whole, what="answers")


def sound(screen: Screen, width: int, height: int) -> str:
    """Check that the screen has the size of the terminal, only text, and one cursor. Returns the text."""
    lines = screen.lines
    seen = "\n".join(lines)
    assert len(lines) == height
    for line in lines:
        assert cell_len(line) == width, f"{cell_len(line)} cells: {line!r}"
        for sign in line:
            assert unicodedata.category(sign) not in ("Cc", "Cf", "Cs", "Zl", "Zp"), f"{sign!r} in {line!r}"
    if isinstance(screen.app.screen, Form):
        assert "esc leave" in seen, f"the keys of a dialog are not shown:\n{seen}"
        fields = [field.region for field in screen.app.screen.query(Input)]
        assert all(field.bottom <= height for field in fields), f"a field is not shown:\n{screen.text}"
    for table in screen.app.view.query(Table):
        if table.model.cursor is not None and table.model.target is not None and len(screen.app.screen_stack) == 1:
            marks = [y for y, (_, ground) in enumerate(table._drawn) if ground == "cursor"]
            assert len(marks) == 1, f"the cursor is drawn on lines {marks}:\n{screen.text}"
    return seen


async def comes_to_be_sound(screen: Screen, width: int, height: int) -> str:
    """Paint a view that was just opened until it passes `sound`. Returns its text."""

    def is_sound() -> str:
        screen.app._paint_new_data()
        return sound(screen, width, height)

    return await aeventually(is_sound)
