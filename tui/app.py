"""The application: one connection, one mirror, one registry of actions, and the views between header and footer.

Invariants: data is painted at most `PAINTS_PER_S` times a second and a key at once; what a key means is looked up in
the registry of actions and nowhere else; the console outlives its coordinator, and its end is never that of the run.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.widgets import Input

from agentrl.client import Client
from agentrl.config import paths
from agentrl.errors import AgentrlError
from agentrl.protocol.commands import WhyReport
from agentrl.protocol.rows import AlertRow, AnyRow, KnobRow
from agentrl.words.amounts import seconds
from agentrl.words.rows import allowed, kind_of
from tui.acting import Acting, consequences
from tui.connection import Connection
from tui.dialogs.form import Field, Form, Question, Values
from tui.dialogs.keys import Keys
from tui.dialogs.palette import Choice, Palette
from tui.model import actions, chrome, details, happenings, intents, knobs, typed
from tui.model.actions import Action
from tui.model.ink import Line, Span, Tone, span
from tui.model.intents import Intent
from tui.model.mirror import STALE_S, Mirror
from tui.model.notices import Notices
from tui.model.typed import Look
from tui.views.alerts import Alerts
from tui.views.base import View
from tui.views.events import Events
from tui.views.fleet import Fleet
from tui.views.lists import Records, Training
from tui.views.logs import Logs
from tui.views.overview import Overview
from tui.views.page import AlertPage, Page, RowPage, UnitPage
from tui.views.tuning import Tuning
from tui.widgets.lines import Lines, Painted
from tui.widgets.paint import DARK, LIGHT, Paint, themes

PAINTS_PER_S = 4
WHY_EVERY_S = 5.0
MOST_EVENTS = 500
CRASH_FILE = "console-crash.txt"
TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True)
class Settings:
    """How a person wants the console."""

    read_only: bool = False
    ascii_only: bool = False
    theme: str = DARK
    colour: bool = True
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    aim: tuple[str, ...] = ()
    """Options that make a command line reach the same run."""
    local: bool = True
    """The run's state directory is on this host."""


