"""What the console has the command line do: bring a run up, make it equal to a file, make a key.

Invariants: a process in a session of its own does it, which outlives the console and hears no key of its terminal,
keeps secrets out of it and remembers what a later `up` has to know; before a run is changed by its file, its plan is
looked at and agreed to as every act is; a page has nothing read on this host but run files beside the run's own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from agentrl.client.run_processes import read_json
from agentrl.config import paths
from agentrl.errors import AgentrlError, OperationFailedError
from agentrl.protocol.commands import Apply
from agentrl.protocol.effects import Consent, Effect, Tier
from agentrl.protocol.messages import Permission
from tui.dialogs.form import Field, Form, Question, Values
from tui.model.effect_text import effect_sentence
from tui.model.pending_commands import PendingCommand, line
from tui.model.styled_text import Tone

if TYPE_CHECKING:
    from tui.app import Console


class CliResult(NamedTuple):
    code: int
    out: str
    last: str
    """What it said last to a person."""


async def agentrl(*words: str) -> CliResult:
    """The command line, without a terminal."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "agentrl", *words,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    out, told = await process.communicate()
    lines = told.decode(errors="replace").strip().splitlines() or out.decode(errors="replace").strip().splitlines()
    last = lines[-1].removeprefix("agentrl: ") if lines else "done"
    return CliResult(process.returncode or 0, out.decode(errors="replace"), last)


class CliRunner:
    def __init__(self, console: Console) -> None:
        self._console = console

    async def _do(self, *words: str) -> CliResult:
        """With the command line in the notice, while it works and behind what it said."""
        shown = line(words)
        self._console.report(shown, Tone.BUSY)
        said = await agentrl(*words)
        self._console.report(f"{words[0]}: {said.last}", Tone.BAD if said.code else Tone.GOOD)
        return said

    # ---- what is dead of the control plane ----

    def do_run_up(self) -> None:
        self._console.run_worker(self._bring_up(), group="up")

    async def _bring_up(self) -> None:
        console = self._console
        name = console.mirror.name
        if not console.settings.local or not name or console.read_only:
            console.say("It is brought up on its own host: agentrl up --run NAME.", Tone.WARN)
            return
        await self._do("up", "--run", name, "--yes")
        console.connection.try_now()

    # ---- a file ----

    def do_run_apply(self) -> None:
        self._console.run_worker(self._apply(), group="up")

    async def _apply(self) -> None:
        console = self._console

        def wrong(values: Values) -> str:
            file = _path(values[0])
            return self._not_for_a_page(file) or ("" if file.is_file() else "Type the path of a run file.")

        async def preview(values: Values) -> str:
            plan = await self._plan(_path(values[0]))
            return f"{plan.tier.name.lower()}: {effect_sentence(plan.effect, console.mirror)}"

        fields = (Field("run file", hint="run.yaml"),)
        question = Question("Make this run equal to a file", (), fields, "go on", wrong, preview)
        answer = await console.push_screen_wait(Form(question))
        if answer is None:
            return
        file = _path(answer[0])
        intent = PendingCommand("apply", Apply({}), f"up {file.name}", ("up", str(file)))
        try:
            if await console.commands.agreed(intent, await self._plan(file)) is None:
                console.say(f"{intent.what}: nothing was done.")
                return
        except AgentrlError as error:
            console.report(f"✖ {intent.what}: {error}", Tone.BAD)
            return
        await self._do("up", str(file), "--yes", *console.settings.aim)

    def _not_for_a_page(self, file: Path) -> str:
        """What is wrong with a file that whoever looks at a page wants read; empty if nothing is."""
        if not self._console.settings.in_browser:
            return ""
        own = read_json(paths.state_dir(self._console.mirror.name) / paths.LAST_UP).get("file")
        if not isinstance(own, str):
            return "A page takes run files beside the run's own, and which that is was not remembered."
        home = Path(own).resolve().parent
        return "" if file.resolve().parent == home else f"A page takes run files only from where its own is: {home}."

    async def _plan(self, file: Path) -> Consent:
        """What the file would do to the run now."""
        said = await agentrl("up", str(file), "--dry-run", "--json", *self._console.settings.aim)
        try:
            body = json.loads(said.out)
            return Consent(msgspec.convert(body["effect"], Effect), Tier[str(body["tier"]).upper()], 0.0)
        except (ValueError, KeyError, TypeError, msgspec.ValidationError):
            raise OperationFailedError(said.last) from None

    # ---- a key ----

    def ask_new_key(self) -> None:
        """The secret goes from the command line into its file and is never here."""
        allowed = [each.value for each in Permission]

        def wrong(values: Values) -> str:
            if not values[0].strip():
                return "Whose key is it?"
            return "" if values[1].strip() in allowed else f"It may be {', '.join(allowed)}."

        def then(values: Values | None) -> None:
            if values is not None:
                name, permission, file = (value.strip() for value in values)
                out = ("--out", str(_path(file))) if file else ()
                words = ("keys", "new", name, "--permission", permission, *out, "--yes")
                self._console.run_worker(self._make_key(words), group="keys")

        fields = (Field("name"), Field("may", "viewer", hint=", ".join(allowed)), Field("file", hint="NAME.key here"))
        self._console.push_screen(Form(Question("A new key", (), fields, "make it", wrong)), then)

    async def _make_key(self, words: tuple[str, ...]) -> None:
        if not self._console.fresh:
            self._console.say("What is shown is old: no key was made. Try again when the run is heard.", Tone.WARN)
            return
        await self._do(*words, *self._console.settings.aim)


def _path(text: str) -> Path:
    return Path(text.strip() or ".").expanduser().absolute()
