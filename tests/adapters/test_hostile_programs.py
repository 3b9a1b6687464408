"""What a program of an environment may do to what started it: nothing, and each request has an answer or a sentence."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrl.adapters import player_process, program_output
from agentrl.adapters.made_tasks import made
from agentrl.adapters.player import LONGEST_ERROR, PlainStart, Player, PlayerError
from agentrl.adapters.player_process import PlayerProcess
from agentrl.adapters.sources import Source
from tests.waiting import PATIENCE_S, aeventually, eventually

ROOT = Path(__file__).parents[2]
COUNTING = Player(source=Source("gymnasium", "tests.adapters.planted:Counting-v0"), rows=2, held_out=0)
ROW = {"seed": 1}
SERVES = """
import json, os, sys, time
def say(number, **what):
    os.write(1, json.dumps({"id": number, **what}).encode() + b"\\n")
"""
ECHO = """
say(0, ok=None)
for line in sys.stdin:
    asked = json.loads(line)
    say(asked["id"], ok=None)
"""


@dataclass(frozen=True)
class Scripted:
    """A program that is not ours."""

    script: str
    source: str = "scripted"
    python: str = sys.executable

    @property
    def command(self) -> list[str]:
        return [self.python, "-c", SERVES + self.script]

    def start(self) -> PlainStart:
        return PlainStart(self.command)

    def error(self, what: str) -> PlayerError:
        return PlayerError(f"scripted: {what}.")


@contextlib.asynccontextmanager
async def running(program: Any) -> AsyncIterator[PlayerProcess]:
    process = PlayerProcess(program)
    try:
        yield process
    finally:
        await process.close()


@pytest.fixture
async def games(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PlayerProcess]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    async with running(COUNTING) as process:
        yield process


def said(action: int) -> str:
    return f"<action>{action}</action>"


@pytest.mark.parametrize(
    ("action", "sentence"),
    [(4, "RuntimeError: StopIteration"), (5, "SystemExit: 3"), (6, "CancelledError")],
)
async def test_whatever_a_game_raises_is_an_answer_and_costs_no_other_game(
    games: PlayerProcess, action: int, sentence: str
) -> None:
    for episode in ("raises", "goes on"):
        await games.ask("begin", episode=episode, row=ROW)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(PlayerError, match=rf"Counting-v0: {sentence}\.$"):
            await games.ask("answer", episode="raises", text=said(action))
    assert await games.ask("answer", episode="goes on", text=said(1)) == {"message": "observation: 1"}


async def test_games_that_hang_do_not_hold_the_threads_of_others_for_ever(
    games: PlayerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(player_process, "STANDS_STILL_S", 4.0)
    monkeypatch.setattr(player_process, "LEFT_AT_MOST_S", 0.5)
    names = [f"hangs {number}" for number in range(32)]
    await asyncio.gather(*(games.ask("begin", episode=name, row=ROW) for name in names))
    hanging = [asyncio.create_task(games.ask("answer", episode=name, text=said(3))) for name in names]
    await aeventually(lambda: len(games._waiting) == len(names), what="all are asked")
    for each in hanging:
        each.cancel()
    await asyncio.wait(hanging)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(PlayerError, match="32 episodes that have ended goes on and holds its threads"):
            await games.ask("begin", episode="next", row=ROW)
        assert await games.ask("begin", episode="again", row=ROW) is None


async def test_a_start_goes_on_when_the_request_that_began_it_is_cancelled(tmp_path: Path) -> None:
    starts, go = tmp_path / "starts", tmp_path / "go"
    waits = f"open({str(starts)!r}, 'a').write('x')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    async with running(Scripted(waits + ECHO)) as process:
        first = asyncio.create_task(process.ask("begin"))
        await aeventually(starts.exists, what="it starts")
        first.cancel()
        second = asyncio.create_task(process.ask("begin"))
        await asyncio.wait([first])
        go.touch()
        assert await second is None
    assert starts.read_text() == "x"


async def test_a_program_that_does_not_start_in_time_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(player_process, "START_WITHIN_S", 1.0)
    pid = tmp_path / "pid"
    async with running(Scripted(f"open({str(pid)!r}, 'w').write(str(os.getpid()))\nwhile True: pass")) as process:
        # A program that is ended before it has written its pid starts again.
        while not (pid.exists() and pid.read_text()):
            with pytest.raises(PlayerError, match="its program did not start within 1 s"):
                await process.ask("begin")
        await aeventually(lambda: not psutil.pid_exists(int(pid.read_text())), what="it is ended")


async def test_an_error_is_one_line_of_bounded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ECHO.replace("ok=None)\n", "ok=None)\n", 1).replace(
        'say(asked["id"], ok=None)', 'say(asked["id"], error="\\x1b[2J\\ud800\\n" + 5_000_000 * "x")'
    )
    async with running(Scripted(script)) as process:
        with pytest.raises(PlayerError) as wrong:
            await process.ask("begin")
    assert wrong.value.message.isprintable()
    assert len(wrong.value.message) < 2 * LONGEST_ERROR


async def test_a_program_that_closes_its_output_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player_process, "ENDS_WITHIN_S", 0.2)
    script = ECHO.replace('say(asked["id"], ok=None)', "os.close(1)\n    time.sleep(1000)")
    async with running(Scripted(script)) as process:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(PlayerError, match="it closed its output"):
                await process.ask("begin")


def test_a_program_ends_with_what_started_it_also_when_it_is_held_up(tmp_path: Path) -> None:
    """As when a command or a sampler is killed."""
    (tmp_path / "held.py").write_text(
        "import os, pathlib\nclass Environment:\n    serves = True\n    def __init__(self, **_): pass\n"
        "    async def begin(self):\n        pathlib.Path('pid').write_text(str(os.getpid()))\n"
        "        while True: pass\n"
    )
    program = ROOT / "agentrl" / "adapters" / "programs" / "main.py"
    starts = (
        "import subprocess, sys, time\n"
        f'command = [sys.executable, {str(program)!r}, \'{{"module": "held"}}\']\n'
        "process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)\n"
        'process.stdin.write(b\'{"id": 1, "do": "begin"}\\n\')\nprocess.stdin.flush()\ntime.sleep(1000)\n'
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", starts], cwd=tmp_path, env=env) as starter:
        pid = eventually(lambda: int((tmp_path / "pid").read_text()), what="it is held up")
        starter.kill()
    try:
        eventually(lambda: not psutil.pid_exists(pid), what="it is ended")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# ---- for its tasks ----

TASKS = """
import json, os, subprocess, sys, time
answers = [{"id": 1, "ok": {}}, {"id": 2, "ok": [{"query": "1"}]}]
written = "".join(json.dumps(each) + "\\n" for each in answers).encode()
"""


def asked(folder: Path, script: str) -> Any:
    return made(COUNTING, folder, [sys.executable, "-c", TASKS + script])


def test_what_a_package_leaves_in_the_background_holds_nothing_up_and_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = (
        "left = subprocess.Popen(['sleep', '1000'])\n"
        f"open({str(file)!r}, 'w').write(str(left.pid))\nos.write(1, written)\n"
    )
    found = asked(tmp_path, script)
    assert json.loads(found.dataset.read_text()) == {"query": "1"}
    eventually(lambda: not psutil.pid_exists(int(file.read_text())), what="it is ended")


def test_a_program_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.adapters.made_tasks.WITHIN_S", 1.0)
    monkeypatch.setattr(program_output, "ENDS_WITHIN_S", 0.5)
    file = tmp_path / "pid"
    script = (
        "left = subprocess.Popen(['sleep', '1000'])\n"
        f"open({str(file)!r}, 'w').write(str(left.pid))\n"
        "while True:\n    try: time.sleep(1000)\n    except KeyboardInterrupt: pass\n"
    )
    # A program that is ended before it has written the pid starts again.
    while not (file.exists() and file.read_text()):
        with pytest.raises(PlayerError, match="its tasks were not there within 1 s"):
            asked(tmp_path, script)
    eventually(lambda: not psutil.pid_exists(int(file.read_text())), what="it is ended")


def test_output_without_end_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_output, "MOST_BYTES", 1 << 20)
    for stream in (1, 2):
        if stream == 2:
            monkeypatch.setattr("agentrl.adapters.made_tasks.WITHIN_S", 2.0)
        sentence = "its program wrote more than 1 MiB" if stream == 1 else "were not there within 2 s"
        with pytest.raises(PlayerError, match=sentence):
            asked(tmp_path, f"while True: os.write({stream}, b'x' * 65536)")


@pytest.mark.parametrize(
    "script",
    [
        "os.write(1, b'[' * 100_000)",
        """os.write(1, json.dumps({"id": 1, "error": "\\x1b[2J" + "x" * 100_000}).encode())""",
        """os.write(1, json.dumps({"refused": "\\x1b[2J" + "x" * 100_000, "hint": [1]}).encode())""",
        "sys.stderr.write('\\x1b[2J' + 'x' * 100_000); sys.exit(3)",
    ],
)
def test_whatever_a_program_writes_is_a_sentence(tmp_path: Path, script: str) -> None:
    with pytest.raises(PlayerError) as wrong:
        asked(tmp_path, script)
    assert str(wrong.value).isprintable()
    assert len(str(wrong.value)) < 2 * LONGEST_ERROR
