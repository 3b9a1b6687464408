"""The application: one connection, one mirror, one registry of actions, and the views between header and footer.

Invariants: data is painted at most `PAINTS_PER_S` times a second and a key at once; what a key means is looked up in
the registry of actions and nowhere else; the console outlives its coordinator, and its end is never that of the run.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.css.scalar import Scalar
from textual.widgets import Input

from agentrl.config import paths
from agentrl.errors import AgentrlError
from agentrl.protocol.commands import WhyReport
from agentrl.protocol.rows import AnyRow
from tui.cli_runner import CliRunner
from tui.command_runner import CommandRunner
from tui.connection import Connection
from tui.export import Exporter
from tui.model import actions, header_footer, pending_commands
from tui.model.actions import Action, When
from tui.model.mirror import STALE_S, Mirror
from tui.model.notices import Lasts, Notices
from tui.model.pending_commands import PendingCommand
from tui.model.runs import Place
from tui.model.step_cache import StepCache
from tui.model.styled_text import Line, Tone, span
from tui.navigation import FILTER, Navigation
from tui.playback_actions import Playing
from tui.playback_connection import Replay
from tui.prompts import Prompts
from tui.views.alerts import Alerts
from tui.views.events import Events
from tui.views.fleet import Fleet
from tui.views.logs import Logs
from tui.views.overview import Overview
from tui.views.records import Records
from tui.views.runs import Runs
from tui.views.training import Training
from tui.views.tuning import Tuning
from tui.views.view import View
from tui.widgets.alt_keys import HELD, keys_stay_keys
from tui.widgets.lines import Lines, Painted
from tui.widgets.text_field import TextField
from tui.widgets.themes import DARK, LIGHT, Styles, themes

PAINTS_PER_S = 4
WHY_EVERY_S = 4.0
MOST_EVENTS = 500
SCREENS: tuple[type[View], ...] = (Overview, Fleet, Events, Alerts, Tuning, Logs, Records, Training, Runs)
NOT_IN_A_PAGE = frozenset({"go.runs", "runs.key", "key.new", "task.add"})
"""Who was given an address may see its run, and not reach others or write files where the console runs."""
CRASH_FILE = "console-crash.txt"
TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True)
class Settings:
    """How a person wants the console."""

    read_only: bool = False
    ascii_only: bool = False
    theme: str = DARK
    colour: bool = True
    colours: dict[str, dict[str, str]] = field(default_factory=dict)
    """A person's own, by theme and name."""
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    aim: tuple[str, ...] = ()
    """Options that make a command line reach the same run."""
    local: bool = True
    """The run's state directory is on this host."""
    in_browser: bool = False
    """A page draws it: it has no clipboard to write to, and its files would be written elsewhere."""
    key_files: tuple[str, ...] = ()
    """Of runs elsewhere that the list of runs shows, too."""


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

    def __init__(
        self,
        link: Callable[[Mirror], Connection | Replay],
        settings: Settings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings or Settings()
        self.clock = clock
        """By which the age of what is shown is counted."""
        keys_stay_keys()
        # Without colours the terminal's own ground is kept, so nothing has to be told by one.
        super().__init__(ansi_color=not self.settings.colour or None)
        for theme in themes(self.settings.colours):
            self.register_theme(theme)
        self.theme = self.settings.theme
        self.registry = actions.rebound(self.settings.keys)
        self._leaving = False
        """Between two runs nothing is asked, painted or understood."""
        self._begin(link)
        self._chrome = (
            Lines(self._head, ground="bar", id="head"),
            Lines(self._notice, id="notice"),
            Lines(self._keys, ground="bar", id="keys"),
        )

    def _begin(self, link: Callable[[Mirror], Connection | Replay]) -> None:
        """Everything that belongs to one run, anew."""
        self.mirror = Mirror()
        self.connection = link(self.mirror)
        self.replay = self.connection.playback if isinstance(self.connection, Replay) else None
        """Where a recording stands that is played in the place of a run."""
        self.notices = Notices()
        self.steps = StepCache()
        """Asked for by the views that show something of them."""
        self.why: WhyReport | None = None
        self.why_at = 0.0
        """Clock of that answer, which stands until there is another one."""
        self._frozen_at: float | None = None
        self._was_fresh = True
        self.paint = self._new_paint()
        self.views = {kind.name_in_registry: kind(id=kind.name_in_registry) for kind in SCREENS}
        self.navigation = Navigation(self, self.views)
        self.prompts = Prompts(self)
        self.commands = CommandRunner(self)
        self.exporter = Exporter(self)
        self.playing = Playing(self, self.replay)
        self.cli = CliRunner(self)

    # ---- the screen ----

    def compose(self) -> ComposeResult:
        head, notice, keys = self._chrome
        yield head
        with Container(id="views"):
            for view in self.views.values():
                view.display = view is self.view
                yield view
        yield TextField(placeholder="words to look for; enter keeps the filter, esc ends it", id=FILTER)
        yield notice
        yield keys

    def on_mount(self) -> None:
        self.set_class(self.settings.ascii_only, "-ascii")
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.exit, TERMINATED)
        if not gc.get_freeze_count():
            # To go through all that was imported takes a tenth of a second, in which a key would wait.
            gc.freeze()
        self._listen()
        self.set_interval(1 / PAINTS_PER_S, self._round, name="paint")
        self.view.shown()

    def _listen(self) -> None:
        self.run_worker(self.connection.run(), name="connection", group="connection")
        self.run_worker(self._ask_why(), name="why", group="why")

    # ---- from run to run ----

    def follow(self, link: Callable[[Mirror], Connection | Replay], place: Place, name: str) -> None:
        """Leave this run and look at another one."""
        if self.settings.in_browser:
            self.say("A page shows the run that it was opened for. Open another one in a terminal.", Tone.WARN)
            return
        self._leaving = True
        self.settings = replace(self.settings, aim=place.options, local=not place.key_file)
        for worker in list(self.workers):
            # An act that was on its way to the run that is left shall never reach the next one.
            worker.cancel()
        self.run_worker(self._arrive(link, name), group="arrival")

    async def _arrive(self, link: Callable[[Mirror], Connection | Replay], name: str) -> None:
        while len(self.screen_stack) > 1:
            await self.pop_screen()
        container = self.query_one("#views", Container)
        await container.remove_children()
        self._begin(link)
        self.mirror.name = name
        for view in self.views.values():
            view.display = view is self.view
        await container.mount(*self.views.values())
        self._leaving = False
        self._listen()
        self.navigation.do_go(self.navigation.tab)
        self.repaint_all()

    def add_key_file(self, path: str) -> None:
        """Have the list of runs show it from now on."""
        self.settings = replace(self.settings, key_files=tuple(dict.fromkeys((*self.settings.key_files, path))))

    @property
    def view(self) -> View:
        """What fills the screen now."""
        return self.navigation.view

    @property
    def read_only(self) -> bool:
        return self.settings.read_only or self.replay is not None

    def now(self) -> float:
        """The time that the screens show."""
        return self.connection.now()

    @property
    def fresh(self) -> bool:
        """Whether what is shown may be acted on: what is frozen grows old, too."""
        clock = self.clock()
        frozen = self._frozen_at is not None and clock - self._frozen_at > STALE_S
        return self.mirror.fresh(clock) and not frozen

    def _new_paint(self) -> Styles:
        settings = self.settings
        dimmed = not self._was_fresh
        return Styles(
            self.theme, colour=settings.colour, ascii_only=settings.ascii_only, dimmed=dimmed, own=settings.colours
        )

    def _round(self) -> None:
        """Paint what data has changed."""
        if self._leaving:
            return
        clock = self.clock()
        self.mirror.sample(clock)
        fresh = self.mirror.fresh(clock) or not self.mirror.link.tries
        if fresh != self._was_fresh:
            self._was_fresh = fresh
            self.repaint_all()
        self.paint_chrome()
        if self._frozen_at is None and len(self.screen_stack) == 1:
            self.view.update()

    def paint_chrome(self) -> None:
        notice, lines = self._chrome[1], len(self._notice(self.size.width, 0))
        if notice.styles.height != Scalar.from_number(lines):
            notice.styles.height = lines
        for widget in self._chrome:
            widget.repaint()

    def repaint_all(self) -> None:
        """With other colours."""
        self.paint = self._new_paint()
        for screen in self.screen_stack:
            for widget in screen.query(Painted):
                widget.repaint(all=True)

    def _head(self, width: int, _: int) -> list[Line]:
        clock = self.clock()
        next_try = self.connection.next_try_at
        at = header_footer.HeaderState(
            self.now(),
            clock,
            None if next_try is None else next_try - clock,
            self.read_only,
            None if self._frozen_at is None else clock - self._frozen_at,
            header_footer.played(self.replay) if self.replay else "",
        )
        view = self.view
        tabs = header_footer.tabs(self.mirror, self.navigation.tab, view.heading(), view.filter_text, width)
        return [header_footer.header(self.mirror, at, width), tabs]

    def _notice(self, width: int, _: int) -> list[Line]:
        link = self.mirror.link
        told, why_old = self.notices.line(self.mirror, self.clock()), self.view.why_old()
        if told and why_old:
            # It is so as long as it is told, whatever else is said meanwhile.
            return [*header_footer.notice(told, width), *header_footer.notice((span(why_old, Tone.WARN),), width)]
        if not told and link.tries and not link.connected:
            told = (span(f"{link.why} {link.hint}", Tone.WARN),)
        elif not told and why_old:
            told = (span(why_old, Tone.WARN),)
        if not told and self.replay and self.replay.told:
            told = (span(self.replay.told, Tone.WARN),)
        return header_footer.notice(told, width)

    def _keys(self, width: int, _: int) -> list[Line]:
        return [header_footer.footer(self.possible(), width)]

    # ---- actions ----

    def action_help_quit(self) -> None:
        """What the framework says of ctrl+c names a key that is none here."""
        quit_keys = next(action.keys for action in self.registry if action.id == "quit")
        told = f"ctrl+c ends nothing here; {quit_keys[0]} leaves the console, and the run goes on."
        self.say(told, Tone.DIM, fleeting=True)

    def may(self, action: Action) -> bool:
        """Whether whom looks may do it."""
        if self.settings.in_browser and action.id in NOT_IN_A_PAGE:
            return False
        return action.allowed(self.mirror.permission, read_only=self.read_only, replay=self.replay is not None)

    def possible(self) -> list[Action]:
        """What may be done here."""
        return [
            a
            for a in actions.of_view(self.view.name_in_registry, self.registry)
            if self.may(a) and self.view.has_use_for(a)
        ]

    def moves(self) -> list[Action]:
        """The moves that all lists share, where there is something to move in."""
        return [a for a in self.registry if "table" in a.where] if hasattr(self.view, "do_move") else []

    async def on_event(self, event: events.Event) -> None:
        # A key that went through the widgets first would wait for a page that is being built, and the next one, which
        # finds another page, would come before it.
        if isinstance(event, events.Key) and not event.is_forwarded:
            if self.take_key(event.key):
                return
            if len(self.screen_stack) > 1 and event.key.startswith(HELD) and not self._edits(event.key):
                event = events.Key("escape", None)
            elif self._means_nothing(event.key):
                shown = event.character if event.is_printable and event.character else actions.sign(event.key)
                self.say(f"{shown} means nothing here; ? lists the keys.", Tone.DIM, fleeting=True)
        await super().on_event(event)

    def _edits(self, key: str) -> bool:
        return isinstance(self.focused, TextField) and self.focused.edits_with(key)

    def _means_nothing(self, key: str) -> bool:
        """Nobody else answers it either: no field, no dialog, and nothing of Textual's own."""
        typed = isinstance(self.focused, Input)
        return not (self._leaving or typed or len(self.screen_stack) > 1 or key in self.active_bindings)

    def take_key(self, key: str) -> bool:
        """Do what it means here and now. False if it is for a dialog or a field, or means nothing."""
        plain = key.removeprefix(HELD)
        if plain == key or self._edits(key) or any(key in action.keys for action in self.registry):
            return self._take(key)
        # Terminals, tmux among them, take an escape and a key soon after it for one key with alt held. Alt may also
        # have been held, to edit what is typed, so the key does not act on what the escape leads to.
        escaped = self._take("escape")
        return self._take(plain, acts=False) or escaped

    def _take(self, key: str, *, acts: bool = True) -> bool:
        if len(self.screen_stack) != 1 or self._leaving:
            return False
        if isinstance(self.focused, Input):
            if key == "escape":
                self.navigation.end_filter(keep=False)
            return key == "escape"
        own = actions.of_view(self.view.name_in_registry, self.registry)
        action = next((each for each in (*own, *self.moves()) if key in each.keys), None)
        if action is None or (action.changes_the_run and not acts):
            return False
        self.do(action)
        return True

    def do(self, action: Action) -> None:
        """What an action of the registry means in the view that is seen."""
        self.notices.pass_by()
        if not self.may(action):
            why = f"this key is {self.mirror.permission}"
            if self.settings.in_browser and action.id in NOT_IN_A_PAGE:
                self.say(
                    f"{action.title} is not possible: a page shows one run and no files.",
                    Tone.WARN,
                )
                return
            if self.read_only:
                why = "this is a recording" if self.replay else "this console is read-only"
            elif action.when is When.REPLAY:
                why = "nothing is replayed"
            self.say(f"{action.title} is not possible: {why}.", Tone.WARN)
            return
        if action.command and not self.commands.may_begin(action):
            return
        group, _, name = action.id.partition(".")
        if group == "go":
            self.navigation.do_go(name)
        elif group == "move":
            if (move := getattr(self.view, "do_move", None)) is not None:
                move(name)
        else:
            method = f"do_{action.id.replace('.', '_').replace('-', '_')}"
            able = (
                self.view,
                self.navigation,
                self.prompts,
                self.commands,
                self.exporter,
                self.playing,
                self.cli,
                self,
            )
            handler = next((found for who in able if (found := getattr(who, method, None))), None)
            if handler is not None:
                handler()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == FILTER:
            self.navigation.filter_typed(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == FILTER:
            self.navigation.filter_entered(event.value)

    def say(self, text: str, tone: Tone = Tone.PLAIN, *, fleeting: bool = False) -> None:
        """A sentence in the notice line, of the view that is seen; a fleeting one is gone with the next act."""
        self.notices.say(text, self.clock(), tone, Lasts.FLEETING if fleeting else Lasts.HERE)
        self.paint_chrome()

    def report(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        """A sentence on what became of an act: it stays wherever one goes."""
        self.notices.say(text, self.clock(), tone, Lasts.ITS_TIME)
        self.paint_chrome()

    def perform(self, intent: PendingCommand, seen_in: View | None = None) -> None:
        """Carry out what a person wants; questions and answers come by themselves."""
        self.run_worker(self.commands.carry_out(intent, seen_in), group="acts", name=intent.what)

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
        self._frozen_at = self.clock() if self._frozen_at is None else None
        self._round()

    def do_copy_line(self) -> None:
        words = pending_commands.line(self.view.cli_line(), self.settings.aim)
        self.copy(words, f"copied: {words}")

    def copy(self, text: str, told: str) -> None:
        """By the terminal itself (OSC 52), so it works over ssh, too."""
        if self.settings.in_browser:
            self.say(text)
        else:
            self.copy_to_clipboard(text)
            self.say(told)

    def do_theme(self) -> None:
        self.theme = LIGHT if self.theme == DARK else DARK
        self.repaint_all()

    def ask_events(self, then: Callable[[list[AnyRow]], None]) -> None:
        """What happened before the console came, which the feed does not carry and a recording does not have."""
        if self.replay is not None or not self.mirror.link.connected:
            return

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
            if self.mirror.link.connected and self.replay is None:
                try:
                    self.why = await self.connection.client.why()
                    self.why_at = self.clock()
                except AgentrlError:
                    pass
            await asyncio.sleep(WHY_EVERY_S if self.why is not None else 1.0)