class Console(App[int]):
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = ""
    TITLE = "agentrl"
    BINDINGS: ClassVar[list[BindingType]] = []
    CSS = """
    #head { height: 2; } #views { height: 1fr; } #notice { height: 1; } #keys { height: 1; }
    #filter { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
    #filter:focus { border: none; }
    """

    def __init__(self, connect: Callable[[], Client], settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        # Without colours the terminal's own ground is kept, so nothing has to be told by one.
        super().__init__(ansi_color=not self.settings.colour or None)
        for theme in themes():
            self.register_theme(theme)
        self.theme = self.settings.theme
        self.mirror = Mirror()
        self.connection = Connection(self.mirror, connect)
        self.notices = Notices()
        self.why: WhyReport | None = None
        self.registry = actions.rebound(self.settings.keys)
        self._acting = Acting(self)
        self._frozen_at: float | None = None
        self._was_fresh = True
        self._pages: list[View] = []
        self._view = "overview"
        self.paint = self._new_paint()
        self._chrome = (
            Lines(self._head, ground="bar", id="head"),
            Lines(self._notice, id="notice"),
            Lines(self._keys, ground="bar", id="keys"),
        )
        kinds: tuple[type[View], ...] = (Overview, Fleet, Events, Alerts, Tuning, Logs, Records, Training)
        self.views = {kind.name_in_registry: kind(id=kind.name_in_registry) for kind in kinds}

    # ---- the screen ----

    def compose(self) -> ComposeResult:
        head, notice, keys = self._chrome
        yield head
        with Container(id="views"):
            for view in self.views.values():
                view.display = view is self.view
                yield view
        yield Input(placeholder="words to look for; enter keeps the filter, esc ends it", id="filter")
        yield notice
        yield keys

    def on_mount(self) -> None:
        self.set_class(self.settings.ascii_only, "-ascii")
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.exit, TERMINATED)
        self.run_worker(self.connection.run(), name="connection", group="connection")
        self.run_worker(self._ask_why(), name="why", group="why")
        self.set_interval(1 / PAINTS_PER_S, self._round, name="paint")
        self.view.shown()

    @property
    def view(self) -> View:
        """What fills the screen now."""
        return self._pages[-1] if self._pages else self.views[self._view]

    @property
    def read_only(self) -> bool:
        return self.settings.read_only

    @property
    def fresh(self) -> bool:
        """Whether what is shown may be acted on: what is frozen grows old, too."""
        clock = time.monotonic()
        frozen = self._frozen_at is not None and clock - self._frozen_at > STALE_S
        return self.mirror.fresh(clock) and not frozen

    def _new_paint(self) -> Paint:
        settings = self.settings
        dimmed = not self._was_fresh
        return Paint(self.theme, colour=settings.colour, ascii_only=settings.ascii_only, dimmed=dimmed)

    def _round(self) -> None:
        """Paint what data has changed."""
        clock = time.monotonic()
        self.mirror.sample(clock)
        fresh = self.mirror.fresh(clock) or not self.mirror.link.tries
        if fresh != self._was_fresh:
            self._was_fresh = fresh
            self.repaint_all()
        self.paint_chrome()
        if self._frozen_at is None and len(self.screen_stack) == 1:
            self.view.update()

    def paint_chrome(self) -> None:
        for widget in self._chrome:
            widget.repaint()

    def repaint_all(self) -> None:
        """With other colours."""
        self.paint = self._new_paint()
        for screen in self.screen_stack:
            for widget in screen.query(Painted):
                widget.repaint(all=True)

    def _head(self, width: int, _: int) -> list[Line]:
        clock = time.monotonic()
        next_try = self.connection.next_try_at
        at = chrome.Circumstances(
            time.time(),
            clock,
            None if next_try is None else next_try - clock,
            self.read_only,
            None if self._frozen_at is None else clock - self._frozen_at,
        )
        view = self.view
        tabs = chrome.tabs(self.mirror, self._view, view.heading(), view.filter_text, width)
        return [chrome.header(self.mirror, at, width), tabs]

    def _notice(self, width: int, _: int) -> list[Line]:
        link = self.mirror.link
        told = self.notices.line(self.mirror, time.monotonic())
        if not told and link.tries and not link.connected:
            told = (span(f"{link.why} {link.hint}", Tone.WARN),)
        return [(Span(" "), *told)]

    def _keys(self, width: int, _: int) -> list[Line]:
        return [chrome.footer(self._possible(), width)]

    # ---- actions ----

    def _possible(self) -> list[Action]:
        """What may be done here by whom looks."""
        found = actions.of_view(self.view.name_in_registry, self.registry)
        return [a for a in found if a.allowed(self.mirror.permission, read_only=self.read_only)]

    def on_key(self, event: events.Key) -> None:
        if len(self.screen_stack) > 1:
            return
        if isinstance(self.focused, Input):
            if event.key == "escape":
                event.stop()
                self._end_filter(keep=False)
            return
        own = actions.of_view(self.view.name_in_registry, self.registry)
        moves = actions.of_view("table", self.registry)
        action = next((each for each in (*own, *moves) if event.key in each.keys), None)
        if action is not None:
            event.stop()
            self.do(action)

    def do(self, action: Action) -> None:
        """What an action of the registry means in the view that is seen."""
        if not action.allowed(self.mirror.permission, read_only=self.read_only):
            why = "this console is read-only" if self.read_only else f"this key is {self.mirror.permission}"
            self.say(f"{action.title} is not possible: {why}.", Tone.WARN)
            return
        group, _, name = action.id.partition(".")
        if group in ("go", "move"):
            handler: Any = getattr(self.view if group == "move" else self, f"do_{group}", None)
            if handler is not None:
                handler(name)
            return
        method = f"do_{action.id.replace('.', '_').replace('-', '_')}"
        handler = getattr(self.view, method, None) or getattr(self, method, None)
        if handler is not None:
            handler()

    def say(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        """A sentence in the notice line."""
        self.notices.say(text, time.monotonic(), tone)
        self.paint_chrome()

    def perform(self, intent: Intent) -> None:
        """Carry out what a person wants; questions and answers come by themselves."""
        self.run_worker(self._acting.carry_out(intent), group="acts", name=intent.what)

    def do_undo(self) -> None:
        undo = self.notices.take_undo(time.monotonic())
        if undo is None:
            self.say("There is nothing to take back.")
        else:
            self.perform(undo)

    # ---- going somewhere ----

    def do_go(self, name: str) -> None:
        self._close_pages()
        if name != self._view:
            before = self.views[self._view]
            before.display = False
            before.hidden()
            self._view = name
        self.view.display = True
        self.view.shown()
        self.paint_chrome()

    def go(self, look: Look) -> None:
        """Where a typed line or a suggestion leads."""
        match look.view:
            case "logs":
                self.open_logs([look.subject], look.earlier)
            case "why":
                self.do_why()
            case _:
                self.do_go(look.view)
                if isinstance(self.view, Tuning) and look.subject:
                    self.view.select(look.subject)

    def open_page(self, page: View) -> None:
        """Over what is seen now; escape leads back."""
        self.view.display = False
        self._pages.append(page)
        self.query_one("#views").mount(page)
        self.call_after_refresh(page.shown)
        self.paint_chrome()

    def do_back(self) -> None:
        if self._pages:
            self._pages.pop().remove()
            self.view.display = True
            self.view.shown()
            self.paint_chrome()
        elif self.view.filter_text:
            self._end_filter(keep=False)
        else:
            self.say("This is the first page; q leaves the console.")

    def _close_pages(self) -> None:
        while self._pages:
            self._pages.pop().remove()

    def open_row(self, key: str) -> None:
        """The page of a row of the mirror."""
        row = self.mirror.get(key)
        if isinstance(row, AlertRow):
            self.open_page(AlertPage(row))
        elif row is not None:
            self.open_page(RowPage(f"{kind_of(row)} {happenings.subject(row)}", row, key))
        else:
            self.say("It is not known any more.")

    def open_happening(self, row: AnyRow) -> None:
        key = f"op/{row.id}" if kind_of(row) == "operation" and hasattr(row, "id") else ""
        if isinstance(row, AlertRow):
            self.open_page(AlertPage(row))
        else:
            self.open_page(RowPage(f"{kind_of(row)} {happenings.subject(row)}", row, key))

    def open_unit(self, name: str) -> None:
        self.open_page(UnitPage(name))

    def open_logs(self, units: Sequence[str], life: int = 0) -> None:
        logs = self.views["logs"]
        assert isinstance(logs, Logs)
        logs.open(list(units), life)
        self.do_go("logs")

    def do_why(self) -> None:
        def lines(width: int) -> list[Line]:
            return details.of_waits(self.why or WhyReport(), width)

        self.open_page(Page("who waits for whom", lines, ("why",)))

    # ---- the filter ----

    def do_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.value = self.view.filter_text
        field.display = True
        # At once: what is typed next belongs to the filter, not to the verbs of the view.
        self.screen.set_focus(field, scroll_visible=False)

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "filter" and event.input.display and self.view.filters_at_once:
            wrong = self.view.take_filter(event.value)
            if wrong:
                self.say(wrong, Tone.WARN)
            self.paint_chrome()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "filter":
            if not self.view.filters_at_once:
                self.view.take_filter(event.value.strip())
            self._end_filter(keep=True)

    def _end_filter(self, *, keep: bool) -> None:
        field = self.query_one("#filter", Input)
        field.display = False
        if not keep:
            self.view.take_filter("")
        self.view.shown()
        self.paint_chrome()

    # ---- dialogs ----

    def do_help(self) -> None:
        permission, read_only = self.mirror.permission, self.read_only
        allowed = [a for a in self.registry if a.allowed(permission, read_only=read_only)]
        name = self.view.name_in_registry
        own = [a for a in allowed if name in a.where]
        moves = [a for a in allowed if "table" in a.where]
        everywhere = [a for a in allowed if actions.EVERYWHERE in a.where]
        self.push_screen(Keys([(name, own), ("moving", moves), ("everywhere", everywhere)]))

    def do_palette(self) -> None:
        choices = [
            Choice(a.id, a.title, actions.sign(a.keys[0]) if a.keys else "", a.help)
            for a in self._possible()
            if a.id not in ("palette", "back")
        ]
        choices += [Choice(f"unit {r.unit}", r.unit, "", f"{r.state.value} · {r.status}") for r in self.mirror.units]

        def is_line(text: str) -> bool:
            try:
                typed.understood(text, self.mirror)
            except AgentrlError:
                return False
            return True

        hint = "an action, a unit, or a command: scale web +1 · restart web-0 · tune KNOB VALUE"
        self.push_screen(Palette(choices, hint=hint, typed=is_line), self._chosen)

    def _chosen(self, answer: str | None) -> None:
        if answer is None:
            return
        if answer.startswith(":"):
            self._typed_line(answer[1:])
        elif answer.startswith("unit "):
            self.open_unit(answer.removeprefix("unit "))
        else:
            self.do(next(action for action in self.registry if action.id == answer))

    def _typed_line(self, text: str) -> None:
        try:
            meaning = typed.understood(text, self.mirror)
        except AgentrlError as error:
            self.say(str(error), Tone.WARN)
            return
        if isinstance(meaning, Intent):
            self.perform(meaning)
        else:
            self.go(meaning)

    def choose_unit(self, then: Callable[[str], None]) -> None:
        choices = [Choice(row.unit, row.unit, "", f"{row.state.value} · {row.status}") for row in self.mirror.units]
        self.push_screen(Palette(choices, hint="which unit"), lambda unit: then(unit) if unit else None)

    def ask_value(self, row: KnobRow) -> None:
        """A new value of a knob, with what it would do."""
        self.run_worker(self._ask_value(row), group="questions")

    async def _ask_value(self, row: KnobRow) -> None:
        try:
            history = await self.connection.client.knob_history(row.name)
        except AgentrlError as error:
            self.say(str(error), Tone.BAD)
            return

        def check(values: Values) -> str:
            if not values[0].strip():
                return f"Type a value: {allowed(row)}."
            value, wrong = knobs.meant(row, values[0])
            if wrong:
                return wrong
            if value == row.value:
                return "This is its value now."
            return "A scientific knob wants a note." if row.scientific and not values[1].strip() else ""

        async def preview(values: Values) -> str:
            value, _ = knobs.meant(row, values[0])
            intent = intents.tune(row, value, values[1].strip())
            found = await self.connection.client.preview(intent.command, intent.args)
            told = "; ".join(
                "".join(part.text for part in line) for line in consequences(found.effect, self.mirror, 400)
            )
            return f"{found.tier.name.lower()}: {told}"

        lines = details.of_knob(row, history[-3:], 72)
        fields = (Field("new value", hint=f"now {row.value}"), Field("note", hint="why"))
        question = Question(row.name, tuple(lines), fields, "change it", check, preview)
        answer = await self.push_screen_wait(Form(question))
        if answer is not None:
            value, _ = knobs.meant(row, answer[0])
            self.perform(intents.tune(row, value, answer[1].strip()))

    def ask_silence(self, row: AlertRow) -> None:
        def check(values: Values) -> str:
            try:
                seconds(values[0].strip())
            except AgentrlError as wrong:
                return str(wrong)
            return ""

        fields = (Field("for", "1h", "15m, 2h, 1d; 0 ends it"), Field("why", hint="for those who look later"))
        question = Question(f"Send nothing about {row.id}", (), fields, "silence it", check)

        def then(values: Values | None) -> None:
            if values is not None:
                self.perform(intents.silence(row, seconds(values[0].strip()), values[1].strip()))

        self.push_screen(Form(question), then)

    # ---- the run ----

    def do_run_pause(self) -> None:
        self.perform(intents.pause("run"))

    def do_run_resume(self) -> None:
        self.perform(intents.resume("run"))

    def do_run_stacks(self) -> None:
        self.perform(intents.stacks(()))

    def do_run_test_alert(self) -> None:
        self.perform(intents.send_test_alert())

    def do_run_down(self) -> None:
        self.perform(intents.down())

    def do_run_up(self) -> None:
        self.run_worker(self._bring_up(), group="up")

    async def _bring_up(self) -> None:
        """By the command line, which starts a host agent in a session of its own: it outlives the console."""
        if not self.settings.local or not self.mirror.name or self.read_only:
            self.say("It is brought up on its own host: agentrl up --run NAME.", Tone.WARN)
            return
        self.say(f"agentrl up --run {self.mirror.name}", Tone.BUSY)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "agentrl", "up", "--run", self.mirror.name, "--yes",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, said = await process.communicate()
        self.connection.try_now()
        last = said.decode(errors="replace").strip().splitlines()[-1:] or ["done"]
        self.say(f"up: {last[0]}", Tone.GOOD if process.returncode == 0 else Tone.BAD)

    def _fatal_error(self) -> None:
        """A fault of ours: the whole story goes to a file, a sentence to the terminal."""
        path = paths.home() / CRASH_FILE
        try:
            path.write_text(traceback.format_exc())
            told = f"The console broke off by a fault of its own; {path} has the whole story. The run goes on."
        except OSError:
            told = f"The console broke off by a fault of its own: {traceback.format_exc()}"
        self._exit_renderables.append(Text(told))
        self._close_messages_no_wait()

    # ---- the rest ----

    def do_quit(self) -> None:
        self.exit(0)

    def do_freeze(self) -> None:
        self._frozen_at = time.monotonic() if self._frozen_at is None else None
        self._round()

    def do_copy_line(self) -> None:
        words = intents.line(self.view.cli_line(), self.settings.aim)
        self.copy(words, f"copied: {words}")

    def copy(self, text: str, told: str) -> None:
        """By the terminal itself (OSC 52), so it works over ssh, too."""
        self.copy_to_clipboard(text)
        self.say(told)

    def do_theme(self) -> None:
        self.theme = LIGHT if self.theme == DARK else DARK
        self.repaint_all()

    def do_screenshot(self) -> None:
        path = self.save_screenshot(path=os.getcwd())
        self.say(f"The picture is {path}")

    def export(self, name: str, rows: Iterable[Any]) -> None:
        path = Path.cwd() / f"{self.mirror.name or 'run'}-{name}-{time.strftime('%H%M%S')}.json"
        body = [json.loads(msgspec.json.encode(row)) for row in rows]
        try:
            path.write_text(json.dumps(body, indent=1))
        except OSError as error:
            self.say(f"{path}: {error.strerror}.", Tone.BAD)
            return
        self.say(f"{len(body)} rows are in {path}")

    def ask_events(self, then: Callable[[list[AnyRow]], None]) -> None:
        """What happened before the console came; the feed does not carry all of it."""

        async def ask() -> None:
            try:
                then(list(await self.connection.client.events(limit=MOST_EVENTS)))
            except AgentrlError as error:
                self.say(str(error), Tone.WARN)

        work: Callable[[], Awaitable[None]] = ask
        self.run_worker(work, group="events", exclusive=True)

    async def _ask_why(self) -> None:
        """Who waits for whom is asked for, not told."""
        while True:
            if self.mirror.link.connected:
                try:
                    self.why = await self.connection.client.why()
                except AgentrlError:
                    self.why = None
            await asyncio.sleep(WHY_EVERY_S if self.why is not None else 1.0)
