"""Executes a command that changes something: preview, consent, acceptance, wait, report.

Invariants:
- Nothing destructive happens without consent, typed or given by `--yes`.
- A script never gets a question.
- An accepted operation continues when the waiting ends, and a note says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

from agentrl.cli import output
from agentrl.cli.options import Cli
from agentrl.cli.progress import Progress
from agentrl.errors import AgentrlError, ExitCode, RefusedError, UnknownNameError
from agentrl.formatting.previews import Need, Preview
from agentrl.formatting.sentences import ended
from agentrl.protocol.effects import Effect, Tier
from agentrl.protocol.rows import HostRow, OperationRow, OperationState, UnitRow, short

if TYPE_CHECKING:
    from agentrl.client import Client
    from agentrl.protocol.control_commands import Accepted
    from agentrl.protocol.message_base import Args

    Send = Callable[[], Awaitable[Accepted]]

_EXIT = {
    OperationState.SUCCEEDED: ExitCode.OK,
    OperationState.SUPERSEDED: ExitCode.CONFLICT,
}
_SHORT_S = 1.0
"""Units are shown only in a wait longer than this."""
_EFFECT_SHOWS_RESULT = ("tune", "undo_tune")
"""Commands whose effect already shows people the result, so the result is only for programs."""


async def act(cli: Cli, name: str, args: Args) -> ExitCode:
    """Execute one command in a new connection."""
    async with cli.connect() as client:
        return await act_with(cli, client, name, args)


async def act_with(cli: Cli, client: Client, name: str, args: Args) -> ExitCode:
    """Preview, ask, send, wait and report how it ended."""
    send = await agreed(cli, client, name, args)
    if send is None:
        return ExitCode.OK
    accepted = await send()
    if not cli.wait:
        report_accepted(cli, accepted)
        return ExitCode.OK
    row = await finished(cli, client, accepted.operation)
    return report(cli, row, accepted.effect)


async def agreed(cli: Cli, client: Client, name: str, args: Args) -> Send | None:
    """Asks for consent. Returns the function that sends the command; None without consent. A dry run ends here."""
    if cli.yes and not cli.dry_run:
        return functools.partial(client.call, name, args)
    preview = await client.preview(name, args)
    if cli.dry_run:
        report_preview(cli, preview.effect, preview.tier)
        return None
    from agentrl.protocol.commands import COMMANDS

    if not consented(cli, preview.effect, preview.tier, COMMANDS[name].reverse):
        output.note("Nothing was done.")
        return None
    confirmed = preview.tier >= Tier.DISRUPTIVE and not cli.json and output.interactive()
    return functools.partial(client.call, name, args, consent=preview if confirmed else preview.to_tier())


def consented(cli: Cli, effect: Effect, tier: Tier, reverse: str = "") -> bool:
    """Whether an effect may happen. Asks a person; refuses a script without `--yes` if the effect is destructive.

    `reverse` is the command that undoes it, if there is one.
    """
    preview = Preview(effect, tier, reverse)
    if cli.yes or preview.need is Need.NOTHING:
        return True
    certainty = preview.need is Need.CERTAINTY
    if cli.json or not output.interactive():
        if certainty:
            raise RefusedError(
                f"The effect would be: {preview.sentence}", hint=f"{preview.warning} Add --yes to do it."
            )
        return True
    question = " ".join(filter(None, (f"The effect: {output.sanitise(preview.sentence)}", preview.warning, "Go on?")))
    return _ask(question, default=not certainty)


def _ask(question: str, *, default: bool) -> bool:
    import typer

    with signals_end_prompts():
        return typer.confirm(question, default=default, err=True)


@contextlib.contextmanager
def signals_end_prompts() -> Iterator[None]:
    """While this lasts, one Ctrl-C or SIGTERM ends a question. The handlers of the event loop would wait for the answer
    first."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


async def finished(cli: Cli, client: Client, operation: str) -> OperationRow:
    """Wait for the end of an operation, with its progress on stderr."""
    try:
        with Progress(cli) as progress:
            async with _showing_units(cli, client, progress):
                return await client.wait(operation, on_change=progress.operation, timeout_s=cli.timeout_s)
    except asyncio.CancelledError:
        output.note(
            cli.aimed(f"No longer waiting. The operation goes on: `agentrl events` has it as {short(operation)}.")
        )
        raise


@contextlib.asynccontextmanager
async def _showing_units(cli: Cli, client: Client, progress: Progress) -> AsyncIterator[None]:
    """Show the status of units during a wait. Without permission for the feed, the wait goes on without it."""

    async def show() -> None:
        await asyncio.sleep(_SHORT_S)
        with contextlib.suppress(AgentrlError):
            async for _, row in client.follow(("unit", "host")):
                if isinstance(row, UnitRow):
                    progress.unit(row)
                elif isinstance(row, HostRow):
                    progress.host(row)

    if cli.json:
        yield
        return
    showing = asyncio.create_task(show(), name="show units")
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.wait([showing])


def report_preview(cli: Cli, effect: Effect, tier: Tier) -> None:
    if cli.json:
        output.emit({"dry_run": True, "effect": effect, "tier": tier})
        return
    output.say(Preview(effect, tier).dry_run)


def report_accepted(cli: Cli, accepted: Accepted) -> None:
    if cli.json:
        output.emit(accepted)
        return
    output.say(f"Accepted as {short(accepted.operation)}: {ended(accepted.effect.sentence())}")


def exit_code(row: OperationRow) -> ExitCode:
    """The exit code of an operation that ended."""
    return _EXIT.get(row.state, ExitCode.FAILED)


def report(cli: Cli, row: OperationRow, effect: Effect) -> ExitCode:
    """Report how an operation ended; returns its exit code."""
    if cli.json:
        output.emit({"operation": row, "effect": effect})
    else:
        say_end(row, row.summary or row.command)
    return exit_code(row)


def say_end(row: OperationRow, what: str) -> None:
    """Print how an operation ended."""
    for line in row.lines:
        output.say(line)
    for name, value in row.result.items() if row.command not in _EFFECT_SHOWS_RESULT else ():
        output.say(f"{name}: {value}")
    took = output.duration(row.ended_at - row.accepted_at)
    if exit_code(row) is ExitCode.OK:
        output.say(f"{what}: done in {took}.")
    else:
        output.note(f"agentrl: {what}: {row.state} after {took}. {row.reason}")


async def with_incarnation(client: Client, target: str) -> tuple[str, int]:
    """A target as it was typed, with its current incarnation; `web-0.7` names one.

    The command is refused if that incarnation is replaced before the command arrives. The coordinator resolves groups
    and unknown names.
    """
    from agentrl.protocol.specs import split_incarnation

    if "." in target:
        try:
            return split_incarnation(target)
        except ValueError as wrong:
            raise UnknownNameError(f"{wrong}.") from wrong
    row = (await unit_rows(client)).get(target)
    return target, row.incarnation if row else 0


async def unit_rows(client: Client) -> dict[str, UnitRow]:
    """All units by name."""
    return {row.unit: row for row in (await client.status()).units}
