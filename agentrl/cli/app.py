"""The program `agentrl`: all verbs, and the one place where errors become a sentence and an exit code.

Invariants: a person's mistake never shows a traceback; `--json` gives errors as JSON on stdout as well; importing this
file loads neither zmq, msgspec, pydantic nor rich.
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
    completion,
    diagnosis,
    down,
    events,
    keys,
    logs,
    options,
    programs,
    records,
    run_file,
    runs,
    status,
    steps,
    tasks,
    train,
    tui,
    tune,
    units,
    up,
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


# The order of the help: what one needs first comes first.
for group_of_verbs in (
    *(up, down, status, tui, units, tune, logs, events, alerts),
    *(diagnosis, tasks, records, steps, train),
    *(runs, programs, keys, run_file, completion),
):
    group_of_verbs.register(app)


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line; its exit code."""
    as_json = "--json" in arguments
    _be_ready_for_any_stream()
    try:
        _be_ready_for_any_text()
        _check_text(arguments)
        if instruction := os.environ.get(completion.VARIABLE):
            return completion.complete(app, instruction)
        # Not `app()`: it has ends of its own for closed pipes and Ctrl-C.
        with typer.main.get_command(app).make_context("agentrl", list(arguments)) as context:
            code = context.command.invoke(context)
        sys.stdout.flush()
        return int(code) if isinstance(code, int) else ExitCode.OK
    except typer.Exit as ended:
        return ended.exit_code
    except AgentrlError as error:
        return _tell(error, as_json)
    except typer.TyperException as error:
        return _tell(errors.UsageError(_sentence(error), hint=f"Try `{_path(error)} --help`."), as_json)
    except typer.Abort:
        print(file=sys.stderr)
        return ExitCode.INTERRUPTED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except EOFError:
        return _tell(
            errors.UsageError("The input ended before the answer.", hint="Add --yes to go on unasked."), as_json
        )
    except OSError as error:
        return _tell_system_error(error, as_json)


def _be_ready_for_any_stream() -> None:
    """What the caller closed leads nowhere. Otherwise the next file that is opened would take its place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open for as long as the process lives


def _be_ready_for_any_text() -> None:
    """A terminal that is not UTF-8 shows what it cannot write as an escape, instead of ending the command."""
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


_IN_WORDS = [
    (re.compile(programmers), people)
    for programmers, people in (
        (r"is not a valid float( range)?", "is not a number"),
        (r"is not a valid int(eger|(?= range))( range)?", "is not a whole number"),
        (r"is not in the range (\S+)<=x<=(\S+?)\.?$", r"is not from \1 to \2"),
        (r"is not in the range x>=(\S+?)(\.0)?\.?$", r"is not \1 or more"),
    )
]
"""What typer says of a value, as people say it."""


def _sentence(error: typer.TyperException) -> str:
    said = error.format_message().strip() or "The command line does not make sense"
    for programmers, people in _IN_WORDS:
        said = programmers.sub(people, said)
    return ended(said)


def _path(error: typer.TyperException) -> str:
    """The verb whose help is meant."""
    context = getattr(error, "ctx", None)
    return str(context.command_path) if context is not None else "agentrl"


def _tell(error: AgentrlError, as_json: bool) -> int:
    from agentrl.cli import output

    code = error.exit_code
    if as_json:
        import json

        try:
            print(json.dumps(error.document()), flush=True)
            return code
        except OSError:
            # Nothing can be written there, which is perhaps the very error; the other stream is left.
            _point_at_nothing(sys.stdout.fileno())
    for number, line in enumerate(output.sanitise_lines(str(error)).splitlines() or [""]):
        output.note(f"agentrl: {line}" if number == 0 else line)
    return code


def _tell_system_error(error: OSError, as_json: bool) -> int:
    if error.errno in (errno.EPIPE, errno.EIO):
        # The reader went away (`| head`), or the terminal was closed: there is nobody left to tell.
        for stream in (sys.stdout, sys.stderr):
            _point_at_nothing(stream.fileno())
        return ExitCode.OK if error.errno == errno.EPIPE else ExitCode.FAILED
    subject = f"{error.filename}: " if error.filename else ""
    kind = errors.DiskError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS) else AgentrlError
    return _tell(kind(f"{subject}{error.strerror or error}."), as_json)


def _point_at_nothing(descriptor: int) -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)
