"""The verb status: the run at this moment, or repainted as it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.verbs import Cli, verb
from agentrl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agentrl.cli.view import View

_HEALTHY = ("running", "completed")
_REPAINT_EVERY_S = 0.25


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
    if watch:
        return await _watch(cli)
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

    console = output.console(cli.color)
    console.print(screen(view, console.width))


async def _watch(cli: Cli) -> ExitCode:
    from agentrl.cli import output
    from agentrl.cli.view import View
    from agentrl.client import CAUGHT_UP, RESET

    async with cli.connect() as client:
        if cli.json:
            async for key, row in client.follow():
                output.emit_line({"key": key, "row": row})
            return ExitCode.OK
        view = shown = View()
        with _Painter(cli) as painter:
            async for key, row in client.follow():
                if key == RESET:
                    view = View()
                view.put(key, row)
                # A picture that is whole stays until the next one is.
                if key == CAUGHT_UP:
                    shown = view
                painter.changed(shown)
    return ExitCode.OK


class _Painter:
    """Repaints at most a few times a second, however fast rows come; ages go on between rows."""

    def __init__(self, cli: Cli) -> None:
        from rich.live import Live

        from agentrl.cli import output

        self._view: View | None = None
        self._console = output.console(cli.color)
        self._live = Live(
            console=self._console,
            screen=self._console.is_terminal,
            refresh_per_second=1 / _REPAINT_EVERY_S,
            get_renderable=self._render,
        )

    def __enter__(self) -> _Painter:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def changed(self, view: View) -> None:
        self._view = view

    def _render(self) -> RenderableType:
        from agentrl.cli.screen import screen

        return screen(self._view, self._console.width) if self._view is not None else ""
