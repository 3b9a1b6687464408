"""A tool server that runs shell commands in a directory of its session.

Invariants:
- Each session has a process of its own, whose files end with it. Its directories are private to its sandbox.
- A command that takes too long is ended, with all processes that it started; its output until then is the result.
- Only agent loops put files into the session and verify it; their tools have names that no model is offered.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from agentrl.toolservers.mcp_stdio import Call, Server, Tool
from agentrl.toolservers.shortening import both_ends
from agentrl.toolservers.user_names import PUT_TOOL, VERIFY_TOOL, ToolError

MOST_OUTPUT_CHARS = 12_000
MOST_VERIFIER_CHARS = 4_000
TESTS, LOGS = Path("/tests"), Path("/logs/verifier")
REWARD_FILES = ("reward.txt", "reward.json")
_COMMAND_SCHEMA = {
    "type": "object",
    "properties": {"command": {"type": "string", "description": "What bash runs."}},
    "required": ["command"],
}
_PUT_SCHEMA = {
    "type": "object",
    "properties": {"archive": {"type": "string"}},
    "required": ["archive"],
}


class Shell:
    def __init__(self, workdir: Path, command_s: float) -> None:
        self._workdir = workdir
        self._command_s = command_s

    def bash(self, arguments: dict[str, Any], call: Call) -> str:
        text, status = self._run(["bash", "-c", str(arguments["command"])], self._command_s, call)
        return both_ends(text, MOST_OUTPUT_CHARS) + (f"\n[exit status {status}]" if status else "")

    def put(self, arguments: dict[str, Any], call: Call) -> str:
        _unpack(arguments["archive"], self._workdir)
        return ""

    def verify(self, arguments: dict[str, Any], call: Call) -> str:
        """Runs `test.sh` of the archive; the result is the reward that it wrote, as JSON."""
        shutil.rmtree(LOGS, ignore_errors=True)
        LOGS.mkdir(parents=True)
        for left in TESTS.iterdir():  # The model may have put something there.
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        _unpack(arguments["archive"], TESTS)
        text, status = self._run(["bash", str(TESTS / "test.sh")], float(arguments["timeout_s"]), call)
        rewards = _rewards()
        return json.dumps({"rewards": rewards, "status": status, "output": both_ends(text, MOST_VERIFIER_CHARS)})

    def _run(self, command: list[str], within_s: float, call: Call) -> tuple[str, int]:
        process = subprocess.Popen(
            command,
            cwd=self._workdir,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        call.on_cancel(lambda: _kill(process))
        try:
            output, _ = process.communicate(timeout=within_s)
            return output.decode("utf-8", "replace"), process.returncode
        except subprocess.TimeoutExpired:
            _kill(process)
            output, _ = process.communicate()
            return f"{output.decode('utf-8', 'replace')}\n[ended after {within_s:g} s]", process.returncode
        finally:
            _kill(process)  # Kill what it left in the background.


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _unpack(archive: str, place: Path) -> None:
    try:
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(archive))) as files:
            files.extractall(place, filter="data")
    except (ValueError, tarfile.TarError, OSError) as wrong:
        raise ToolError(f"the files cannot be unpacked: {wrong}") from None


def _rewards() -> dict[str, float] | None:
    """What the verifier wrote; None if it wrote no number."""
    for name in REWARD_FILES:
        try:
            found = json.loads((LOGS / name).read_text())
        except (OSError, ValueError):
            continue
        if isinstance(found, (int, float)):
            return {"reward": float(found)}
        if isinstance(found, dict) and found:
            return {key: float(value) for key, value in found.items() if isinstance(value, (int, float))}
    return None


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="shell")
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--command-s", type=float, default=60.0)
    options = parser.parse_args(arguments)
    shell = Shell(options.workdir, options.command_s)
    tools = [
        Tool("bash", f"Run a command in {options.workdir}. Files stay.", _COMMAND_SCHEMA, shell.bash),
        Tool(PUT_TOOL, "Puts files into the session.", _PUT_SCHEMA, shell.put),
        Tool(VERIFY_TOOL, "Says what the files are worth.", _PUT_SCHEMA, shell.verify),
    ]
    Server("shell", "", tools).serve()
