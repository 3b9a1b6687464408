"""Verbs about what was trained: steps, checkpoints, versions."""

from __future__ import annotations

import typer

from agentrl.cli import lists
from agentrl.cli.lists import After, Filter, Limit, Row, Sort
from agentrl.cli.verbs import Cli, group, verb
from agentrl.errors import ExitCode


def register(app: typer.Typer) -> None:
    steps = group(app, "steps", "Trained batches: from a metric to the records behind it.")
    verb(steps, "list")(list_steps)
    checkpoints = group(app, "checkpoints", "What was saved, and what is kept.")
    verb(checkpoints, "list")(list_checkpoints)
    versions = group(app, "versions", "Published weights, and which engine serves them.")
    verb(versions, "list")(list_versions)


async def list_steps(cli: Cli, filter: Filter = "", sort: Sort = "", after: After = "", limit: Limit = 100) -> ExitCode:
    """List steps with their metrics; `--sort -metrics.loss` finds the one behind a peak."""
    asked = {"filter": filter, "sort": sort, "after": after, "limit": limit}
    return await lists.show_page(
        cli, "list_steps", asked, STEPS, right=("records", "from", "reward", "loss", "took"), spare=("took", "from")
    )


async def list_checkpoints(
    cli: Cli, filter: Filter = "", sort: Sort = "", after: After = "", limit: Limit = 100
) -> ExitCode:
    """List checkpoints."""
    asked = {"filter": filter, "sort": sort, "after": after, "limit": limit}
    return await lists.show_page(cli, "list_checkpoints", asked, CHECKPOINTS, right=("step", "version"))


async def list_versions(
    cli: Cli, filter: Filter = "", sort: Sort = "", after: After = "", limit: Limit = 100
) -> ExitCode:
    """List publications, the lives of engines that took them, and why others refused."""
    asked = {"filter": filter, "sort": sort, "after": after, "limit": limit}
    return await lists.show_page(cli, "list_versions", asked, VERSIONS, right=("version", "parent", "step"))


def _words(row: Row) -> object:
    """What refused it, else who serves it."""
    return "; ".join(row.get("reasons") or ()) or ", ".join(row.get("served_by") or ())


STEPS: lists.Columns = {
    "step": lists.field("id"),
    "status": lists.field("status"),
    "records": lists.field("counts.records"),
    "from": lists.field("base_version"),
    "reward": lists.field("metrics.reward_mean"),
    "loss": lists.field("metrics.loss"),
    "took": lists.duration("duration_s"),
    "committed": lists.moment("committed_at"),
}
CHECKPOINTS: lists.Columns = {
    "checkpoint": lists.field("id"),
    "status": lists.field("status"),
    "step": lists.field("step"),
    "version": lists.field("version"),
    "pinned": lists.field("pinned"),
    "at": lists.moment("at"),
    "path": lists.field("path"),
}
VERSIONS: lists.Columns = {
    "version": lists.field("id"),
    "status": lists.field("status"),
    "parent": lists.field("parent"),
    "step": lists.field("step"),
    "announced": lists.moment("announced_at"),
    "what": _words,
}
