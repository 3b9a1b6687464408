"""Defines the commands that find faults (why, stacks, accounting, staleness), and the command `models` for other
models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli import list_pages
from agentrl.cli.options import Cli, add_command
from agentrl.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agentrl.protocol.data_commands import AccountReport, StalenessReport
    from agentrl.protocol.other_model_commands import OtherModelsReport

BAR = 14
"""The length of the longest bar in characters."""


def register(app: typer.Typer) -> None:
    add_command(app, "why")(why)
    add_command(app, "stacks", acts=True)(stacks)
    add_command(app, "accounting", reads=True)(accounting)
    add_command(app, "staleness", reads=True)(staleness)
    add_command(app, "models", reads=True)(models)


async def why(cli: Cli) -> ExitCode:
    """Show who waits for whom, for how long, and the cause."""
    from agentrl.cli import output
    from agentrl.formatting import wait_chain_text

    async with cli.connect() as client:
        found = await client.why()
    if cli.json:
        output.emit(found)
        return ExitCode.OK
    chains = wait_chain_text.worth_showing(found.chains)
    if not chains:
        output.say(wait_chain_text.NO_WAITS)
    elif wait_chain_text.all_well(chains):
        output.say(wait_chain_text.ALL_WELL)
    for chain in chains:
        output.say(chain.sentence)
        for link in wait_chain_text.of_chain(chain):
            output.say(f"    {link.sentence}{', overdue' if link.overdue else ''}")
        output.say("    {}: {}".format(*wait_chain_text.end_of(chain)))
    return ExitCode.OK


async def stacks(
    cli: Cli,
    units: Annotated[
        list[str] | None,
        typer.Argument(metavar="[UNIT]...", help="Only these units; default: all.", show_default=False),
    ] = None,
) -> ExitCode:
    """Collect the stacks of all units into one file."""
    from agentrl.cli.execute import act
    from agentrl.protocol.control_commands import CollectStacks

    return await act(cli, "stacks", CollectStacks(units=tuple(units or ())))


async def accounting(cli: Cli) -> ExitCode:
    """Count tasks, records, seats and steps: sums that must agree.

    Exit 14 if they do not.
    """
    from agentrl.cli import output

    async with cli.connect() as client:
        report = await client.accounting(deadline_s=list_pages.ANSWER_WITHIN_S)
    if cli.json:
        output.emit(report)
    else:
        _show_account(report)
    return ExitCode.OK if report.balanced else ExitCode.UNBALANCED


def _show_account(report: AccountReport) -> None:
    from agentrl.cli import output
    from agentrl.formatting import account_lines

    for line in account_lines.totals(report):
        output.say(line)
    for problem in report.problems:
        output.note(account_lines.disagreement(problem))
    if report.balanced:
        output.say(account_lines.ALL_AGREE)


async def staleness(cli: Cli) -> ExitCode:
    """Show how old records are, and what another bound would void.

    Counts ready and running records by their age in publications.
    """
    from agentrl.cli import output
    from agentrl.formatting.amounts import counted

    async with cli.connect() as client:
        report = await client.staleness(deadline_s=list_pages.ANSWER_WITHIN_S)
    if cli.json:
        output.emit(report)
        return ExitCode.OK
    where = "nothing is published yet" if report.version is None else f"version {report.version} is the newest"
    at = f"; counted at {output.moment(report.counted_at)}" if report.counted_at else ""
    bound = counted(report.bound, "publications")
    output.say(f"The bound is {bound}; {where}{at}.")
    if report.previews:
        output.show(_ages(report), cli.color)
    for part in report.dropped:
        times = f"{output.duration(part.from_s)} to {output.duration(part.to_s)}"
        was = "was" if part.dropped == 1 else "were"
        output.say(f"of {counted(part.records, 'records')} that took {times}, {part.dropped} {was} dropped as too old")
    return ExitCode.OK


def _ages(report: StalenessReport) -> RenderableType:
    """One line for each age, with a mark at the bound, and the records that this age would void as a bound."""
    from agentrl.cli import output

    most = max([1, *report.ready.values()])
    rows = []
    for preview in report.previews:
        age = preview.bound
        count = report.ready.get(age, 0)
        bar = "█" * round(BAR * count / most)
        mark = "bound" if age == report.bound else "too old" if age > report.bound else ""
        cells = (str(age), str(count), str(report.under_way.get(age, 0)), bar, mark)
        rows.append((*cells, str(preview.voids_ready), str(preview.voids_under_way)))
    lost = ("would lose ready", "and under way")
    names = ("age", "ready", "under way", "", "", *lost)
    return output.table(names, rows, right=("age", "ready", "under way", *lost))


async def models(
    cli: Cli,
    record: Annotated[str, typer.Option("--record", help="Only calls for this record.", metavar="ID")] = "",
    model: Annotated[str, typer.Option("--model", help="Only calls of this model.", metavar="NAME")] = "",
    failed: Annotated[bool, typer.Option("--failed", help="Only calls with an error.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="At most this many calls.")
    ] = 20,
) -> ExitCode:
    """Show what judges and other helpers did and cost.

    Sums by model and purpose, the services with their state and limits, and the newest calls.
    """
    from agentrl.cli import output

    async with cli.connect() as client:
        report = await client.other_models(
            record=record, failed=failed, limit=limit, model=model, deadline_s=list_pages.ANSWER_WITHIN_S
        )
    if cli.json:
        output.emit(report)
    elif not (report.usage or report.calls or report.services):
        output.say("No other model was asked, and the run file names none.")
    else:
        if report.usage:
            output.show(_usage(report), cli.color)
        if report.services and not record:
            output.show(_services(report), cli.color)
        for call in report.calls:
            took = f"{call['tries']} tries, {output.duration(call['latency_s'])}"
            line = f"{output.moment(call['at'])}  {call['model']}: {call['purpose']}, {call['outcome']}, {took}"
            output.say(f"{line}, for {call['record'] or 'no record'}{': ' + call['error'] if call['error'] else ''}")
    return ExitCode.OK


def _usage(report: OtherModelsReport) -> RenderableType:
    from agentrl.cli import output

    numbers = ("calls", "kept", "no answer", "tries", "tokens in", "out", "cost", "mean time")
    rows = [
        (
            each["model"],
            each["purpose"],
            *(str(each[key]) for key in ("calls", "kept", "unanswered", "tries", "tokens_in", "tokens_out")),
            f"{each['cost']:.4g}",
            output.duration(each["latency_s"] or 0.0),
        )
        for each in report.usage
    ]
    return output.table(("model", "purpose", *numbers), rows, right=numbers)


def _services(report: OtherModelsReport) -> RenderableType:
    """Services in the order in which they are asked."""
    from agentrl.cli import output
    from agentrl.formatting import service_text

    now = report.counted_at
    rows = [
        (
            each.model,
            f"{each.place}. {each.service}",
            service_text.state(each, now),
            service_text.limits(each),
            service_text.price(each),
            service_text.trouble(each, now),
        )
        for each in report.services
    ]
    return output.table(("model", "service", "now", "limits", "price", "last failure"), rows)
