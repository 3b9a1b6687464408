"""Removes the files of a run that is down: `runs forget` removes its state, `runs wipe` its data.

Invariants:
- No file of a run is removed while one of its processes may live.
- `runs forget` keeps the run directory with logs and results; `runs wipe` keeps the configuration.
- The next command that creates or removes a run finishes a removal that was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import typer

from agentrl.cli import leftover_processes, output
from agentrl.cli.execute import signals_end_prompts
from agentrl.cli.options import Cli
from agentrl.cli.run_transaction import LocalTransaction
from agentrl.cli.start_coordinator import Place, refuse_if_in_use
from agentrl.client.discovery import forget_dead, state_of
from agentrl.client.run_processes import keepers_of
from agentrl.config import paths
from agentrl.errors import (
    AgentrlError,
    ConfigError,
    ConflictError,
    DiskError,
    ExitCode,
    RefusedError,
    ToldError,
    UsageError,
)
from agentrl.formatting.amounts import counted
from agentrl.formatting.names import plural
from agentrl.protocol.effects import Effect, few_names

_FORGOTTEN = ".forgotten"
_COUNTED = ("Task", "Record", "Step", "Checkpoint", "Publication")
"""Kinds of documents that are counted by name; the others are one sum."""


class Forget(LocalTransaction):
    """Removes the state directory of a run: journal, keys, database."""

    def __init__(self, cli: Cli, name: str) -> None:
        super().__init__(cli)
        self._name = name

    async def prepare(self) -> None:
        finish_removals(paths.home())
        self._state_dir = state_of(self._name)
        self._run = next((run for run in paths.list_runs() if run.name == self._name), None)
        self._uuid = self._run.uuid if self._run is not None else ""
        await refuse_if_up(self._name, self._state_dir, self._uuid)
        here = f"all that {self._state_dir.resolve()} holds: journal, keys, database"
        there = few_names(list(await other_hosts(self._state_dir)))
        copies = (f"the copies of files, and the state of the agents, on {there}",) if there else ()
        self.effect = Effect(loses=(here, *copies))

    async def act(self) -> None:
        # The run may be up by now: a person had time to think.
        await refuse_if_up(self._name, self._state_dir, self._uuid)
        self._elsewhere = await other_hosts(self._state_dir, "forget")
        if self._uuid:
            forget_dead(self._state_dir, self._uuid)
        remove_state(self._state_dir)

    async def finish(self) -> ExitCode:
        run_dir = self._run.run_dir if self._run is not None else ""
        if self.cli.json:
            document = {"run": self._name, "uuid": self._uuid, "forgotten": str(self._state_dir), "kept": run_dir}
            output.emit({**document, "other_hosts": self._elsewhere})
        else:
            kept = f" What it wrote in {run_dir} is still there." if run_dir else ""
            output.say(f"The run {self._name} is forgotten.{kept}")
            say_what_is_left(self._elsewhere)
        return ExitCode.OK


class Wipe(LocalTransaction):
    """Deletes all data of a run, after its name was typed or given as `confirmation`."""

    def __init__(self, cli: Cli, name: str, confirmation: str) -> None:
        super().__init__(cli)
        self._name = name
        self._confirmation = confirmation

    async def prepare(self) -> None:
        finish_removals(paths.home())
        state_dir = state_of(self._name)
        run = paths.read_run(state_dir)
        if run is None or run.broken or not run.run_dir:
            raise ConfigError(
                f"The run {self._name} does not say where its directory is.", hint=f"agentrl runs forget {self._name}"
            )
        if self._confirmation and self._confirmation != self._name:
            raise UsageError(f"--yes-really says {self._confirmation}, but the run is {self._name}.")
        self._uuid, self._place = run.uuid, Place(self._name, state_dir, Path(run.run_dir))
        there = few_names(list(await other_hosts(state_dir)))
        elsewhere = (f"weights, checkpoints, logs and copies of files on {there}",) if there else ()
        self.effect = Effect(loses=(sentence(await self._wiping()), *elsewhere))

    def confirmed(self) -> bool:
        return bool(self._confirmation) or self._typed()

    async def act(self) -> None:
        self._lost = await self._wiping("--wipe")
        self._elsewhere = await other_hosts(self._place.state_dir, "wipe")

    async def finish(self) -> ExitCode:
        if self.cli.json:
            output.emit({"run": self._name, "wiped": self._lost, "other_hosts": self._elsewhere})
        else:
            output.say(f"The run {self._name} is wiped: {sentence(self._lost)}. Its configuration stays.")
            say_what_is_left(self._elsewhere)
        return ExitCode.OK

    def _typed(self) -> bool:
        """Whether a person types the name of the run. Raises RefusedError for a script."""
        effect = self.effect.sentence()
        if self.cli.json or not output.interactive():
            raise RefusedError(
                f"The effect would be: {effect}.", hint=f"It cannot be taken back: --yes-really {self._name}"
            )
        question = f"The effect: {output.sanitise(effect)}. It cannot be taken back. Type the name of the run to go on"
        with signals_end_prompts():
            return str(typer.prompt(question, default="", show_default=False, err=True)).strip() == self._name

    async def _wiping(self, *arguments: str) -> dict[str, Any]:
        """Count the data of the run, or with `--wipe` delete it. A program of the room that knows the database does
        this.
        """
        place = self._place
        await refuse_if_up(place.name, place.state_dir, self._uuid)
        refuse_if_in_use(place)
        program = (sys.executable, "-m", "agentrl.store.run_wipe")
        process = await asyncio.create_subprocess_exec(
            *(*program, "--state-dir", str(place.state_dir), "--run-dir", str(place.run_dir), *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        document, _ = await process.communicate()
        try:
            found: dict[str, Any] = json.loads(document)
        except ValueError:
            raise AgentrlError(f"The data of the run cannot be read (status {process.returncode}).") from None
        if failed := found.get("failed"):
            raise ToldError(**failed)
        return found


def sentence(found: dict[str, Any]) -> str:
    """The numbers of lost things, as a sentence."""
    documents: dict[str, int] = found["documents"]
    parts = [counted(documents[kind], plural(kind)) for kind in _COUNTED if documents.get(kind)]
    others = sum(documents.values()) - sum(documents.get(kind, 0) for kind in _COUNTED)
    parts += [counted(others, "other documents")] if others else []
    text = f"{', '.join(parts)} ({output.size(found['database_bytes'])})" if parts else "no documents"
    files = {name: size for name, size in found["files"].items() if size}
    there = f"{output.size(sum(files.values()))} of {', '.join(files)}" if files else "no files"
    return f"loses {text} and {there}"


async def other_hosts(state_dir: Path, act: str = "") -> dict[str, str]:
    """The other hosts of a run, each with why it still has files of the run; without `act` nothing is removed."""
    program = (sys.executable, "-m", "agentrl.control.other_hosts", "--state-dir", str(state_dir))
    process = await asyncio.create_subprocess_exec(
        *(*program, *(("--act", act) if act else ())),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    document, _ = await process.communicate()
    try:
        found: dict[str, Any] = json.loads(document)
    except ValueError:
        found = {"failed": f"the program that does so ended with {process.returncode}"}
    if failed := found.get("failed"):
        # A damaged journal must not prevent a person from removing the run.
        output.note(f"agentrl: other hosts of the run are not known, so files may be left there: {failed}")
    hosts: dict[str, str] = found.get("hosts", {})
    return hosts


def say_what_is_left(elsewhere: dict[str, str]) -> None:
    """Name the hosts on which files were removed, and those that still have them."""
    if cleared := few_names([host for host, why in elsewhere.items() if not why]):
        output.say(f"Its files on {cleared} are removed too.")
    for host, why in elsewhere.items():
        if why:
            output.note(f"agentrl: host {host} was not asked, and may still have files of the run: {why}.")


async def refuse_if_up(name: str, state_dir: Path, uuid: str) -> None:
    """Raises ConflictError if a process of the run lives on this host."""
    alive = [f"{keeper.what} (pid {keeper.pid})" for keeper in keepers_of(state_dir)]
    if not alive and uuid:
        found = (await leftover_processes.scan(uuid, state_dir)).found
        alive = [f"{each.incarnation or each.command} (pid {each.pid})" for each in found]
    if alive:
        live = "lives" if len(alive) == 1 else "live"
        raise ConflictError(
            f"The run {name} is not down: {', '.join(alive[:3])} {live}.",
            hint=f"First: agentrl down --run {name}",
        )


def remove_state(state_dir: Path) -> None:
    """Remove a state directory.

    It is renamed first, so that no command finds half of it. A link to it is removed last, so that after a killed
    removal the directory can still be found.
    """
    place = state_dir.resolve()
    going = _renamed(place)
    try:
        _remove(going)
        place.rename(going)
        _remove(going)
        _unlink(state_dir)
    except OSError as failed:
        raise DiskError(f"{failed.filename or going} cannot be removed: {failed.strerror}.") from failed


def finish_removals(home: Path) -> None:
    """Finish removals that were killed. A directory that cannot be removed stays; its name cannot collide with a
    run."""
    with contextlib.suppress(OSError):
        for found in list(home.iterdir()):
            going = _renamed(found.resolve()) if found.is_symlink() and not found.exists() else found
            if going.name.startswith(".") and going.name.endswith(_FORGOTTEN) and going.is_dir():
                with contextlib.suppress(OSError):
                    _remove(going)
                    if going is not found:
                        _unlink(found)


def _unlink(name: Path) -> None:
    """Remove a link that leads nowhere. If the run is created again meanwhile, its directory exists before its link."""
    if name.is_symlink() and not name.exists():
        name.unlink(missing_ok=True)


def _renamed(place: Path) -> Path:
    return place.with_name(f".{place.name}{_FORGOTTEN}")


def _remove(directory: Path) -> None:
    """Remove a directory that another command may be removing, too."""
    while directory.exists():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(directory)
