"""The verb up: make the run equal to its file.

Invariants: it may be repeated, and two at once are harmless; ending it, by Ctrl-C or by closing the terminal, ends the
waiting and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from agentrl.cli.options import Cli, verb
from agentrl.cli.run_file import RunFile, Sets, check_datasets, load, nothing_to_bring_up
from agentrl.cli.status import follow_changes
from agentrl.errors import (
    AgentrlError,
    ConfigError,
    ConflictError,
    ExitCode,
    NoCoordinatorError,
    TakenDownError,
    UsageError,
    WaitTimeoutError,
)
from agentrl.formatting.sentences import ended

if TYPE_CHECKING:
    from agentrl.cli.start_coordinator import Place
    from agentrl.cli.up_transaction import Beginning
    from agentrl.client import Client
    from agentrl.client.offline_run import Remains
    from agentrl.config.load import Loaded
    from agentrl.protocol.commands import Accepted, Apply
    from agentrl.protocol.effects import Effect
    from agentrl.protocol.rows import OperationRow, UnitRow

_BRINGS_IT_UP = "`agentrl up` brings it up again."
_NOT_UP_SHOWN = 10
"""Units that are not up when `up` ends, one line each; a whole run that dies is told in no more."""


def register(app: typer.Typer) -> None:
    verb(app, "up", acts=True)(up)


async def up(
    cli: Cli,
    file: RunFile = None,
    sets: Sets = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Then show what changes, until Ctrl-C.")] = False,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Bring up only what its records are read from, as the run was last.")
    ] = False,
) -> ExitCode:
    """Start the run, or make it equal to its file."""
    from agentrl.cli import start_coordinator
    from agentrl.cli.up_transaction import Beginning
    from agentrl.client.run_processes import left_up
    from agentrl.config import paths

    if read_only:
        return await _to_be_read(cli, file, sets, follow=follow)
    loaded, chosen_sets = load(cli, file, sets)
    config = loaded.config
    run_dir = Path(config.dir)
    place = start_coordinator.Place(config.name, paths.state_dir(config.name), run_dir)
    if cli.remote:
        with _Terminal() as terminal:
            return await _apply(cli, Beginning(place), _arguments(loaded), follow=follow, terminal=terminal)
    if start_coordinator.others_are_up(config.name):
        cli = dataclasses.replace(cli, run=config.name)
    start_coordinator.refuse_if_in_use(place)
    if not config.groups and not left_up(place.state_dir):
        # Where it is up, what it was is stopped.
        raise ConfigError(f"{loaded.path}: {nothing_to_bring_up(loaded)}")
    _tell_of_datasets(loaded, chosen_sets, place)
    _tell_of_left_out(loaded, chosen_sets, place)
    if cli.dry_run and not (paths.read_run(place.state_dir) and await start_coordinator.answers(place.name)):
        return _everything_is_started(cli, loaded)
    elsewhere = Path(config.coordinator.state_dir) if config.coordinator.state_dir else None
    silent_s = config.supervision.coordinator_silent_s

    def make() -> Beginning:
        return Beginning.make(place, loaded.path, chosen_sets, elsewhere=elsewhere)

    with _Terminal() as terminal, cli.hinting():
        async with _begun(cli, place, make, silent_s) as begun:
            return await _apply(cli, begun, _arguments(loaded), follow=follow, terminal=terminal)


async def _to_be_read(cli: Cli, file: Path | None, sets: list[str] | None, *, follow: bool) -> ExitCode:
    """The store of a run that is down, and who answers questions about it. No run file is needed, or looked at."""
    from agentrl.cli import output, start_coordinator
    from agentrl.cli.up_transaction import Beginning
    from agentrl.config.supervision_times import SupervisionTimes
    from agentrl.protocol.commands import Apply

    if file is not None or sets:
        raise UsageError(
            "--read-only takes the run as it was last, so it wants neither a file nor --set.",
            hint="Name the run: agentrl up --run NAME --read-only.",
        )
    found = _run_to_read(cli)
    cli = dataclasses.replace(cli, run=found.name)
    place = start_coordinator.Place(found.name, found.state_dir, found.run_dir)

    def make() -> Beginning:
        _run_to_read(cli)  # it may have been forgotten by now
        return Beginning(place)

    start_coordinator.refuse_if_in_use(place)
    if cli.dry_run and not await start_coordinator.answers(place.name):
        output.say("Would bring up the store of the run, and who answers questions about it.")
        return ExitCode.OK
    with _Terminal() as terminal, cli.hinting():
        async with _begun(cli, place, make, SupervisionTimes().coordinator_silent_s) as begun:
            return await _apply(cli, begun, Apply(config={}, reading=True), follow=follow, terminal=terminal)


def _run_to_read(cli: Cli) -> Remains:
    """Raises for one that is not here, or that has nothing to be read from."""
    from agentrl.client.discovery import state_of
    from agentrl.client.offline_run import Remains

    if cli.remote:
        raise UsageError("--read-only brings up a run of this host, not one behind a key.")
    found = Remains.find(cli.named)
    if found is None:
        if cli.named:
            state_of(cli.named)
        raise UsageError("It is not said which run is meant.", hint="Name it: agentrl up --run NAME --read-only.")
    if not found.has_store:
        raise ConflictError(
            f"The run {found.name} has no store that could be read from.",
            hint="A run file with `environments:` that was up once has one.",
        )
    return found


@contextlib.asynccontextmanager
async def _begun(cli: Cli, place: Place, make: Callable[[], Beginning], silent_s: float) -> AsyncIterator[Beginning]:
    """The run, with a coordinator that answers; nobody else begins it meanwhile."""
    from agentrl.cli import start_coordinator
    from agentrl.cli.progress import Progress
    from agentrl.cli.up_transaction import Beginning, what_lives
    from agentrl.client.run_processes import keepers_of

    patience_s = start_coordinator.START_WITHIN_S + silent_s if cli.timeout_s is None else cli.timeout_s
    with Progress(cli) as progress:
        begun = await Beginning.in_turn(place, make, progress, patience_s)
    try:
        started = not keepers_of(place.state_dir)  # nobody of the run lived here before
        with _if_it_fails(lambda: what_lives(place)), Progress(cli) as progress:
            await start_coordinator.ensure_coordinator(place, progress, silent_s, cli.timeout_s)
        if not started:
            begun.let_go()
        yield dataclasses.replace(begun, started=started)
    finally:
        begun.let_go()


def _tell_of_datasets(loaded: Loaded, sets: tuple[str, ...], place: Place) -> None:
    """Before anything is started; raises ConfigError for one that the steward would refuse.

    A run that was not taken down has read them already, and whoever brings it up again is not refused for them.
    """
    from agentrl.cli import output
    from agentrl.client.run_processes import left_up

    try:
        told = check_datasets(loaded, sets)
    except ConfigError as wrong:
        if not left_up(place.state_dir):
            raise
        told = [str(wrong)]
    for sentence in told:
        output.note(sentence)


def _tell_of_left_out(loaded: Loaded, sets: tuple[str, ...], place: Place) -> None:
    """Settings of the last `up` of this file that were given by hand, and are not given now."""
    from agentrl.cli import output
    from agentrl.cli.up_transaction import remembered

    before = remembered(place.state_dir)
    if before is None or before[0] != loaded.path:
        return
    given = {one.partition("=")[0] for one in sets}
    if left_out := [f"--set {one}" for one in before[1] if one.partition("=")[0] not in given]:
        again = f"`agentrl up --run {place.name}` takes it again"
        output.note(f"The last `up` of this file had {' '.join(left_out)}, which is left out now; {again}.")


class _Terminal:
    """Until the command is accepted, a terminal that is closed must not end it half-way.

    A handler, not SIG_IGN: what we start would inherit that. What is said afterwards goes nowhere, since to write to
    a terminal that is gone is an error.
    """

    def __init__(self) -> None:
        self.closed = False
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGHUP, self._close)
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()

    def let_go(self) -> None:
        """The command is accepted: from now on there is only waiting to be ended."""
        signal.signal(signal.SIGHUP, self._before)

    def _close(self, *_: object) -> None:
        self.closed = True
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nowhere, descriptor)
        os.close(nowhere)


@contextlib.contextmanager
def _if_it_fails(sentence: Callable[[], str]) -> Iterator[None]:
    """However this ends before its end, by an error or by Ctrl-C, say how things stand."""
    try:
        yield
    except TakenDownError:
        raise
    except BaseException:
        from agentrl.cli import output

        output.note(sentence())
        raise


@contextlib.contextmanager
def _if_it_is_taken_down(cli: Cli, place: Place) -> Iterator[None]:
    """A coordinator that left with its run may have left before it could say so: what it left behind tells."""
    from agentrl.client.run_processes import left_up

    try:
        yield
    except (NoCoordinatorError, WaitTimeoutError):
        if cli.remote or left_up(place.state_dir):
            raise
        raise TakenDownError(f"The run {place.name} was taken down meanwhile.", hint=_BRINGS_IT_UP) from None


def _everything_is_started(cli: Cli, loaded: Loaded) -> ExitCode:
    from agentrl.cli.execute import report_preview
    from agentrl.protocol.effects import Effect, tier_of
    from agentrl.protocol.specs import unit_name

    sizes = loaded.config.sizes
    effect = Effect(starts=tuple(unit_name(group, slot) for group, count in sizes.items() for slot in range(count)))
    report_preview(cli, effect, tier_of(effect))
    return ExitCode.OK


async def _apply(cli: Cli, begun: Beginning, args: Apply, *, follow: bool, terminal: _Terminal) -> ExitCode:
    """Send it, wait for what it wants, and say what became of it."""
    from agentrl.cli.execute import finished, report_accepted
    from agentrl.client import Client

    name = begun.place.name
    connection = cli.connect() if cli.remote else Client.connect(run=name, timeout_s=5.0)
    async with connection as client:
        accepted = await _accepted(cli, client, begun, args)
        begun.let_go()
        if accepted is None:
            return ExitCode.OK
        terminal.let_go()
        if terminal.closed:
            return ExitCode.OK
        goes_on = cli.aimed(f"The run {name} goes on. `agentrl status` shows it, `agentrl down` ends it.")
        with _if_it_fails(lambda: goes_on), _if_it_is_taken_down(cli, begun.place):
            if cli.wait:
                row = await finished(cli, client, accepted.operation)
                if row.superseded_by == "down":
                    raise TakenDownError(ended(f"The run {name} is not up: {row.reason}"), hint=_BRINGS_IT_UP)
                code = await _report(cli, client, name, row, accepted.effect, line=follow)
            else:
                report_accepted(cli, accepted)
                code = ExitCode.OK
            if follow and code in (ExitCode.OK, ExitCode.UNHEALTHY):
                await follow_changes(cli, client, until_the_run_ends=True)
    return code


async def _accepted(cli: Cli, client: Client, begun: Beginning, args: Apply) -> Accepted | None:
    """None if it was not wanted after all. What ends before it is accepted leaves everything as it was, and says so."""
    from agentrl.cli import output
    from agentrl.cli.execute import agreed

    sent = False
    try:
        accepted: Accepted | None = None
        if send := await agreed(cli, client, "apply", args):
            sent = True
            accepted = await send()
    except BaseException as failed:
        if not sent or _is_refusal(failed):
            output.note(await _taken_back(begun))
        else:
            # What was sent and not answered may still be done.
            begun.accepted()
            output.note(cli.aimed("It was sent, and may still be done: `agentrl status` shows it."))
        raise
    if accepted is not None:
        begun.accepted()
    elif begun.started:
        output.note(await _taken_back(begun))
    return accepted


async def _taken_back(begun: Beginning) -> str:
    """The second Ctrl-C ends this as well, and leaves what is there."""
    from agentrl.cli.up_transaction import what_lives

    with _if_it_fails(lambda: what_lives(begun.place)):
        return await begun.taken_back()


def _is_refusal(failed: BaseException) -> bool:
    return isinstance(failed, AgentrlError) and not isinstance(failed, NoCoordinatorError | WaitTimeoutError)


def _arguments(loaded: Loaded) -> Apply:
    from agentrl.config.serialization import config_to_plain
    from agentrl.protocol.commands import Apply
    from agentrl.protocol.wire import raw

    plain = config_to_plain(loaded.config)
    return Apply(
        config={key: raw(value) for key, value in plain.items()},
        source=str(loaded.path or ""),
        given=tuple(loaded.given),
    )


async def _report(cli: Cli, client: Client, run: str, row: OperationRow, effect: Effect, *, line: bool) -> ExitCode:
    """Units kept, started, replaced, stopped; settings changed; and who is up and who is not at this moment."""
    from agentrl.cli import output
    from agentrl.cli.execute import exit_code, tell, unit_rows
    from agentrl.protocol.rows import UnitState

    wanted = {name: unit for name, unit in (await unit_rows(client)).items() if unit.desired}
    # Whoever came up may have died since: what is told is how things stand now. A suspect has not.
    up = (UnitState.READY, UnitState.SUSPECT)
    not_up = {name: unit for name, unit in wanted.items() if unit.state not in up and not unit.done}
    by_role = Counter(unit.role for unit in wanted.values() if unit.state in up)
    code = exit_code(row)
    if code is ExitCode.OK and not_up:
        code = ExitCode.UNHEALTHY
    summary: dict[str, Any] = {
        "kept": sorted(wanted.keys() - {*effect.starts, *effect.stops}),
        "started": [name for name in effect.starts if name not in effect.restarts],
        "replaced": sorted(effect.restarts),
        "stopped": sorted(effect.stops),
        "changed": list(effect.changes),
    }
    if cli.json:
        states = {name: {"state": unit.state, "reason": unit.reason} for name, unit in sorted(not_up.items())}
        document = {"operation": row, "effect": effect, **summary, "up": by_role, "not_up": states}
        (output.emit_line if line else output.emit)(document)
        return code
    tell(row, "up")
    for word, names in summary.items():
        if names:
            output.say(f"{word} {len(names)}: {'; '.join(names) if word == 'changed' else ', '.join(names)}")
    for note in effect.notes:
        output.say(note)
    if by_role:
        output.say(f"up now: {', '.join(f'{role} {count}' for role, count in sorted(by_role.items()))}")
    _tell_who_is_not_up(cli, run, list(not_up.values()))
    return code


def _tell_who_is_not_up(cli: Cli, run: str, units: list[UnitRow]) -> None:
    from agentrl.cli import output

    for unit in units[:_NOT_UP_SHOWN]:
        output.note(f"agentrl: {unit.unit} is not up now: {unit.state}{f', {unit.reason}' if unit.reason else ''}")
    if len(units) > _NOT_UP_SHOWN:
        output.note(f"agentrl: and {len(units) - _NOT_UP_SHOWN} more are not up now")
    with_log = next((unit.unit for unit in units if not unit.could_not_start), "")
    if with_log:
        output.note(cli.aimed(f"`agentrl logs {with_log}` shows what it said, `agentrl status` how it goes on."))
    elif units:
        checks = f"`agentrl config check --run {run}`" if not cli.remote else "`agentrl config check RUN.yaml`"
        output.note(cli.aimed(f"{checks} looks for its program, `agentrl status` shows how it goes on."))
