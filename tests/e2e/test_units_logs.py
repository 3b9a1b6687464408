"""Logs and stacks of units: read, followed, filtered, cut, and safe for a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentrl.errors import ExitCode
from tests.e2e.running import PYTHON, Run, running
from tests.waiting import eventually

TALKER = [PYTHON, str(Path(__file__).parent / "programs" / "talker.py")]
LOG_MAX = 20_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    for run in running(tmp_path_factory.mktemp("logs"), f"t-{uuid.uuid4().hex[:8]}"):
        run.sidecar("talker", TALKER)
        run.sidecar("flood", TALKER, log_max=LOG_MAX)
        run.unit("tick", "step_loop", "--every", "0.05")
        run.unit("waiter", "many_waits", "--waits", "2")
        run.sidecar("foreign", ["sleep", "1000"])
        run.up()
        _wait_for_first_lines(run)
        yield run


def _wait_for_first_lines(run: Run) -> None:
    eventually(lambda: "turned round" in run.raw("logs", "talker-0").stdout, what="the first lines")


def say(run: Run, unit: str, *lines: str) -> None:
    with open(Path(run.dir) / f"say-{unit}", "a") as file:
        file.writelines(f"{line}\n" for line in lines)


def lines_of(run: Run, *args: str) -> list[str]:
    """The output of `agentrl logs`."""
    document = run.cli("logs", *args)
    return [str(line) for line in document["lines"]]


@contextmanager
def following(run: Run, unit: str) -> Iterator[list[dict[str, object]]]:
    """The output of `agentrl logs -f` as a growing list; the first entry has the existing lines."""
    process = run.start("logs", unit, "-f", "--json")
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    output = _Growing(process)
    try:
        eventually(lambda: output.read(), what="older lines of the log")
        yield output
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED


class _Growing(list[dict[str, object]]):
    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__()
        self._process = process
        self._rest = ""

    def read(self) -> list[dict[str, object]]:
        assert self._process.stdout is not None
        self._rest += (os.read(self._process.stdout.fileno(), 1 << 20) if self._readable() else b"").decode()
        *whole, self._rest = self._rest.split("\n")
        self.extend(json.loads(line) for line in whole)
        return self

    def _readable(self) -> bool:
        return bool(select.select([self._process.stdout], [], [], 0)[0])


def test_lines_are_filtered_by_pattern_by_time_and_by_number(run: Run) -> None:
    lines = lines_of(run, "talker-0")
    assert lines[0].endswith("long ago in talker-0.1")
    assert len(lines) == 4
    (found,) = lines_of(run, "talker-0", "--grep", r"loss=\d")
    assert found.endswith("just now, loss=0.5")
    recent = lines_of(run, "talker-0", "--since", "1h")
    assert [("long ago" in line, "belongs to it" in line) for line in recent] == [(False, False)] * 2
    assert lines_of(run, "talker-0", "--since", "6h") == lines
    assert lines_of(run, "talker-0", "-n", "1") == lines[-1:]
    wrong = run.raw("logs", "talker-0", "--grep", "(")
    assert wrong.returncode == ExitCode.USAGE
    assert "regular expression" in wrong.stderr
    assert run.raw("logs", "nobody-0").returncode == ExitCode.UNKNOWN


def test_escapes_of_a_unit_do_not_reach_a_terminal(run: Run) -> None:
    master, slave = pty.openpty()
    environ = {**run.environ, "TERM": "xterm"}
    with os.fdopen(master, "rb", buffering=0) as screen:
        process = subprocess.Popen(
            [PYTHON, "-m", "agentrl", "logs", "talker-0", "--run", run.name],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=slave,
            cwd=run.file.parent,
        )
        os.close(slave)
        shown = b""
        try:
            while part := screen.read(65536):
                shown += part
        except OSError:
            pass  # A terminal reports its end by this error.
        assert process.wait(30) == 0
    assert b"\x1b" not in shown
    assert b"\x07" not in shown
    assert "red and turned round" in shown.decode()
    assert "\u202e" not in shown.decode()
    # Behind a pipe there is often a terminal again, so raw output needs an option.
    assert "\x1b" not in run.raw("logs", "talker-0").stdout
    assert "\x1b[31mred" in run.raw("logs", "talker-0", "--raw").stdout


def test_follower_gets_new_lines_and_the_next_incarnation(run: Run) -> None:
    before = run.wait_state("talker-0", "ready")
    with following(run, "talker-0") as output:
        say(run, "talker-0", "one more line")
        eventually(lambda: output.read()[-1].get("line") == "one more line", what="the new line")
        run.kill(before.pid)
        after = run.wait_incarnation("talker-0", above=before.incarnation)

        def first_words() -> bool:
            words = [str(entry.get("line")) for entry in output.read() if entry["incarnation"] == after.incarnation]
            return bool(words) and words[0].endswith(f"long ago in talker-0.{after.incarnation}")

        eventually(first_words, what="the first line of the next incarnation")
    assert [entry["incarnation"] for entry in output] == sorted(int(str(entry["incarnation"])) for entry in output)


def test_log_of_the_previous_incarnation_can_be_read(run: Run) -> None:
    if run.wait_state("talker-0", "ready").incarnation == 1:
        run.cli("restart", "talker-0")
    now = run.wait_state("talker-0", "ready").incarnation
    eventually(lambda: lines_of(run, "talker-0"), what="lines of the new incarnation")
    assert lines_of(run, "talker-0")[0].endswith(f"talker-0.{now}")
    assert lines_of(run, "talker-0", "--previous")[0].endswith(f"talker-0.{now - 1}")
    assert lines_of(run, f"talker-0.{now - 1}")[0].endswith(f"talker-0.{now - 1}")
    refused = run.raw("logs", "foreign-0", "--previous")
    assert refused.returncode == ExitCode.UNKNOWN
    assert "no such incarnation yet" in refused.stderr


def test_log_that_grows_too_large_is_cut_and_its_follower_continues(run: Run) -> None:
    log = Path(run.dir) / "logs" / "flood-0" / "1.log"
    aside = log.with_name("1.log.1")
    with following(run, "flood-0") as output:
        # Whatever its size is when it is cut, the lines after that are too few for another cut.
        say(run, "flood-0", *(f"line {number:05d} {'x' * 100}" for number in range(300)))
        eventually(aside.exists, what="the log to be cut")
        eventually(lambda: log.stat().st_size < LOG_MAX)
        say(run, "flood-0", "after the cut")
        eventually(lambda: output.read()[-1].get("line") == "after the cut", what="the line after the cut")
    assert aside.read_text().startswith("[agentrl: cut 1; older lines are gone]\n")
    assert aside.stat().st_size <= LOG_MAX
    assert lines_of(run, "flood-0")[-1] == "after the cut"


def test_all_stacks_are_written_to_one_file(run: Run) -> None:
    done = run.cli("stacks")["operation"]
    assert done["state"] == "succeeded"
    file = Path(done["result"]["file"])
    assert done["result"]["units"] == 5
    assert file.parent == Path(run.dir) / "stacks"
    parts = _parts(file.read_text())
    of = {unit: parts[f"unit {unit}.{row.incarnation} on {row.host}"] for unit, row in run.units().items()}
    assert "step_loop.py" in of["tick-0"]
    assert "in main" in of["tick-0"]
    assert "many_waits.py" in of["waiter-0"]
    # A process without the runtime gets no signal, because an unknown signal would kill it; its kernel stack is shown.
    assert of["foreign-0"].startswith("It does not use the unit runtime, so only the kernel was asked.\n")
    assert "sleep 1000 (pid " in of["foreign-0"]
    assert "[sleep] sleeping" in of["foreign-0"]
    assert "_collect" in parts["coordinator"]
    before = run.incarnations()
    only = run.cli("stacks", "tick-0")["operation"]["result"]
    assert only["units"] == 1
    assert run.incarnations() == before, "no unit was restarted"


def _parts(text: str) -> dict[str, str]:
    """The text below each headline."""
    pieces = text.split("==== ")[1:]
    return {head: body for head, _, body in (piece.partition(" ====\n") for piece in pieces)}
