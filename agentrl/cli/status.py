"""The verb status: the run at this moment, or repainted as it changes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Self

import typer

from agentrl.cli.options import Cli, verb
from agentrl.errors import ExitCode, NoCoordinatorError, UsageError

if TYPE_CHECKING:
    import asyncio

    from rich.console import Console, RenderableType

    from agentrl.cli.view import View
    from agentrl.client import Client

_HEALTHY = ("running", "completed")
_REPAINT_EVERY_S = 0.25
_LIST_EVERY_S = 1.0


def register(app: typer.Typer) -> None:
    verb(app, "status")(status)


async def status(
    cli: Cli,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repaint as things change, until Ctrl-C.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit 12 unless the run is healthy.")] = False,
) -> ExitCode:
    """Show the run: its state, alerts, groups, units and hosts."""
    if watch and check:
        raise UsageError("--check looks once, --watch goes on.", hint="Give one of them.")
    try:
        return await (_watch(cli) if watch else _once(cli, check=check))
    except NoCoordinatorError as nobody:
        from agentrl.cli import offline

        raise await offline.standing(cli, nobody) from nobody


async def _once(cli: Cli, *, check: bool) -> ExitCode:
    from agentrl.cli import output

    async with cli.connect() as client:
        report = await client.status()
    if cli.json:
        output.emit(report)
    if not cli.json or check:
        from agentrl.cli.view import View

        view = View.of_report(report)
        if not cli.json:
            _paint(cli, view)
        if check:
            return ExitCode.OK if healthy(view) else ExitCode.UNHEALTHY
    return ExitCode.OK


def healthy(view: View) -> bool:
    """Whether the run is as it should be: nothing degraded, and no alert that wants somebody now."""
    run = view.run
    return run is not None and run.state in _HEALTHY and not any(alert.severity == "page" for alert in view.firing)


def _paint(cli: Cli, view: View) -> None:
    from agentrl.cli import output
    from agentrl.cli.screen import screen

    output.show(screen(view, output.console(cli.color).width, cli.aimed), cli.color)


async def _watch(cli: Cli) -> ExitCode:
    from agentrl.cli import output

    async with cli.connect() as client:
        if cli.json:
            async for key, row in client.follow():
                output.emit_line({"key": key, "row": row})
            return ExitCode.OK
        console = output.console(cli.color)
        alive = console.is_terminal and not console.is_dumb_terminal
        with _Repainted(cli, console) if alive else _Listed(cli) as painter:
            async for view in _pictures(client):
                painter.changed(view)
    return ExitCode.OK


async def _pictures(client: Client) -> AsyncIterator[View]:
    """The view after each change. A picture that is whole stays until the next one is."""
    from agentrl.cli.view import View
    from agentrl.client import CAUGHT_UP, RESET

    view, whole = View(), False
    async for key, row in client.follow():
        if key == RESET:
            view, whole = View(), False
        view.put(key, row)
        whole = whole or key == CAUGHT_UP
        if whole:
            yield view


class _Repainted:
    """Repaints at most a few times a second, however fast rows come; ages go on between rows."""

    def __init__(self, cli: Cli, console: Console) -> None:
        from rich.live import Live

        self._cli = cli
        self._view: View | None = None
        self._console = console
        self._live = Live(
            console=console, screen=True, refresh_per_second=1 / _REPAINT_EVERY_S, get_renderable=self._render
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def changed(self, view: View) -> None:
        self._view = view

    def _render(self) -> RenderableType:
        from agentrl.cli.screen import fitted, screen

        if self._view is None:
            return ""
        return fitted(self._console, screen(self._view, self._console.width, self._cli.aimed))


class _Listed:
    """One picture after the other, at most one a second: for a pipe, a file, a terminal that cannot go back."""

    def __init__(self, cli: Cli) -> None:
        self._cli = cli
        self._view: View | None = None
        self._painted_at = float("-inf")
        self._next: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._next is not None:
            self._next.cancel()

    def changed(self, view: View) -> None:
        import asyncio

        self._view = view
        if self._next is None:
            loop = asyncio.get_running_loop()
            self._next = loop.call_at(max(loop.time(), self._painted_at + _LIST_EVERY_S), self._paint)

    def _paint(self) -> None:
        import asyncio
        import time

        from agentrl.cli import output

        assert self._view is not None
        self._next, self._painted_at = None, asyncio.get_running_loop().time()
        output.say(f"---- {output.moment(time.time())}")
        _paint(self._cli, self._view)
        sys.stdout.flush()
