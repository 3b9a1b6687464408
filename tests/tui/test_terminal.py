"""The bytes that the real program writes to a terminal while it shows all views."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import eventually
from tui.model.actions import VIEWS

ROOT = Path(__file__).parents[2]
RECORDING = next((ROOT / "assets").rglob("*.rec"))
SGR = re.compile(rb"\x1b\[([0-9;:]*)m")
COLOURS = {*range(30, 39), *range(40, 49), *range(90, 98), *range(100, 108)}


class Terminal:
    def __init__(self, master: int) -> None:
        self._master = master
        self.seen = b""

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    def drained(self) -> None:
        """Read the output, because a program blocks if its terminal is not read."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                self.seen += os.read(self._master, 65536)
            except OSError:
                break  # the program has closed its side

    def shows(self, what: str, since: int) -> None:
        def there() -> bool:
            self.drained()
            return what.encode() in self.seen[since:]

        eventually(there, within_s=60.0, what=f"{what} on the terminal")


@contextmanager
def terminal(
    home: Path, *options: str, source: tuple[str, ...] = ("--playback", str(RECORDING), "--at=-1s"), **environ: str
) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    environ = kept | {"HOME": str(home), "PYTHONPATH": str(ROOT), "TERM": "xterm", "LC_ALL": "C.UTF-8"} | environ
    words = [sys.executable, "-m", "tui", *source, *options]
    process = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, env=environ, cwd=ROOT)
    os.close(slave)
    made = Terminal(master)
    try:
        yield made

        def ended() -> bool:
            # Keys typed while the help disappears are dropped.
            made.press("q")
            made.drained()
            return process.poll() is not None

        eventually(ended, within_s=60.0, every_s=0.2, what="the end")
        assert process.returncode == 0, made.seen[-2000:].decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(master)


def past_every_view(screen: Terminal) -> bytes:
    """All output since the last call."""
    screen.shows("recording", 0)
    for number, view in [*enumerate(VIEWS, 1)][::-1]:
        since = len(screen.seen)
        screen.press(str(number))
        screen.shows(view, since)
    since = len(screen.seen)
    screen.press("?")
    screen.shows("everywhere", since)
    screen.press("x")
    return screen.seen


def colours(written: bytes) -> list[bytes]:
    """The parts of the output that set a colour."""
    return [
        found.group(0)
        for found in SGR.finditer(written)
        if COLOURS & {int(part) for part in re.split(rb"[;:]", found.group(1)) if part}
    ]


@pytest.mark.parametrize("how", ["NO_COLOR", "--no-color"])
def test_no_colour_is_written_in_the_mode_without_colours(tmp_path: Path, how: str) -> None:
    options = (how,) if how.startswith("-") else ()
    with terminal(tmp_path, *options, **({} if options else {how: "1"}), COLORTERM="truecolor") as screen:
        assert not colours(past_every_view(screen))


def test_terminal_of_16_colours_gets_no_other_colour(tmp_path: Path) -> None:
    with terminal(tmp_path) as screen:
        found = colours(past_every_view(screen))
    assert found
    assert not [each for each in found if re.search(rb"[34]8[;:]", each)]


def test_ascii_mode_writes_only_ascii(tmp_path: Path) -> None:
    with terminal(tmp_path, "--ascii", COLORTERM="truecolor") as screen:
        written = past_every_view(screen)
    assert written.isascii(), [written[max(0, at - 40) : at + 40] for at, byte in enumerate(written) if byte > 127][:3]
    assert colours(written)


def test_digit_soon_after_escape_is_read_as_a_digit(tmp_path: Path) -> None:
    """Escape closes a page and the digit opens its view."""
    with terminal(tmp_path) as screen:
        screen.shows("recording", 0)
        screen.press("2")
        screen.shows("UNIT", 0)
        since = len(screen.seen)
        screen.press("\r")
        screen.shows("life", since)
        since = len(screen.seen)
        screen.press("\x1b3")
        screen.shows("WHEN", since)
