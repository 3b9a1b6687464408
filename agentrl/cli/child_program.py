"""Runs programs whose messages a command shows.

Invariant: the program ends before its command does, even if a person interrupts the command.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from agentrl.errors import AgentrlError, ExitCode, ToldError

if TYPE_CHECKING:
    from subprocess import Popen

    from agentrl.config.run import RunConfig


@contextlib.contextmanager
def signals_for(process: Popen[bytes]) -> Iterator[None]:
    """Let the program end in order at Ctrl-C or SIGTERM; the command waits for its end.

    A terminal sends Ctrl-C to both processes, `kill` only to the command. A second signal changes nothing.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: process.send_signal(signal.SIGTERM)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def messages_of(process: Popen[bytes]) -> Iterator[dict[str, Any]]:
    """The messages of the program, one line of JSON each. A program that was killed may leave half a line."""
    import json

    assert process.stdout is not None
    for line in process.stdout:
        if line.endswith(b"\n"):
            yield json.loads(line)


Asked = tuple["RunConfig", dict[str, Any]]


def at_hand(config: RunConfig, asked: dict[str, Any]) -> Callable[[], Asked]:
    """An `ask` for `run_to_its_end` if the configuration and the request are already known."""
    return lambda: (config, asked)


def run_to_its_end(
    program: str, what: str, ask: Callable[[], Asked], show: Callable[[dict[str, Any]], None]
) -> ExitCode:
    """Run a program that gets the configuration and a request as a line of JSON. `ask` returns both, while the program
    loads its modules; if it raises, the program is ended. `show` gets all messages except a failure. A failure, or an
    end without `done`, raises an error, in which `what` names the program."""
    import subprocess

    last = ""
    with subprocess.Popen([sys.executable, "-m", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        line = _line(process, ask)
        with signals_for(process):
            send(process, line)
            for message in messages_of(process):
                last = message["event"]
                if last == "failed":
                    raise ToldError(message["message"], hint=message["hint"], code=message["exit_code"])
                show(message)
    if process.returncode in (ExitCode.INTERRUPTED, -signal.SIGINT, -signal.SIGTERM):
        return ExitCode.INTERRUPTED
    if last != "done":
        raise AgentrlError(f"{what} ended with status {process.returncode}.", hint="Its output is above.")
    return ExitCode.OK


def _line(process: Popen[bytes], ask: Callable[[], Asked]) -> bytes:
    """The request line. A person may interrupt its making, because the program has done nothing yet."""
    import json

    from agentrl.config.serialization import config_to_plain

    try:
        config, asked = ask()
        return json.dumps({**asked, "config": config_to_plain(config)}).encode() + b"\n"
    except BaseException:
        process.kill()
        raise


def send(process: Popen[bytes], line: bytes) -> None:
    """Writes the request, which is the whole input of the program."""
    assert process.stdin is not None
    # If the program was interrupted, its exit status shows that.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(line)
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
