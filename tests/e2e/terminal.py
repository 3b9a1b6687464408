"""A real terminal under tmux, with keys and with the console in it."""

from __future__ import annotations

import shlex
import subprocess
import uuid
from pathlib import Path

from tests.e2e.running import PYTHON, Run
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]


class Terminal:
    """A shell in tmux."""

    def __init__(self, run: Run, width: int = 100, height: int = 30) -> None:
        self._lines = 0
        self._socket = f"t{uuid.uuid4().hex[:8]}"
        self._environ = {**run.environ, "PYTHONPATH": str(ROOT), "TERM": "screen-256color"}
        self._environ.pop("NO_COLOR")
        self._tmux("new-session", "-d", "-x", str(width), "-y", str(height), "-c", str(run.file.parent), "sh")

    def run(self, *words: str) -> None:
        """Type a command line and a marker that shows its end."""
        self._lines += 1
        # In two parts, so that the typed line itself does not look like the end.
        settings = "stty -a | grep -oE -- '[ -](echo|icanon) '"
        self._tmux("send-keys", f"{shlex.join(words)}; echo en''ded {self._lines}: $?; {settings}", "Enter")

    def ended(self, code: int | None) -> str:
        """The text after the last command line ended, with any exit code if none is given."""
        shown = f"ended {self._lines}: {'' if code is None else code}"

        def there() -> str:
            seen = self.seen()
            behind = seen.partition(shown)[2]
            missing = [text for text in ("\n echo", "\n icanon") if text not in behind]
            assert not missing, f"{missing} not behind {shown!r} in:\n{seen}"
            return behind

        return eventually(there, what=shown)

    def keys(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)

    def seen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def shows(self, *texts: str, within_s: float = 60.0) -> str:
        def there() -> str:
            seen = self.seen()
            missing = [text for text in texts if text not in seen]
            assert not missing, f"{missing} not in:\n{seen}"
            return seen

        return eventually(there, within_s=within_s)

    def pid(self, what: str) -> int:
        """The process in the foreground whose command line contains these words."""
        shell = self._tmux("display-message", "-p", "#{pane_pid}").strip()
        found = subprocess.run(
            ["pgrep", "-P", shell, "-f", what], capture_output=True, text=True, check=True, timeout=60
        )
        return int(found.stdout.split()[0])

    def copied(self) -> str:
        """The newest text in the terminal's clipboard."""
        return self._tmux("show-buffer")

    def take_copies(self) -> None:
        """Allow programs in the terminal to write to the clipboard."""
        self._tmux("set-option", "-s", "set-clipboard", "on")

    def modes(self) -> dict[str, bool]:
        """The terminal modes that a program has set and not reset."""
        names = ("alternate_on", "mouse_any_flag", "mouse_all_flag", "bracket_paste_flag", "cursor_flag")
        shown = self._tmux("display-message", "-p", " ".join(f"{name}=#{{{name}}}" for name in names))
        return {name: value == "1" for name, _, value in (word.partition("=") for word in shown.split())}

    def close(self) -> None:
        self._tmux("kill-server")

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-L", self._socket, "-f", "/dev/null", *words]
        done = subprocess.run(command, env=self._environ, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout


def console(run: Run, *options: str) -> tuple[str, ...]:
    return (PYTHON, "-m", "agentrl", "tui", "--run", run.name, *options)


def sane(terminal: Terminal, code: int | None) -> None:
    """The shell is back: it echoes, and no mode of the console is left."""
    assert "-echo" not in terminal.ended(code)
    left = terminal.modes()
    assert not left["alternate_on"]
    assert not left["mouse_any_flag"]
    assert not left["mouse_all_flag"]
    assert left["cursor_flag"]
