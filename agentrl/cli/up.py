"""Defines the command `up`, which makes the run equal to its file.

Invariants:
- A repeated `up` changes nothing, and two at once are harmless.
- Ctrl-C or a closed terminal ends only the waiting; the run continues.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli import tool_packages
from agentrl.cli.options import Cli, add_command
from agentrl.cli.run_file import RunFile, Sets, check_inputs, load, nothing_to_bring_up
from agentrl.cli.tool_preflight import SKIP_HINT, SkipTools
from agentrl.errors import ConfigError, ConflictError, ExitCode, UsageError
from agentrl.tracing import log_format

if TYPE_CHECKING:
    from agentrl.cli.start_coordinator import Place
    from agentrl.client.offline_run import OfflineRun
    from agentrl.config.load import Loaded
    from agentrl.protocol.control_commands import Apply


def register(app: typer.Typer) -> None:
    add_command(app, "up", acts=True)(up)


Follow = Annotated[bool, typer.Option("--follow", "-f", help="Then print each change, until Ctrl-C.")]
InForeground = Annotated[
    bool, typer.Option("--foreground", help="Stay, for a container or a service; SIGTERM lets the units finish.")
]
UnlessDown = Annotated[
    bool, typer.Option("--unless-down", help="With --foreground: if the run was taken down, only wait.")
]
ReadOnly = Annotated[
    bool, typer.Option("--read-only", help="Start only what the records of the last run are read from.")
]


async def up(
    cli: Cli,
    file: RunFile = None,
    sets: Sets = None,
    follow: Follow = False,
    in_foreground: InForeground = False,
    unless_down: UnlessDown = False,
    read_only: ReadOnly = False,
    skip_tools: SkipTools = False,
) -> ExitCode:
    """Start the run, or make it equal to its file."""
    from agentrl.cli import start_coordinator

    if unless_down and not in_foreground:
        raise UsageError("--unless-down belongs to --foreground.")
    if in_foreground and (read_only or cli.dry_run or cli.remote):
        raise UsageError("--foreground starts a whole run of this host, so without --read-only, --dry-run and --key.")
    if read_only:
        return await _up_to_read(cli, file, sets, follow=follow)
    loaded, chosen_sets = load(cli, file, sets)
    place = start_coordinator.place_of(loaded.config)
    if not cli.remote:
        if start_coordinator.others_are_up(place.name):
            cli = dataclasses.replace(cli, run=place.name)
        _refuse_what_cannot_start(loaded, chosen_sets, place)
        if cli.dry_run and not await start_coordinator.is_up(place):
            return await _preview_of_a_new_run(cli, loaded, skip_tools=skip_tools)
        if not cli.dry_run:
            await _make_ready(cli, loaded, place, skip_tools=skip_tools)
    with cli.hinting():
        if in_foreground:
            return await _keep_up(cli, loaded, chosen_sets, place, unless_down=unless_down)
        return await _bring_up(cli, loaded, chosen_sets, place, follow=follow)


def _refuse_what_cannot_start(loaded: Loaded, sets: tuple[str, ...], place: Place) -> None:
    from agentrl.cli import start_coordinator
    from agentrl.client.run_processes import left_up

    start_coordinator.refuse_if_in_use(place)
    if not loaded.config.groups and not left_up(place.state_dir):
        # A run that is up is stopped by a file without groups.
        raise ConfigError(f"{loaded.path}: {nothing_to_bring_up(loaded)}")
    _check_inputs(loaded, sets, place)
    _note_left_out_settings(loaded, sets, place)


async def _make_ready(cli: Cli, loaded: Loaded, place: Place, *, skip_tools: bool) -> None:
    """Installs packages of tool servers, tries the tools, and chooses the form of logs."""
    from agentrl.cli import output, tool_preflight
    from agentrl.client.run_processes import left_up

    await tool_packages.install(cli, loaded)
    if not skip_tools and not left_up(place.state_dir):
        called = tool_preflight.tried(cli, loaded)
        called.refuse_failures(SKIP_HINT)
        for sentence in called.untried:
            output.note(sentence)
    if loaded.config.logs:
        # A variable of the host agent and the coordinator that this command starts.
        os.environ[log_format.VARIABLE] = loaded.config.logs


async def _bring_up(cli: Cli, loaded: Loaded, sets: tuple[str, ...], place: Place, *, follow: bool) -> ExitCode:
    from agentrl.cli import run_transaction
    from agentrl.cli.up_transaction import NewRun, Up
    from agentrl.config.tool_lock import keep_pins

    config = loaded.config
    elsewhere = Path(config.coordinator.state_dir) if config.coordinator.state_dir else None

    def create() -> NewRun:
        run = NewRun.create(place, loaded.path, sets, elsewhere=elsewhere)
        if loaded.path is not None:
            keep_pins(config, loaded.path, place.run_dir)
        return run

    silent_s = config.supervision.coordinator_silent_s
    wanted = Up(cli, place, _arguments(loaded), create=create, silent_s=silent_s, follow=follow)
    return await run_transaction.carry_out(wanted)


async def _keep_up(cli: Cli, loaded: Loaded, sets: tuple[str, ...], place: Place, *, unless_down: bool) -> ExitCode:
    """Brings the run up without questions, and stays until it has ended here."""
    from agentrl.cli import foreground

    unattended = dataclasses.replace(cli, wait=False, yes=True)
    idle = unless_down and foreground.was_taken_down(place)

    async def bring_up() -> ExitCode:
        return await _bring_up(unattended, loaded, sets, place, follow=False)

    return await foreground.keep_up(place, cli, None if idle else bring_up)


async def _up_to_read(cli: Cli, file: Path | None, sets: list[str] | None, *, follow: bool) -> ExitCode:
    """Start the store of a run that is down, and the steward that reads it, without its run file."""
    from agentrl.cli import output, run_transaction, start_coordinator
    from agentrl.cli.up_transaction import NewRun, Up
    from agentrl.config.supervision_times import SupervisionTimes
    from agentrl.protocol.control_commands import Apply

    if file is not None or sets:
        raise UsageError(
            "--read-only takes the run as it was last, so it takes neither a file nor --set.",
            hint="Name the run: agentrl up --run NAME --read-only.",
        )
    found = _run_to_read(cli)
    cli = dataclasses.replace(cli, run=found.name)
    place = start_coordinator.Place(found.name, found.state_dir, found.run_dir)

    def create() -> NewRun:
        _run_to_read(cli)  # another command may have removed it meanwhile
        return NewRun(place)

    start_coordinator.refuse_if_in_use(place)
    if cli.dry_run and not await start_coordinator.answers(place.name):
        output.say("Would start the store of the run, and the steward that reads it.")
        return ExitCode.OK
    args, silent_s = Apply(config={}, reading=True), SupervisionTimes().coordinator_silent_s
    with cli.hinting():
        return await run_transaction.carry_out(Up(cli, place, args, create=create, silent_s=silent_s, follow=follow))


def _run_to_read(cli: Cli) -> OfflineRun:
    """The run to be read. Raises if it is not on this host or has no store."""
    from agentrl.cli.offline import run_on_this_host

    not_remote = "--read-only brings up a run of this host, not one behind a key."
    found = run_on_this_host(cli, not_remote=not_remote, again="agentrl up --run NAME --read-only")
    if not found.has_store:
        raise ConflictError(
            f"The run {found.name} has no store to read from.",
            hint="A run file with `environments:` that was up once has one.",
        )
    return found


def _check_inputs(loaded: Loaded, sets: tuple[str, ...], place: Place) -> None:
    """Check model, datasets, code and programs before any process is started. Raises ConfigError for everything that a
    unit would refuse.

    A run that was not taken down has already read them, so for it the error is only a note.
    """
    from agentrl.cli import output
    from agentrl.client.run_processes import left_up

    try:
        notes = check_inputs(loaded, sets)
    except ConfigError as wrong:
        if not left_up(place.state_dir):
            raise
        notes = [str(wrong)]
    for sentence in notes:
        output.note(sentence)


def _note_left_out_settings(loaded: Loaded, sets: tuple[str, ...], place: Place) -> None:
    """Name the settings (--set) of this file's last `up` that this `up` does not have."""
    from agentrl.cli import output
    from agentrl.cli.up_transaction import last_up

    before = last_up(place.state_dir)
    if before is None or before[0] != loaded.path:
        return
    given = {one.partition("=")[0] for one in sets}
    if left_out := [f"--set {one}" for one in before[1] if one.partition("=")[0] not in given]:
        again = f"`agentrl up --run {place.name}` takes it again"
        output.note(f"The last `up` of this file had {' '.join(left_out)}, which is left out now; {again}.")


async def _preview_of_a_new_run(cli: Cli, loaded: Loaded, *, skip_tools: bool) -> ExitCode:
    from agentrl.cli import tool_preflight
    from agentrl.cli.execute import report_preview
    from agentrl.config.placement import starts
    from agentrl.protocol.effects import Effect, tier_of
    from agentrl.protocol.specs import unit_name

    sizes = loaded.config.sizes
    called = tool_preflight.Preflight()
    if not skip_tools:
        called = tool_preflight.tried(cli, loaded, installed=False)
        called.refuse_failures(SKIP_HINT)
    effect = Effect(
        starts=tuple(unit_name(group, slot) for group, count in sizes.items() for slot in range(count)),
        notes=(*starts(loaded.config.placement, loaded.config.all_hosts), *called.notes),
    )
    report_preview(cli, effect, tier_of(effect))
    return ExitCode.OK


def _arguments(loaded: Loaded) -> Apply:
    from agentrl.config.serialization import config_to_plain
    from agentrl.protocol.control_commands import Apply
    from agentrl.protocol.wire import raw

    plain = config_to_plain(loaded.config)
    return Apply(
        config={key: raw(value) for key, value in plain.items()},
        source=str(loaded.path or ""),
        given=tuple(loaded.given),
    )
