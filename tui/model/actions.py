"""The one registry of what keys do: key map, footer, help, palette and the reference in the docs come from here.

Invariants: within one view no key means two things; an action that sends a command names it, so permission, danger and
what takes it back come from the table of commands.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.messages import Permission

EVERYWHERE = ""
UNDO = "undo"
TABLES = (
    *("fleet", "events", "alerts", "tuning", "records", "training", "runs"),
    *("tasks", "checkpoints", "keys", "tool-errors", "failed-calls", "token-tree"),
)
RECORDS_BEHIND = ("step", "task", "record")
"""Pages that name records."""
ANSWERS = ("answer", *RECORDS_BEHIND, "group")
"""Pages that are asked for once, when they are opened."""
VIEWS = ("overview", "fleet", "events", "alerts", "tuning", "logs", "records", "training", "runs")
"""The screens in the order of their digits."""


class When(enum.Enum):
    """Whether it means something while a recording is played."""

    ALWAYS = enum.auto()
    LIVE = enum.auto()
    REPLAY = enum.auto()


@dataclass(frozen=True, slots=True)
class Action:
    id: str
    keys: tuple[str, ...]
    """As Textual names them; the first one is shown."""
    title: str
    """A word or two, for footer and palette."""
    help: str
    where: tuple[str, ...] = (EVERYWHERE,)
    """Views in which it means something."""
    command: str = ""
    """The command that it sends, by its name in the table."""
    footer: int = 0
    """The higher, the longer it stays in a narrow footer; 0 is never shown there."""
    when: When = When.ALWAYS
    shells: bool = False
    """It changes the run by the command line, without a coordinator that could refuse."""

    @property
    def changes_the_run(self) -> bool:
        """Itself, or by what it takes back."""
        return bool(self.command) or self.shells or self.id == UNDO

    def allowed(self, permission: Permission, *, read_only: bool, replay: bool = False) -> bool:
        if self.when is (When.LIVE if replay else When.REPLAY):
            return False
        if read_only and (self.command or self.shells):
            return False
        return not self.command or permission.allows(COMMANDS[self.command].permission)


def _go(number: int, view: str, help: str) -> Action:
    return Action(f"go.{view}", (str(number),), view, help)


def _asked(id: str, key: str, title: str, help: str, where: tuple[str, ...], footer: int = 0) -> Action:
    """About what is asked for, so that no recording has it."""
    return Action(id, (key,), title, help, where, footer=footer, when=When.LIVE)


def _replay(name: str, keys: tuple[str, ...], title: str, help: str, footer: int = 0) -> Action:
    return Action(f"replay.{name}", keys, title, help, footer=footer, when=When.REPLAY)


RECORDING = (
    _replay("play", ("P",), "play/stop", "Lets the recording go on, or stand.", 59),
    _replay("next", ("right_curly_bracket",), "next", "Stands where the next incident, alert or operation began.", 49),
    _replay("previous", ("left_curly_bracket",), "previous", "Stands where the one before began.", 48),
    _replay("forward", ("full_stop",), "+10 s", "Ten seconds on.", 44),
    _replay("back", ("comma",), "-10 s", "Ten seconds back.", 43),
    _replay("faster", ("right_parenthesis",), "faster", "The next higher speed.", 42),
    _replay("slower", ("left_parenthesis",), "slower", "The next lower speed.", 41),
    _replay("first", (), "to the beginning", "Where the recording begins."),
    _replay("last", (), "to the end", "Where the recording ends."),
)

ACTIONS: tuple[Action, ...] = (
    _go(1, "overview", "What needs you, what moves, what changed."),
    _go(2, "fleet", "Every unit, with verbs."),
    _go(3, "events", "What happened, the newest first."),
    _go(4, "alerts", "What is wrong, since when, and the command that cures it."),
    _go(5, "tuning", "Every knob: value, range, who changed it; preview, history, undo."),
    _go(6, "logs", "What units write, followed and searched."),
    _go(7, "records", "Trajectories, the newest first; those under way with the call that they wait for."),
    _go(8, "training", "Steps of the trainer, with their metrics and records."),
    _go(9, "runs", "The runs of this user: enter goes to another one, or plays what a dead one left."),
    Action("help", ("question_mark",), "help", "All keys of this screen.", footer=60),
    Action("palette", ("colon", "ctrl+p"), "command", "Any action by its name, or a command line.", footer=45),
    Action("back", ("escape",), "back", "One step back: closes, or ends a filter."),
    Action("quit", ("q",), "quit", "Leaves the console. The run goes on.", footer=60),
    Action("filter", ("slash",), "filter", "Only rows with these words.", (*TABLES, "logs"), footer=51),
    Action(UNDO, ("u",), "undo", "Takes the last act back, within 10 s.", when=When.LIVE),
    Action("why", ("w",), "why", "Who waits for whom, and who is the culprit.", footer=20, when=When.LIVE),
    Action("freeze", ("z",), "freeze", "Stops and resumes repainting; the data goes on."),
    Action("copy-line", ("Y",), "copy", "Copies the command line that does or shows the same."),
    Action("theme", (), "theme", "Dark or light."),
    Action("screenshot", ("f12",), "picture", "Writes an SVG picture of the screen."),
    Action("export", ("E",), "export", "Writes the rows of this table to a file: JSON, JSONL or CSV.", TABLES),
    # fleet
    Action("unit.more", ("plus", "equals_sign"), "more", "One unit more in this group.", ("fleet",), "scale", 58),
    Action("unit.fewer", ("minus",), "fewer", "One unit fewer in this group.", ("fleet",), "scale", 57),
    Action("unit.restart", ("r",), "restart", "A new life of this unit.", ("fleet", "unit"), "restart", 56),
    Action("group.restart", ("R",), "restart group", "New lives of the whole group.", ("fleet",), "restart"),
    Action("unit.drain", ("d",), "drain", "Finishes its work, then stops.", ("fleet", "unit"), "drain", 55),
    Action("unit.undrain", ("D",), "work on", "Takes a drain back.", ("fleet", "unit"), "drain"),
    Action("unit.stop", ("s",), "stop", "Stops it until restart wants it again.", ("fleet", "unit"), "stop", 54),
    Action("unit.kill", ("K",), "kill", "Stops it without letting it finish.", ("fleet", "unit"), "stop"),
    Action("unit.vouch", ("V",), "vouch", "Says that a lost unit is dead.", ("fleet", "unit"), "force_stopped"),
    Action("unit.pause", ("p",), "pause/resume", "Takes no new work, or again.", ("fleet", "unit"), "pause", 30),
    Action("unit.logs", ("l",), "logs", "What it writes.", ("fleet", "unit"), footer=53),
    Action("unit.previous", ("L",), "last life", "What its life before this one wrote.", ("fleet", "unit")),
    Action("unit.incident", ("i",), "incident", "Its newest unplanned end.", ("fleet", "unit"), footer=52),
    Action("unit.stacks", ("S",), "stacks", "Stacks of this or the marked units.", ("fleet", "unit"), "stacks", 25),
    # overview
    Action("cure.1", ("a",), "1st cure", "Opens the first alert.", ("overview",)),
    Action("cure.2", ("b",), "2nd cure", "Opens the second alert.", ("overview",)),
    Action("cure.3", ("c",), "3rd cure", "Opens the third alert.", ("overview",)),
    # alerts
    Action("alert.cure", ("c",), "cure", "Does what the alert suggests.", ("alerts", "alert"), footer=58),
    Action("alert.ack", ("a",), "acknowledge", "Somebody is on it.", ("alerts", "alert"), "acknowledge", 57),
    Action("alert.silence", ("s",), "silence", "Sends nothing for a while.", ("alerts", "alert"), "silence", 56),
    Action("alert.all", ("t",), "resolved too", "Shows or hides what is resolved.", ("alerts",)),
    # tuning
    Action("knob.undo", ("U",), "undo knob", "Takes back its last change.", ("tuning", "knob"), "undo_tune", 56),
    Action("knob.bound", ("b",), "bound", "The staleness bound, with what is ready by age.", ("tuning",), footer=49),
    Action("knob.less", ("left",), "less", "A tighter bound, as a what-if: nothing is changed.", ("tuning",)),
    Action("knob.more", ("right",), "more", "A looser bound, as a what-if.", ("tuning",)),
    Action("knob.history", ("h",), "history", "Every change of this knob.", ("tuning",), footer=55, when=When.LIVE),
    # events
    Action("events.kind", ("t",), "kind", "All, then only one kind after the other.", ("events",), footer=58),
    # logs
    Action("logs.follow", ("f",), "follow", "Stays at the end, or not.", ("logs",), footer=58),
    Action("logs.unit", ("enter",), "unit", "Another unit.", ("logs",), footer=57),
    Action("logs.wrap", ("W",), "wrap", "Long lines go on below themselves, or are cut.", ("logs",), footer=56),
    Action("logs.mark", ("m",), "mark", "Marks a line, or takes its mark off.", ("logs",), footer=38),
    Action("logs.next-mark", ("n",), "next mark", "The marked line after this one.", ("logs",), footer=37),
    Action("logs.previous-mark", ("N",), "mark before", "The marked line before this one.", ("logs",)),
    Action("logs.older", ("left_square_bracket",), "older life", "The life before.", ("logs",), footer=40),
    Action("logs.newer", ("right_square_bracket",), "newer life", "The life after.", ("logs",), footer=39),
    # tables
    Action("drill", ("enter",), "open", "Everything about what is under the cursor.", TABLES, footer=50),
    Action("sort-left", ("less_than_sign",), "sort by left", "Sort by the column before.", TABLES),
    Action("sort-right", ("greater_than_sign",), "sort by right", "Sort by the next column.", TABLES),
    Action("sort-turn", ("o",), "turn order", "The other way round.", TABLES),
    Action("mark", ("space",), "mark", "For stacks, merged logs or a requeue.", ("fleet", "tasks"), footer=10),
    Action("move.up", ("up", "k"), "up", "One row up.", ("table",)),
    Action("move.down", ("down", "j"), "down", "One row down.", ("table",)),
    Action("move.page-up", ("pageup", "ctrl+b"), "page up", "A screen up.", ("table",)),
    Action("move.page-down", ("pagedown", "ctrl+f"), "page down", "A screen down.", ("table",)),
    Action("move.first", ("home", "g"), "first", "The first row.", ("table",)),
    Action("move.last", ("end", "G"), "last", "The last row.", ("table",)),
    Action("move.left", ("left",), "left", "The beginning of long lines.", ("logs",)),
    Action("move.right", ("right",), "right", "More of long lines.", ("logs",)),
    # the data plane
    _asked("records.errors", "e", "tool errors", "What tool calls did wrong, by kind.", ("records",), 58),
    _asked("records.under-way", "s", "under way", "What has not ended, the oldest first.", ("records",), 57),
    _asked("records.calls", "c", "failed calls", "Every failed tool call, for itself.", ("records", "tool-errors"), 56),
    _asked("records.export", "X", "export whole", "Whole trajectories of this filter, into a file.", ("records",)),
    _asked("page.record", "enter", "a record", "One of its records, or another attempt.", RECORDS_BEHIND, 50),
    _asked("record.unfold", "f", "unfold", "Folds and unfolds long texts.", ("record", "group"), 58),
    _asked("page.again", "r", "again", "Asks for it once more.", ANSWERS, 53),
    _asked("record.colour", "c", "tokens by", "By weights, log-prob or training.", ("record",), 57),
    _asked("record.tree", "b", "branches", "The tree of its tokens, with jumps.", ("record",), 56),
    _asked("record.group", "a", "attempts", "Those of its group, side by side.", ("records", "record"), 55),
    _asked("record.next-turn", "right_square_bracket", "next turn", "The turn after this one.", ("record",)),
    _asked("record.previous-turn", "left_square_bracket", "turn before", "The turn before this one.", ("record",)),
    _asked("group.left", "left_square_bracket", "shift left", "The attempt before these.", ("group",), 57),
    _asked("group.right", "right_square_bracket", "shift right", "The attempt after these.", ("group",), 56),
    # training
    Action("curves.older", ("left",), "older", "The steps of the column to the left.", ("training",)),
    Action("curves.newer", ("right",), "newer", "The steps of the column to the right.", ("training",)),
    Action("curves.tick-before", ("left_square_bracket",), "tick before", "Where something happened.", ("training",)),
    Action("curves.tick-after", ("right_square_bracket",), "next tick", "Where something happened.", ("training",)),
    Action("curves.event", ("e",), "event", "What the tick under the cursor tells of.", ("training",), footer=57),
    Action("curves.metric", ("m",), "metric", "Which metric is drawn first.", ("training",), footer=58),
    Action("curves.next", ("n",), "next curve", "Curves that did not fit.", ("training",), footer=40),
    Action("curves.wide", ("v",), "curves only", "Curves alone, or with the table.", ("training",), footer=39),
    # runs
    Action("runs.key", ("f",), "key file", "A run elsewhere, by the key file that opens it.", ("runs",), footer=58),
    # tasks, checkpoints, keys
    _asked("list.tasks", "T", "tasks", "Rows of datasets and what became of them.", ("records",)),
    _asked("list.account", "A", "account", "Sums over everything, which must agree.", ("records",)),
    Action("task.requeue", ("r",), "requeue", "Samples it, or what is marked, again.", ("tasks",), "requeue_tasks", 58),
    Action("task.add", ("a",), "add", "Queues the rows of a file.", ("tasks",), "add_tasks", 57),
    _asked("list.checkpoints", "C", "checkpoints", "What was saved.", ("training",)),
    Action("checkpoint.pin", ("p",), "pin", "Retention leaves it alone.", ("checkpoints",), "pin_checkpoint", 58),
    Action("checkpoint.unpin", ("x",), "unpin", "Retention may have it.", ("checkpoints",), "unpin_checkpoint", 57),
    _asked("list.keys", "K", "keys", "Who may reach this run from elsewhere.", ("runs",)),
    Action("key.new", ("n",), "new key", "Makes a key file.", ("keys",), "add_key", 58),
    Action("key.revoke", ("x",), "revoke", "Refuses this key from now on.", ("keys",), "revoke_key", 57),
    # the run
    Action("run.apply", (), "up with a file", "Makes the run equal to a file; shows the plan.", command="apply"),
    Action("run.pause", (), "pause the run", "Nobody takes new work.", command="pause"),
    Action("run.resume", (), "resume the run", "Everybody takes work again.", command="resume"),
    Action("run.stacks", (), "stacks of all", "Stacks of all units, in one file.", command="stacks"),
    Action("run.test-alert", (), "test alert", "Sends a test through every sink.", command="test_alert"),
    Action("run.down", (), "take the run down", "Stops everything and proves it.", command="down"),
    Action("run.up", (), "bring the run up", "Starts what is dead of its control plane.", shells=True, when=When.LIVE),
    *RECORDING,
)  # fmt: skip

BY_ID: Mapping[str, Action] = {action.id: action for action in ACTIONS}


def of_view(view: str, actions: Iterable[Action] = ACTIONS) -> list[Action]:
    """What means something in a view, its own actions first."""
    own = [action for action in actions if view in action.where]
    return own + [action for action in actions if EVERYWHERE in action.where]


def rebound(keys: Mapping[str, tuple[str, ...]], actions: Iterable[Action] = ACTIONS) -> tuple[Action, ...]:
    """The registry with a person's own keys."""
    return tuple(replace(action, keys=keys.get(action.id, action.keys)) for action in actions)


_SIGNS = {
    "question_mark": "?",
    "colon": ":",
    "slash": "/",
    "plus": "+",
    "minus": "-",
    "equals_sign": "=",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left_curly_bracket": "{",
    "right_curly_bracket": "}",
    "left_parenthesis": "(",
    "right_parenthesis": ")",
    "full_stop": ".",
    "comma": ",",
    "escape": "esc",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "home": "Home",
    "end": "End",
    "ctrl+b": "^b",
    "ctrl+f": "^f",
    "f12": "F12",
    "ctrl+p": "^p",
}


def sign(key: str) -> str:
    """A key as it stands on the keyboard."""
    return _SIGNS.get(key, key)
