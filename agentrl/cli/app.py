"""Defines the program `agentrl`: registers all commands, and turns errors into a sentence and an exit code.

Invariants:
- A mistake on the command line never shows a traceback.
- With `--json`, errors are JSON on stdout.
- An import of this file loads neither zmq, msgspec, pydantic nor rich.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from agentrl import __version__, errors
from agentrl.cli import (
    alerts,
    calls,
    completion,
    contract,
    data,
    database,
    diagnosis,
    down,
    evaluate,
    events,
    example,
    forks,
    hosts,
    keys,
    logs,
    mcp,
    options,
    programs,
    records,
    replays,
    review,
    run_file,
    runs,
    status,
    steps,
    tasks,
    tools,
    train,
    trial,
    tui,
    tune,
    units,
    up,
    wait,
)
from agentrl.errors import AgentrlError, ExitCode
from agentrl.formatting.sentences import ended

app = typer.Typer(
    cls=options.Group,
    name="agentrl",
    help="Train language-model agents, and operate the run: start, watch, scale, drain, tune and stop its units.",
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    run: options.Run = None,
    key: options.Key = None,
    json: options.Json = False,
    no_color: options.NoColor = False,
) -> ExitCode:
    options.root_options(context, run, key, json, no_color)
    if context.invoked_subcommand is None:
        if version and json:
            from agentrl.cli import output

            output.emit({"version": __version__})
        else:
            print(f"agentrl {__version__}" if version else context.get_help())
    return ExitCode.OK


# The order in the help: the most used commands first.
for module in (
    *(up, down, status, wait, tui, units, tune, logs, events, alerts),
    *(
        diagnosis,
        tools,
        calls,
        tasks,
        records,
        review,
        replays,
        forks,
        steps,
        train,
        example,
        trial,
        data,
        contract,
        evaluate,
        database,
    ),
    *(runs, programs, mcp, keys, hosts, run_file, completion),
):
    module.register(app)


def run(arguments: Sequence[str]) -> int:
    """Execute one command line and return its exit code."""
    as_json = "--json" in arguments
    _replace_closed_streams()
    try:
        _escape_unprintable_text()
        _check_text(arguments)
        if instruction := os.environ.get(completion.VARIABLE):
            return completion.complete(app, instruction)
        # `app()` would handle closed pipes and Ctrl-C itself.
        with typer.main.get_command(app).make_context("agentrl", list(arguments)) as context:
            code = context.command.invoke(context)
        sys.stdout.flush()
        return int(code) if isinstance(code, int) else ExitCode.OK
    except typer.Exit as exit:
        return exit.exit_code
    except AgentrlError as error:
        return _report(error, as_json)
    except typer.TyperException as error:
        return _report(errors.UsageError(_sentence(error), hint=f"Try `{_path(error)} --help`."), as_json)
    except typer.Abort:
        print(file=sys.stderr)
        return ExitCode.INTERRUPTED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except EOFError:
        return _report(
            errors.UsageError("The input ended before the answer.", hint="Add --yes to skip questions."),
            as_json,
        )
    except OSError as error:
        return _report_system_error(error, as_json)


def _replace_closed_streams() -> None:
    """Redirects streams that the caller closed to /dev/null; otherwise the next opened file would take their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open for as long as the process lives


def _escape_unprintable_text() -> None:
    """Makes a terminal that is not UTF-8 show an escape for each letter that it lacks."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _check_text(arguments: Sequence[str]) -> None:
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise errors.UsageError(f"{argument!a} is not UTF-8 text.") from None
        if "\0" in argument:  # a shell never passes NUL on, but a caller in this process may
            raise errors.UsageError(f"{argument!a} has a null character.")


_IN_WORDS = [
    (re.compile(pattern), words)
    for pattern, words in (
        (r"is not a valid float( range)?", "is not a number"),
        (r"is not a valid int(eger|(?= range))( range)?", "is not a whole number"),
        (r"is not in the range (\S+)<=x<=(\S+?)\.?$", r"is not from \1 to \2"),
        (r"is not in the range x>=(\S+?)(\.0)?\.?$", r"is not \1 or more"),
    )
]
"""Messages of typer about a value, and plainer words for them."""


def _sentence(error: typer.TyperException) -> str:
    message = error.format_message().strip() or "The command line does not make sense"
    for pattern, words in _IN_WORDS:
        message = pattern.sub(words, message)
    return ended(message)


def _path(error: typer.TyperException) -> str:
    """The command whose help explains the error."""
    context = getattr(error, "ctx", None)
    return str(context.command_path) if context is not None else "agentrl"


def _report(error: AgentrlError, as_json: bool) -> int:
    from agentrl.cli import output

    code = error.exit_code
    if as_json:
        import json

        try:
            print(json.dumps(error.document()), flush=True)
            return code
        except OSError:
            # Stdout cannot be written to, which may be the error itself; so stderr is used.
            _redirect_to_null(sys.stdout.fileno())
    for number, line in enumerate(output.sanitise_lines(str(error)).splitlines() or [""]):
        output.note(f"agentrl: {line}" if number == 0 else line)
    return code


def _report_system_error(error: OSError, as_json: bool) -> int:
    if error.errno in (errno.EPIPE, errno.EIO):
        # The reading program ended (`| head`), or the terminal was closed.
        for stream in (sys.stdout, sys.stderr):
            _redirect_to_null(stream.fileno())
        return ExitCode.OK if error.errno == errno.EPIPE else ExitCode.FAILED
    subject = f"{error.filename}: " if error.filename else ""
    kind = errors.DiskError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS) else AgentrlError
    return _report(kind(f"{subject}{error.strerror or error}."), as_json)


def _redirect_to_null(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
