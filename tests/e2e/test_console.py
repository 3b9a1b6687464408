"""The console in a real terminal under tmux, with a real run and real keys."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator

import pytest

from agentrl.errors import ExitCode
from agentrl.recording.disk_writer import DIRECTORY
from agentrl.recording.reader import Recording
from tests.e2e.running import PYTHON, Run, running
from tests.e2e.terminal import Terminal, console, sane
from tests.waiting import eventually


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    for made in running(tmp_path_factory.mktemp("console"), f"t-{uuid.uuid4().hex[:8]}"):
        made.unit("pool", "worker_pool", "--tasks", "2")
        made.sidecar("web", ["sh", "-c", "echo first words; exec sleep 1000"], count=2)
        made.up()
        yield made


@pytest.fixture
def terminal(run: Run) -> Iterator[Terminal]:
    made = Terminal(run)
    try:
        yield made
    finally:
        made.close()


def test_terminal_copies_the_command_line_and_the_mouse_is_optional(run: Run, terminal: Terminal) -> None:
    terminal.take_copies()
    terminal.run(*console(run, "--no-mouse"))
    terminal.shows("● running", "web 2/2")
    modes = terminal.modes()
    assert modes["alternate_on"]
    assert not modes["mouse_any_flag"]
    terminal.keys("2", "Y")
    terminal.shows(f"copied: agentrl status --run {run.name}")
    assert eventually(terminal.copied) == f"agentrl status --run {run.name}"
    terminal.keys("q")
    sane(terminal, 0)
    terminal.run(*console(run))
    terminal.shows("● running", "data 0 s old")
    eventually(lambda: terminal.modes()["mouse_any_flag"] or terminal.modes()["mouse_all_flag"])
    terminal.keys("q")
    sane(terminal, 0)


def test_console_outlives_its_coordinator(run: Run, terminal: Terminal) -> None:
    terminal.run(*console(run))
    terminal.shows("● running", "web 2/2")
    terminal.keys("2", "End")
    terminal.shows("▸ web-1")
    run.kill_agent_and_coordinator()
    terminal.shows("no connection since", "web-1")
    terminal.keys("r")
    terminal.shows("more than 5 s old")
    terminal.keys(":")
    terminal.type("bring the run up")
    terminal.keys("Enter")
    seen = terminal.shows("● running", "old ")
    assert "no connection since" not in seen
    terminal.shows("▸ web-1")
    terminal.keys("q")
    sane(terminal, 0)


def test_restart_shows_a_question_and_is_in_the_recording(run: Run, terminal: Terminal) -> None:
    before = run.wait_state("web-1", "ready").incarnation
    terminal.run(*console(run))
    terminal.shows("● running", "web 2/2")
    terminal.keys("2", "End", "r")
    terminal.shows(f"restart web-1.{before}?")
    terminal.keys("Enter")
    run.wait_incarnation("web-1", before)
    terminal.shows(f"restart web-1.{before}: done")
    terminal.keys("q")
    sane(terminal, 0)

    restarted = time.time()
    eventually(lambda: Recording.open(run.state_dir / DIRECTORY).end > restarted, what="everything in the recording")
    terminal.run(PYTHON, "-m", "agentrl", "tui", "--playback", run.name, "--at", "-0s")
    terminal.shows("recording · ", "at its end", "web 2/2")
    terminal.keys("2", "{")
    terminal.shows("stands", "web-1", "pool-0")
    terminal.keys("r")
    terminal.shows("this is a recording")
    terminal.keys("3")

    def back_to_it() -> str:
        terminal.keys("{")
        return terminal.shows("web-1", within_s=10)

    eventually(back_to_it, what="what happened to web-1")
    terminal.keys("q")
    sane(terminal, 0)


def test_escape_and_the_next_key_in_one_packet_are_two_keys(run: Run, terminal: Terminal) -> None:
    terminal.run(*console(run))
    terminal.shows("● running", "web 2/2")
    terminal.keys("2", "End", "Enter")
    terminal.shows("life          web-1")
    terminal.keys("Escape", ":", "p", "a", "u", "s")
    terminal.shows("│ paus ", "pause the run")
    terminal.keys("Escape", ":", "s", "t", "a", "c", "k")
    terminal.shows("│ stack ", "stacks of all")
    terminal.keys("Escape", "3")
    terminal.shows("WHEN")
    before = run.wait_state("web-1", "ready").incarnation
    terminal.keys("2", "End", "r")
    terminal.shows(f"restart web-1.{before}?")
    terminal.keys("Escape", "Enter")
    eventually(lambda: "restart web-1" not in terminal.seen())
    terminal.keys("q")
    sane(terminal, 0)
    assert run.wait_state("web-1", "ready").incarnation == before


@pytest.mark.parametrize("how", ["TERM", "HUP"])
def test_signal_leaves_the_terminal_restored(run: Run, terminal: Terminal, how: str) -> None:
    terminal.run(*console(run, "--ascii", "--read-only"))
    terminal.shows("Needs you", "read-only", "+ running")
    os.kill(terminal.pid("tui"), getattr(signal, f"SIG{how}"))
    sane(terminal, 128 + signal.SIGTERM)


def test_console_works_inside_screen(run: Run, terminal: Terminal) -> None:
    terminal.run("screen", "-c", "/dev/null", *console(run))
    terminal.shows("Needs you", "● running", "web 2/2")
    terminal.keys("2", "End")
    terminal.shows("UNIT▲", "▸ web-1", "● ready")
    terminal.keys("q")
    terminal.shows("[screen is terminating]")
    sane(terminal, 0)


def test_crash_writes_a_file_and_one_sentence(run: Run, terminal: Terminal) -> None:
    fault = "import tui.app as a, tui.__main__ as m; a.Console._listen = None; m.main()"
    terminal.run(PYTHON, "-c", f"import sys; sys.exit(exec({fault!r}))", "--run", run.name)
    terminal.shows("ended by a fault of its own")
    # Where the line breaks depends on the length of the path.
    eventually(lambda: "The run goes on." in " ".join(terminal.seen().split()))
    assert "TypeError" in (run.home / "console-crash.txt").read_text()
    assert "Traceback" not in terminal.seen()
    sane(terminal, None)


def test_without_a_terminal_the_error_names_the_alternative(run: Run) -> None:
    done = run.raw("tui")
    assert done.returncode == ExitCode.USAGE
    assert "status --follow --json" in done.stderr
    code, document = run.cli("tui", check=False)
    assert code == ExitCode.USAGE
    assert "--json" in document["error"]["message"]
