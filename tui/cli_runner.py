"""Contains the actions that run `agentrl` as a process: bring a run up, apply a run file, make a key.

Invariants:
- The process has a session of its own: it outlives the console and gets no key presses of its terminal.
- Secrets stay in that process.
- Before a run file is applied, its plan is shown and needs consent like any other effect.
- From a browser page only run files in the directory of the run's own file are read.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from agentrl.client.run_processes import read_json
from agentrl.config import paths, typed_paths
from agentrl.errors import AgentrlError, OperationFailedError
from agentrl.protocol.control_commands import Apply
from agentrl.protocol.effects import Consent, Effect, Tier
from agentrl.protocol.messages import Permission
from tui.command_runner import CommandRunner
from tui.console_interface import Host, work
from tui.dialogs.form import Field, Form, Question, Values
from tui.model.effect_text import effect_sentence
from tui.model.pending_commands import PendingCommand, line
from tui.model.styled_text import Tone


class CliResult(NamedTuple):
    code: int
    out: str
    last: str
    """The last line of its messages."""


async def agentrl(*words: str) -> CliResult:
    """Run the command line without a terminal."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "agentrl", *words,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    out, err = await process.communicate()
    lines = err.decode(errors="replace").strip().splitlines() or out.decode(errors="replace").strip().splitlines()
    last = lines[-1].removeprefix("agentrl: ") if lines else "done"
    return CliResult(process.returncode or 0, out.decode(errors="replace"), last)


class CliRunner:
    def __init__(self, console: Host, commands: CommandRunner) -> None:
        self._console = console
        self._commands = commands

    async def _show_and_run(self, *words: str) -> CliResult:
        """Show the command line in the notice while it runs, then its last line."""
        self._console.report(line(words), Tone.BUSY)
        result = await agentrl(*words)
        self._console.report(f"{words[0]}: {result.last}", Tone.BAD if result.code else Tone.GOOD)
        return result

    def do_run_up(self) -> None:
        self._console.run_worker(work(self._bring_up), group="up")

    async def _bring_up(self) -> None:
        console = self._console
        name = console.mirror.name
        if not console.settings.local or not name or console.read_only:
            console.say("A run can be brought up only on its own host: agentrl up --run NAME.", Tone.WARN)
            return
        if console.mirror.link.connected:
            console.say(f"The coordinator answers. `agentrl up --run {name}` makes the run equal to its file.")
            return
        await self._show_and_run("up", "--run", name, "--yes")
        console.connection.try_now()

    def do_run_apply(self) -> None:
        self._console.run_worker(work(self._apply), group="up")

    async def _apply(self) -> None:
        console = self._console

        def wrong(values: Values) -> str:
            wanted = self._not_for_a_page(_path(values[0]))
            return wanted or ("" if typed_paths.is_file(values[0].strip()) else "Type the path of a run file.")

        async def preview(values: Values) -> str:
            plan = await self._plan(_path(values[0]))
            return f"{plan.tier.name.lower()}: {effect_sentence(plan.effect, console.mirror)}"

        fields = (Field("run file", hint="run.yaml"),)
        question = Question("Make this run equal to a file", (), fields, "go on", wrong, preview)
        answer = await console.push_screen_wait(Form(question))
        if answer is None:
            return
        file = _path(answer[0])
        pending = PendingCommand(Apply({}, str(file)))
        try:
            if not await self._commands.agreed(pending, await self._plan(file)):
                console.say(f"{pending.what}: nothing was done.")
                return
        except AgentrlError as error:
            console.report(f"✖ {pending.what}: {error}", Tone.BAD)
            return
        await self._show_and_run("up", str(file), "--yes", *console.settings.target_options)

    def _not_for_a_page(self, file: Path) -> str:
        """The reason why a browser page may not read this file; empty if it may."""
        if not self._console.settings.in_browser:
            return ""
        own = read_json(paths.state_dir(self._console.mirror.name) / paths.LAST_UP).get("file")
        if not isinstance(own, str):
            return "A browser page reads run files only beside the run's own, whose place is not known."
        home = Path(own).resolve().parent
        return "" if file.resolve().parent == home else f"A browser page reads run files only from {home}."

    async def _plan(self, file: Path) -> Consent:
        """The effect of applying the file now."""
        result = await agentrl("up", str(file), "--dry-run", "--json", *self._console.settings.target_options)
        try:
            body = json.loads(result.out)
            return Consent(msgspec.convert(body["effect"], Effect), Tier[str(body["tier"]).upper()], 0.0)
        except (ValueError, KeyError, TypeError, msgspec.ValidationError):
            raise OperationFailedError(result.last) from None

    def ask_for_new_key(self) -> None:
        """The process writes the secret to its file; the console never has it."""
        allowed = [each.value for each in Permission]

        def wrong(values: Values) -> str:
            if not values[0].strip():
                return "Type a name for the key."
            return "" if values[1].strip() in allowed else f"The permission is one of {', '.join(allowed)}."

        def then(values: Values | None) -> None:
            if values is not None:
                name, permission, file = (value.strip() for value in values)
                out = ("--out", str(_path(file))) if file else ()
                words = ("keys", "new", name, "--permission", permission, *out, "--yes")
                self._console.run_worker(work(self._make_key, words), group="keys")

        fields = (
            Field("name"),
            Field("permission", "viewer", hint=", ".join(allowed)),
            Field("file", hint="NAME.key here"),
        )
        self._console.push_screen(Form(Question("A new key", (), fields, "make it", wrong)), then)

    async def _make_key(self, words: tuple[str, ...]) -> None:
        if not self._console.fresh:
            self._console.say("The coordinator does not answer, so no key was made. Try again when it does.", Tone.WARN)
            return
        await self._show_and_run(*words, *self._console.settings.target_options)


def _path(text: str) -> Path:
    return typed_paths.path_of(text.strip()).absolute()
