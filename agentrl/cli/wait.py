"""Defines the command `wait`, which ends when the run is finished or a condition holds."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl.cli.options import Cli, add_command
from agentrl.errors import ExitCode, NoCoordinatorError, TakenDownError, WaitTimeoutError

if TYPE_CHECKING:
    from agentrl.client import Client
    from agentrl.filters.expressions import Expression
    from agentrl.protocol.rows import AnyRow, RunRow

FINISHED = "state = finished"
NUMBERS = {
    "step": "step",
    "reward": "reward_mean",
    "evaluation": "evaluation",
    "evaluation_margin": "evaluation_margin",
    "evaluation_best": "evaluation_best",
}
"""The numbers that a condition may use, by the names of metrics of the trainer."""


def register(app: typer.Typer) -> None:
    add_command(app, "wait")(wait)


async def wait(
    cli: Cli,
    until: Annotated[
        str,
        typer.Option("--until", metavar="QUERY", help="Over state, step, reward, evaluation, alert (names of rules)."),
    ] = FINISHED,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", min=0.0, help="Exit 7 after it.", show_default=False)
    ] = None,
) -> ExitCode:
    """Wait until the run is finished, or until a condition holds.

    Exits 12 if the trainer is fatal, 15 if the run is taken down, and 1 if it is finished and the condition does not
    hold.
    """
    import asyncio

    from agentrl.cli import output
    from agentrl.filters.fields import fields
    from agentrl.filters.parser import parse

    known = fields(text="state reason", number=" ".join(NUMBERS), texts="alert")
    expression = parse(until, known)
    try:
        async with cli.connect() as client, asyncio.timeout(timeout):
            facts, code = await _first(client, expression)
    except TimeoutError:
        raise WaitTimeoutError(f"`{until}` does not hold after {timeout:g} s; the run goes on.") from None
    except NoCoordinatorError as error:
        from agentrl.cli import offline

        raise await offline.explain_no_coordinator(cli, error) from error
    if cli.json:
        output.emit(facts)
    else:
        numbers = " · ".join(f"{name} {facts[name]:.6g}" for name in NUMBERS if name in facts)
        reason = f": {facts['reason']}" if facts["reason"] else ""
        output.say(f"the run is {facts['state']}{reason}")
        if numbers:
            output.say(numbers)
    return code


async def _first(client: Client, expression: Expression) -> tuple[dict[str, Any], ExitCode]:
    """The facts at the end of the wait. Raises if the condition can never hold."""
    from agentrl.client.client import CAUGHT_UP, RESET, SILENT
    from agentrl.filters.evaluate import matches
    from agentrl.protocol.rows import RunRow

    rows: dict[str, AnyRow] = {}
    whole = False
    async with aclosing(client.follow(("run", "unit", "alert"))) as changes:
        async for key, row in changes:
            if key == RESET:
                rows, whole = {}, False
            elif key == CAUGHT_UP:
                whole = True
            elif key == SILENT:
                continue
            elif row is None:
                rows.pop(key, None)
            else:
                rows[key] = row
            run = rows.get("run")
            if not whole or not isinstance(run, RunRow):
                continue
            facts = facts_of(run, rows)
            if matches(expression, facts, datetime.now(UTC)):
                return facts, ExitCode.OK
            if (code := _end(run, rows)) is not None:
                return facts, code
    raise AssertionError("the feed has no end")


def facts_of(run: RunRow, rows: dict[str, AnyRow]) -> dict[str, Any]:
    """The facts that conditions test."""
    from agentrl.protocol.rows import AlertRow, AlertState, UnitRow

    facts: dict[str, Any] = {"state": run.state, "reason": run.reason}
    for row in rows.values():
        if isinstance(row, UnitRow) and row.role == "trainer":
            facts |= {name: row.metrics[metric] for name, metric in NUMBERS.items() if metric in row.metrics}
    active = (AlertState.FIRING, AlertState.ACKNOWLEDGED)
    facts["alert"] = [row.rule for row in rows.values() if isinstance(row, AlertRow) and row.state in active]
    return facts


def _end(run: RunRow, rows: dict[str, AnyRow]) -> ExitCode | None:
    """The exit code if the condition can no longer hold. Raises if the run was taken down."""
    from agentrl.protocol.rows import FINISHED as RUN_FINISHED
    from agentrl.protocol.rows import UnitRow, UnitState

    if run.desired == "down" or run.state == "stopped":
        raise TakenDownError(f"The run {run.name} was taken down.", hint="`agentrl up` brings it up again.")
    for row in rows.values():
        if isinstance(row, UnitRow) and row.role == "trainer" and row.state is UnitState.FATAL:
            return ExitCode.UNHEALTHY
    return ExitCode.FAILED if run.state == RUN_FINISHED else None
