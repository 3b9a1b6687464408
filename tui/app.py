"""Defines the application: one connection, one mirror, the services and the views of one run, and the dispatch of keys.

Invariants:
- Only the registry of actions decides what a key does.
- Keys that come before a view is composed, or that need rows which have not come yet, wait for them in their order. A
  key that needs neither acts at once, and those that wait are dropped.
- A fault in one view is written to a file and shown, and the rest of the console keeps working.
- The console survives its coordinator, and its own end does not end the run.
- While the console switches to another run, it queries, paints and sends nothing.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.screen import Screen
from textual.widgets import Input
from textual.worker import WorkerFailed, get_current_worker

from agentrl.config import paths
from agentrl.errors import AgentrlError
from agentrl.protocol.control_commands import WhyReport
from tui import action_registry
from tui.cli_runner import CliRunner
from tui.command_palette import CommandPalette
from tui.command_runner import CommandRunner
from tui.connection import Connection
from tui.console_interface import Settings, work
from tui.dialogs.modal import Modal
from tui.export import Exporter
from tui.frame import PAINTS_PER_S, Frame
from tui.model import actions
from tui.model.actions import Action, When
from tui.model.mirror import Mirror
from tui.model.notices import Lasts, Notices
from tui.model.step_cache import StepCache
from tui.model.styled_text import Tone
from tui.navigation import FILTER, Navigation
from tui.playback_actions import PlaybackActions
from tui.playback_connection import PlaybackConnection
from tui.result_files import ResultFiles
from tui.run_list import Place
from tui.view_registry import SCREENS
from tui.views.view import View
from tui.widgets.keyboard import ALT, TextField, read_alt_keys
from tui.widgets.themes import Styles, themes

WHY_EVERY_S = 4.0
NOT_IN_A_PAGE = frozenset({"go.runs", "runs.key", "key.new", "task.add", "evaluation.file"})
"""A browser page shows one run: it must not reach others or write files on this host."""
CRASH_FILE = "console-crash.txt"
MOST_WAITING = 4096
"""Keys that may wait for a view, more than a person types; a paste may be longer."""
TERMINATED = 128 + signal.SIGTERM


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
    line_styles: Styles

    def __init__(
        self,
        link: Callable[[Mirror], Connection | PlaybackConnection],
        settings: Settings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings or Settings()
        self.clock = clock
        """Monotonic seconds, for the age of the data."""
        read_alt_keys()
        # Without colours the terminal keeps its own background.
        super().__init__(ansi_color=not self.settings.colour or None)
        for theme in themes(self.settings.colours):
            self.register_theme(theme)
        self.theme = self.settings.theme
        self.registry = actions.rebound(self.settings.keys, action_registry.ACTIONS)
        self.result_files = ResultFiles()
        self._leaving = False
        """The console is between two runs."""
        self.faults: dict[str, str] = {}
        """The sentence on each fault of a part of the console, by the activity of that part and the error."""
        self._waiting: list[events.Key] = []
        """Keys that wait for a view or its rows, or for the end of a dialog."""
        self._closes_first: Screen[Any] | None = None
        """The dialog that an escape closes before the keys that wait."""
        self.frame = Frame(self)
        self._begin(link)

    def _begin(self, link: Callable[[Mirror], Connection | PlaybackConnection]) -> None:
        """Create everything that belongs to one run."""
        self.mirror = Mirror()
        self.connection = link(self.mirror)
        self.playback = self.connection.playback if isinstance(self.connection, PlaybackConnection) else None
        self.notices = Notices()
        self.steps = StepCache()
        self.why: WhyReport | None = None
        self.why_at = 0.0
        self.views = {kind.name_in_registry: kind(id=kind.name_in_registry) for kind in SCREENS}
        self.navigation = Navigation(self, self.views)
        self.commands = CommandRunner(self)
        self.exporter = Exporter(self)
        self.cli = CliRunner(self, self.commands)
        self.playback_actions = PlaybackActions(self, self.playback)
        self.frame.reset()
        services = (
            self.navigation, self.commands, self.exporter, self.cli, self.frame, self.playback_actions,
            CommandPalette(self),
        )  # fmt: skip
        self._services: dict[type[Any], Any] = {type(service): service for service in services}
        action_registry.check(self.registry, self._services)

    # ---- the screen ----

    def compose(self) -> ComposeResult:
        yield self.frame.header
        with Container(id="views"):
            for view in self.views.values():
                view.display = view is self.view
                yield view
        yield TextField(placeholder="words to look for; enter keeps the filter, esc ends it", id=FILTER)
        yield self.frame.notice
        yield self.frame.footer

    def on_mount(self) -> None:
        self.set_class(self.settings.ascii_only, "-ascii")
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.exit, TERMINATED)
        if not gc.get_freeze_count():
            # A garbage collection of all imported objects takes 0.1 s, during which a key would wait.
            gc.freeze()
        self._listen()
        self.set_interval(1 / PAINTS_PER_S, self._paint, name="paint")
        self.view.shown()

    def _listen(self) -> None:
        self.run_worker(work(self.connection.run), name="connection", group="connection")
        self.run_worker(work(self._ask_why), name="why", group="why")
        if isinstance(self.connection, Connection):
            self.run_worker(work(self._paint_first_data, self.connection), name="first data", group="connection")

    # ---- from run to run ----

    def follow(self, link: Callable[[Mirror], Connection | PlaybackConnection], place: Place, name: str) -> None:
        """Leave this run and show another one."""
        if self.settings.in_browser:
            self.say("A browser page shows one run. Open another one in a terminal.", Tone.WARN)
            return
        self._leaving = True
        self.settings = replace(self.settings, target_options=place.options, local=not place.key_file)
        for worker in list(self.workers):
            # A command on its way to this run must never reach the next one.
            worker.cancel()
        self.run_worker(work(self._switch, link, name), group="switch")

    async def _switch(self, link: Callable[[Mirror], Connection | PlaybackConnection], name: str) -> None:
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
        self.navigation.open_tab(self.navigation.tab)
        self.frame.repaint_all()

    def add_key_file(self, path: str) -> None:
        """Add a run to the list of runs."""
        self.settings = replace(self.settings, key_files=tuple(dict.fromkeys((*self.settings.key_files, path))))

    @property
    def view(self) -> View:
        return self.navigation.view

    @property
    def read_only(self) -> bool:
        return self.settings.read_only or self.playback is not None

    def now(self) -> float:
        """The time that the screens show."""
        return self.connection.now()

    @property
    def fresh(self) -> bool:
        return self.frame.fresh

    async def _paint_first_data(self, connection: Connection) -> None:
        """Paint the first snapshot at once, not in the next round."""
        await connection.settled()
        self._paint_new_data()

    async def _paint(self) -> None:
        self._paint_new_data()
        await self.take_waiting_keys()

    def _paint_new_data(self) -> None:
        if not self._leaving:
            self.frame.paint_new_data()

    def paint_frame(self) -> None:
        self.frame.paint()

    def update_view(self) -> None:
        self.view.update()
        self.frame.paint()

    # ---- actions ----

    def action_help_quit(self) -> None:
        """Replace the framework's message on ctrl+c, which names a key that the console does not have."""
        quit_keys = next(action.keys for action in self.registry if action.id == "quit")
        message = f"ctrl+c ends nothing here; {quit_keys[0]} leaves the console, and the run goes on."
        self.say(message, Tone.DIM, fleeting=True)

    def may(self, action: Action) -> bool:
        """Whether this console has permission for the action."""
        if self.settings.in_browser and action.id in NOT_IN_A_PAGE:
            return False
        return action.allowed(self.mirror.permission, read_only=self.read_only, playback=self.playback is not None)

    def allowed(self) -> list[Action]:
        return [action for action in self.registry if self.may(action)]

    def possible(self) -> list[Action]:
        """The actions that the present view offers."""
        return [
            a
            for a in actions.of_view(self.view.name_in_registry, self.registry)
            if self.may(a) and self.view.has_use_for(a)
        ]

    def moves(self) -> list[Action]:
        """The moves of cursors and pages, where the view has one."""
        return [a for a in self.registry if "table" in a.where] if self.view.moves else []

    async def on_event(self, event: events.Event) -> None:
        # Dispatched here and not by the widgets: a key for a page that is still being built would wait, and the next
        # key, which finds another page, would overtake it.
        if isinstance(event, events.Key) and not event.is_forwarded:
            if self._must_wait(event) or self.take_key(event.key):
                return
            if len(self.screen_stack) > 1 and event.key.startswith(ALT) and not self._edits(event.key):
                event = self._close_dialog_first(event)
            elif self._means_nothing(event.key):
                shown = event.character if event.is_printable and event.character else actions.sign(event.key)
                self.say(f"{shown} means nothing here; ? lists the keys.", Tone.DIM, fleeting=True)
        await super().on_event(event)

    def _close_dialog_first(self, event: events.Key) -> events.Key:
        """Handles an escape that was followed closely by a key: returns the escape; the key waits until the dialog is
        closed."""
        plain = event.key.removeprefix(ALT)
        action = self._action_of(plain)
        if action is not None and not action.changes_the_run:
            self._waiting, self._closes_first = [events.Key(plain, None)], self.screen
        return events.Key("escape", None)

    def _must_wait(self, event: events.Key) -> bool:
        dialog = self.screen if len(self.screen_stack) > 1 else None
        if self._closes_first is not None or (
            isinstance(dialog, Modal) and (dialog.awaits_focus or bool(self._waiting))
        ):
            self._keep_waiting(event)
            return True
        if len(self.screen_stack) != 1 or self._leaving or isinstance(self.focused, Input):
            return False
        action = self._action_of(event.key)
        # The key may have another meaning in the view or dialog that an earlier key opens.
        overtakes = event.key.startswith(ALT) if action is None else action.overtakes
        waits = bool(self._waiting) and not overtakes
        if action is not None and action.needs_rows:
            waits = waits or self.view.awaits_rows
        if self.view.ready and not waits:
            if action is not None:
                self._waiting.clear()
            return False
        self._keep_waiting(event)
        return True

    def _keep_waiting(self, event: events.Key) -> None:
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(event)

    async def take_waiting_keys(self) -> None:
        """Take the keys that waited, until one must wait again."""
        if self._closes_first is not None:
            if self._closes_first in self.screen_stack:
                return
            self._closes_first = None
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            await self.on_event(event)

    async def on_modal_resumed(self) -> None:
        await self.take_waiting_keys()

    def _edits(self, key: str) -> bool:
        return isinstance(self.focused, TextField) and self.focused.edits_with(key)

    def _means_nothing(self, key: str) -> bool:
        """Whether no field, dialog or binding of Textual handles the key either."""
        typed = isinstance(self.focused, Input)
        return not (self._leaving or typed or len(self.screen_stack) > 1 or key in self.active_bindings)

    def take_key(self, key: str) -> bool:
        """Execute the action of a key in this view. Returns False if the key is for a dialog or a field, or has no
        action.
        """
        plain = key.removeprefix(ALT)
        if plain == key or self._edits(key) or any(key in action.keys for action in self.registry):
            return self._take(key)
        # Terminals such as tmux report an escape and a key soon after it as one key with alt held. Because alt may
        # really have been held, the key must not change the run.
        escaped = self._take("escape")
        return self._take(plain, acts=False) or escaped

    def _take(self, key: str, *, acts: bool = True) -> bool:
        if len(self.screen_stack) != 1 or self._leaving:
            return False
        if isinstance(self.focused, Input):
            if key == "escape":
                self.navigation.end_filter(keep=False)
            return key == "escape"
        action = self._action_of(key)
        if action is None or (action.changes_the_run and not acts):
            return False
        self.do(action)
        return True

    def _action_of(self, key: str) -> Action | None:
        """The action of a key in the present view."""
        own = actions.of_view(self.view.name_in_registry, self.registry)
        return next((each for each in (*own, *self.moves()) if key in each.keys), None)

    def do(self, action: Action) -> None:
        """Execute an action in the present view, or show why it is not possible."""
        self.notices.pass_by()
        if not self.may(action):
            why = f"this key is {self.mirror.permission}"
            if self.settings.in_browser and action.id in NOT_IN_A_PAGE:
                why = "a browser page shows one run and no files"
            elif self.read_only:
                why = "this is a recording" if self.playback else "this console is read-only"
            elif action.when is When.PLAYBACK:
                why = "this is not a recording"
            self.say(f"{action.title} is not possible: {why}.", Tone.WARN)
            return
        if action.command and not self.commands.may_begin(action, self.view):
            return
        with self.guarded(action.title):
            action.run(self.view if action.target is None else self._services[action.target], *action.args)

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == FILTER:
            self.navigation.filter_typed(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == FILTER:
            self.navigation.filter_entered(event.value)

    def say(self, text: str, tone: Tone = Tone.PLAIN, *, fleeting: bool = False) -> None:
        self.notices.say(text, self.clock(), tone, Lasts.FLEETING if fleeting else Lasts.HERE)
        self.frame.paint()

    def report(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        self.notices.say(text, self.clock(), tone, Lasts.ITS_TIME)
        self.frame.paint()

    # ---- faults ----

    @contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """The boundary of one action: a fault in it must not end the console."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the boundary of one action
            self.say(self.fault(error, doing), Tone.BAD)

    def fault(self, error: Exception, doing: str) -> str:
        """Write the traceback of a fault in one part to a file. Returns the sentence about it."""
        known = f"{doing}: {error!r}"
        if known not in self.faults:
            # The same fault may occur again at every paint.
            where = _write_traceback("".join(traceback.format_exception(error)))
            self.faults[known] = f"A fault of the console in {known}; {where}. The rest of the console goes on."
        return self.faults[known]

    def _handle_exception(self, error: Exception) -> None:
        if isinstance(error, WorkerFailed) and isinstance(get_current_worker().node, View):
            self.say(self.fault(error.error, get_current_worker().name or "query"), Tone.BAD)  # type: ignore[arg-type]
        else:
            super()._handle_exception(error)

    def _fatal_error(self) -> None:
        """Write the traceback to a file and one sentence to the terminal."""
        where = _write_traceback(traceback.format_exc())
        self._exit_renderables.append(Text(f"The console ended by a fault of its own; {where}. The run goes on."))
        self._close_messages_no_wait()

    def copy(self, text: str, message: str) -> None:
        """Copy text by the terminal (OSC 52), so that it works over ssh too."""
        if self.settings.in_browser:
            self.say(text)
        else:
            self.copy_to_clipboard(text)
            self.say(message)

    async def _ask_why(self) -> None:
        """Query who waits for whom, which the feed does not carry."""
        while True:
            if self.mirror.link.connected and self.playback is None:
                try:
                    self.why = await self.connection.client.why()
                    self.why_at = self.clock()
                except AgentrlError:
                    pass
            await asyncio.sleep(WHY_EVERY_S if self.why is not None else 1.0)


def _write_traceback(text: str) -> str:
    """Write it to the crash file. Returns where it is."""
    path = paths.home() / CRASH_FILE
    try:
        path.write_text(text)
    except OSError:
        return f"its traceback could not be written: {text}"
    return f"the traceback is in {path}"
