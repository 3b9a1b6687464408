"""Defines the commands about trained steps, checkpoints and versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli import list_pages, records
from agentrl.cli.list_pages import After, Limit, Row
from agentrl.cli.options import Cli, add_command, group
from agentrl.errors import ExitCode

if TYPE_CHECKING:
    from agentrl.protocol.data_commands import Story

CHECKPOINT = typer.Argument(metavar="CHECKPOINT", help="Its id; `agentrl checkpoints list` has them.")


def register(app: typer.Typer) -> None:
    steps = group(app, "steps", "Trained batches: from a metric to the records behind it.")
    add_command(steps, "list", reads=True)(list_steps)
    add_command(steps, "show", reads=True)(show_step)
    checkpoints = group(app, "checkpoints", "What was saved, and what is kept.")
    add_command(checkpoints, "list", reads=True)(list_checkpoints)
    add_command(checkpoints, "show", reads=True)(show_checkpoint)
    add_command(checkpoints, "pin", acts=True)(pin)
    add_command(checkpoints, "unpin", acts=True)(unpin)
    add_command(app, "rollback", acts=True)(rollback)
    versions = group(app, "versions", "Published weights, and which engine serves them.")
    add_command(versions, "list", reads=True)(list_versions)


async def list_steps(
    cli: Cli,
    filter: Annotated[str, list_pages.filtering("steps list")] = "",
    sort: Annotated[str, list_pages.sorting("steps list")] = "",
    after: After = "",
    limit: Limit = 100,
) -> ExitCode:
    """List steps with their metrics.

    `--sort -metrics.loss` finds the step behind a peak.
    """
    query = {"filter": filter, "sort": sort, "after": after, "limit": limit}
    return await list_pages.show_page(cli, "list_steps", query, STEPS, right=STEPS_RIGHT, spare=STEPS_SPARE)


async def show_step(
    cli: Cli, step: Annotated[str, typer.Argument(metavar="STEP", help="Its id; `agentrl steps list` has them.")]
) -> ExitCode:
    """Show a step with its metrics, loss terms and records."""
    return await records.show_with_records(cli, "show_step", step, _show_step)


def _show_step(cli: Cli, story: Story) -> None:
    from agentrl.cli import output
    from agentrl.formatting.amounts import counted
    from agentrl.telemetry import loss_terms

    step = story.document
    reason = f" ({step['reason']})" if step.get("reason") else ""
    output.say(f"{step['id']} is {step['status']}{reason}, from version {step['base_version']}")
    tasks, records = counted(len(step["tasks"]), "tasks"), counted(len(step["records"]), "records")
    output.say(f"  {tasks}, {len(step['filtered'])} without signal, {records}")
    if terms := loss_terms.in_words(step["metrics"]):
        output.say("  terms of the loss, with the share of tokens that each touched:")
        for term in terms:
            output.say(f"    {term}")
    _show_metrics({name: value for name, value in step["metrics"].items() if not loss_terms.is_term(name)})


def _show_metrics(metrics: Mapping[str, object]) -> None:
    from agentrl.cli import output

    for name, value in sorted(metrics.items()):
        output.say(f"  {name}: {value:.6g}" if isinstance(value, int | float) else f"  {name}: {value}")


async def list_checkpoints(
    cli: Cli,
    filter: Annotated[str, list_pages.filtering("checkpoints list")] = "",
    sort: Annotated[str, list_pages.sorting("checkpoints list")] = "",
    after: After = "",
    limit: Limit = 100,
) -> ExitCode:
    """List checkpoints."""
    query = {"filter": filter, "sort": sort, "after": after, "limit": limit}
    return await list_pages.show_page(
        cli, "list_checkpoints", query, CHECKPOINTS, right=("step", "version"), spare=("path",)
    )


async def show_checkpoint(cli: Cli, checkpoint: Annotated[str, CHECKPOINT]) -> ExitCode:
    """Show a checkpoint with its files, step and published version."""
    return await records.show_with_records(cli, "show_checkpoint", checkpoint, _show_checkpoint)


def _show_checkpoint(cli: Cli, story: Story) -> None:
    from agentrl.cli import output

    saved, publication, step = story.document, story.related["publication"], story.related["step"]
    kept = ", pinned" if saved["pinned"] else f", kept: {saved['kept_for']}" if saved.get("kept_for") else ""
    output.say(f"{saved['id']} is {saved['status']}{kept}, in {saved['path']}")
    if saved.get("damage"):
        output.say(f"  damaged: {saved['damage']}")
    for name, file in sorted(saved["files"].items()):
        output.say(f"  {name}: {output.size(file['bytes'])}")
    served = f"is {publication['status']}" if publication else "was not published"
    output.say(f"  version {saved['version']} {served}")
    if step:
        _show_metrics(step.get("metrics") or {})


async def pin(cli: Cli, checkpoint: Annotated[str, CHECKPOINT]) -> ExitCode:
    """Keep a checkpoint against retention."""
    from agentrl.cli.execute import act
    from agentrl.protocol.data_changes import PinCheckpoint

    return await act(cli, "pin_checkpoint", PinCheckpoint(id=checkpoint))


async def unpin(cli: Cli, checkpoint: Annotated[str, CHECKPOINT]) -> ExitCode:
    """Leave a checkpoint to retention again."""
    from agentrl.cli.execute import act
    from agentrl.protocol.data_changes import UnpinCheckpoint

    return await act(cli, "unpin_checkpoint", UnpinCheckpoint(id=checkpoint))


async def rollback(
    cli: Cli,
    to: Annotated[
        str,
        typer.Option("--to", metavar="CHECKPOINT|VERSION|best", help="`best` has the best evaluation."),
    ],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; the audit and the lineage keep it.")],
    keep_knobs: Annotated[
        bool, typer.Option("--keep-knobs", help="Leave scientific knobs as they are; otherwise they go back too.")
    ] = False,
) -> ExitCode:
    """Continue training from an earlier checkpoint.

    The trainer saves, then restarts from that checkpoint in a new lineage and publishes its weights. Later steps are
    undone and their tasks become free. The newest checkpoint stays, so another rollback undoes this one.
    """
    from agentrl.cli.execute import act
    from agentrl.protocol.data_changes import RollBack

    return await act(cli, "rollback", RollBack(to=to, note=reason, keep_knobs=keep_knobs))


async def list_versions(
    cli: Cli,
    filter: Annotated[str, list_pages.filtering("versions list")] = "",
    sort: Annotated[str, list_pages.sorting("versions list")] = "",
    after: After = "",
    limit: Limit = 100,
) -> ExitCode:
    """List published weights, and who serves them now.

    With the deviation of each engine at the canary, and the reasons of engines that refused a version.
    """
    query = {"filter": filter, "sort": sort, "after": after, "limit": limit}
    return await list_pages.show_page(
        cli, "list_versions", query, VERSIONS, right=("version", "parent", "step", "canary")
    )


def _who_serves(row: Row) -> object:
    return ", ".join(f"{engine} ({state})" for engine, state in sorted(row.get("engines", {}).items()))


def _why_kept(row: Row) -> object:
    return f"damaged: {row['damage']}" if row.get("damage") else row.get("kept_for", "")


STEPS: list_pages.Columns = {
    "step": list_pages.field("id"),
    "status": list_pages.field("status"),
    "records": list_pages.field("counts.records"),
    "from": list_pages.field("base_version"),
    "reward": list_pages.field("metrics.reward_mean"),
    "loss": list_pages.field("metrics.loss"),
    "took": list_pages.duration("duration_s"),
    "committed": list_pages.moment("committed_at"),
}
STEPS_RIGHT = ("records", "from", "reward", "loss", "took")
STEPS_SPARE = ("took", "from", "committed")
CHECKPOINTS: list_pages.Columns = {
    "checkpoint": list_pages.field("id"),
    "status": list_pages.field("status"),
    "step": list_pages.field("step"),
    "version": list_pages.field("version"),
    "pinned": list_pages.field("pinned"),
    "kept for": _why_kept,
    "at": list_pages.moment("at"),
    "path": list_pages.field("path"),
}
VERSIONS: list_pages.Columns = {
    "version": list_pages.field("id"),
    "status": list_pages.field("status"),
    "parent": list_pages.field("parent"),
    "step": list_pages.field("step"),
    "announced": list_pages.moment("announced_at"),
    "canary": list_pages.field("canary_largest"),
    "engines": _who_serves,
    "refused because": lambda row: "; ".join(row.get("reasons") or ()),
}
