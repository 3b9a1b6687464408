"""Defines the options of all commands, and turns functions into commands.

Invariants:
- The shared options mean the same before and after the command.
- A command is a plain or async function with the `Cli` as first argument; it returns the exit code.
- The module imports nothing heavy, so that `--help` stays fast.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
import shlex
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from agentrl.errors import AgentrlError, ExitCode, NoCoordinatorError

if TYPE_CHECKING:
    from agentrl.client import Client

Function = TypeVar("Function", bound=Callable[..., "ExitCode | Awaitable[ExitCode]"])

Run = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="NAME",
        help="The run; default: $AGENTRL_RUN_NAME, else the only run that is up.",
        show_default=False,
    ),
]
Key = Annotated[
    Path | None,
    typer.Option("--key", metavar="FILE", help="Key file of a remote run; default: $AGENTRL_KEY.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Data on stdout: one JSON document, or JSON lines when following.")]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colours, as with $NO_COLOR.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, whatever the effect is.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return as soon as the command is accepted.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the effect, and do nothing.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.0,
        help="Wait no longer; an accepted operation goes on.",
        show_default=False,
    ),
]

_SHARED: dict[str, tuple[Any, Any]] = {
    "shared_run": (Run, None),
    "shared_key": (Key, None),
    "shared_json": (Json, False),
    "shared_no_color": (NoColor, False),
}
_ACTING: dict[str, tuple[Any, Any]] = {
    "shared_yes": (Yes, False),
    "shared_no_wait": (NoWait, False),
    "shared_dry_run": (DryRun, False),
    "shared_timeout": (Timeout, None),
}


RUN_VARIABLE = "AGENTRL_RUN_NAME"


@dataclasses.dataclass(frozen=True, slots=True)
class Cli:
    """The values of the shared options."""

    run: str | None = None
    key: Path | None = None
    json: bool = False
    color: bool = True
    yes: bool = False
    wait: bool = True
    dry_run: bool = False
    timeout_s: float | None = None

    @property
    def named(self) -> str | None:
        """The run named on the command line or in the environment."""
        return self.run or os.environ.get(RUN_VARIABLE)

    @property
    def remote(self) -> bool:
        """Whether the coordinator is found by a key file, not by a state directory."""
        return self.key is not None or (not self.named and bool(os.environ.get("AGENTRL_KEY")))

    def connect(self, timeout_s: float = 5.0) -> AbstractAsyncContextManager[Client]:
        """A connection to the coordinator of the run."""
        from agentrl.client import Client

        if self.remote:
            return Client.connect(key_file=self.key, timeout_s=timeout_s)
        return Client.connect(self.named, timeout_s=timeout_s)

    def aimed(self, text: str) -> str:
        """The text with `--run` or `--key` of this command line added to the commands in it."""
        if self.key is None and not self.run:
            return text
        from agentrl.cli.suggested_commands import aimed

        return aimed(text, f"--key {shlex.quote(str(self.key))}" if self.key is not None else f"--run {self.run}")

    @contextmanager
    def hinting(self, *, reads: bool = False) -> Iterator[None]:
        """Add the run to the commands in the hint of an error; `reads`: the command reads the store."""
        try:
            yield
        except AgentrlError as error:
            if reads and isinstance(error, NoCoordinatorError) and not self.remote:
                from agentrl.cli.suggested_commands import how_to_read

                error.hint = how_to_read(self.named) or error.hint
            error.hint = self.aimed(error.hint)
            raise


def root_options(
    context: typer.Context,
    shared_run: Run = None,
    shared_key: Key = None,
    shared_json: Json = False,
    shared_no_color: NoColor = False,
) -> Cli:
    """Keep the options before the command."""
    cli = Cli(
        run=shared_run,
        key=shared_key,
        json=shared_json,
        color=not shared_no_color and not os.environ.get("NO_COLOR"),
    )
    context.obj = cli
    return cli


class Command(TyperCommand):
    """A command whose help gives ranges in words, and leaves out an upper bound that does not exist."""

    def get_help(self, ctx: Any) -> str:
        text = super().get_help(ctx)
        for pattern, words in _RANGES:
            text = pattern.sub(words, text)
        return text

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        return _without_help(super().shell_complete(ctx, incomplete))


class Group(TyperGroup):
    """A command with subcommands; `default` is the subcommand that runs if none is named."""

    default = ""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not self.default:
            args = ["--help"]
        # The value of an option of the default command is not a subcommand.
        first = args[0] if args else ""
        named = not first.startswith("-") or any(arg in self.commands or arg in ("-h", "--help") for arg in args)
        named = named and bool(args)
        return super().parse_args(ctx, args if named or not self.default else [self.default, *args])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        return _without_help(super().shell_complete(ctx, incomplete))


def _without_help(found: list[Any]) -> list[Any]:
    """Drop help texts: to render them typer imports rich, which takes longer than the rest of a completion."""
    for item in found:
        item.help = None
    return found


_RANGES = [
    (re.compile(r";\s+x>=[\d.]+(?=\])|\s+\[x>=[\d.]+\]"), ""),
    (re.compile(r"(\d+)<=x<=(\d+)"), r"\1 to \2"),
]


def add_command(
    app: typer.Typer, name: str, *, acts: bool = False, reads: bool = False, numbers: bool = False, **settings: Any
) -> Callable[[Function], Function]:
    """Register a function as a command.

    `acts` adds the options of commands that change something. `reads`: the command reads the store, which is down when
    its run is down. `numbers` lets an argument begin with a minus.
    """
    options = {**_SHARED, **_ACTING} if acts else _SHARED
    context_settings = settings.pop("context_settings", {})
    if numbers:
        context_settings = {**context_settings, "ignore_unknown_options": True}

    def register(function: Function) -> Function:
        signature = inspect.signature(function, eval_str=True)
        _cli, *own = signature.parameters.values()

        @functools.wraps(function)
        def run(context: typer.Context, **values: Any) -> ExitCode:
            given = {option: values.pop(option, None) for option in (*_SHARED, *_ACTING)}
            cli = _merged(context.obj, given)
            with cli.hinting(reads=reads):
                outcome = function(cli, **values)
                return _finish(outcome) if inspect.isawaitable(outcome) else outcome

        parameters = [
            inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
            *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own),
            *(
                inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
                for option, (annotation, default) in options.items()
            ),
        ]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del run.__wrapped__  # typer must see the signature above, not the function's own
        app.command(name, cls=Command, context_settings=context_settings, **settings)(run)
        return function

    return register


def _merged(before: Cli | None, given: dict[str, Any]) -> Cli:
    base = before or Cli()
    return dataclasses.replace(
        base,
        run=given["shared_run"] or base.run,
        key=given["shared_key"] or base.key,
        json=bool(given["shared_json"]) or base.json,
        color=base.color and not given["shared_no_color"],
        yes=bool(given["shared_yes"]),
        wait=not given["shared_no_wait"],
        dry_run=bool(given["shared_dry_run"]),
        timeout_s=given["shared_timeout"],
    )


def _finish(outcome: Awaitable[ExitCode]) -> ExitCode:
    import asyncio

    async def whole() -> ExitCode:
        return await outcome

    return asyncio.run(whole())


def group(app: typer.Typer, name: str, help: str, *, default: str = "") -> typer.Typer:
    """Register a command with subcommands, such as `alerts list`."""
    kind = type("Group", (Group,), {"default": default}) if default else Group
    sub = typer.Typer(cls=kind, help=help, rich_markup_mode=None, add_completion=False, no_args_is_help=False)
    app.add_typer(sub, name=name)
    return sub
