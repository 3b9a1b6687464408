"""A tool server that runs Python code, cell by cell, in an interpreter that keeps its variables.

Invariants:
- A cell that takes too long is interrupted and the variables stay. If it cannot be interrupted, its interpreter is
  ended, and the answer says that the variables are lost.
- Output is read while a cell runs and kept in bounded memory: both ends of it.
- The exception of a cell is its result. Only a cell that did not end is a failed call.
"""

from __future__ import annotations

import argparse
import codecs
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from agentrl.toolservers.mcp_stdio import Call, Server, Tool
from agentrl.toolservers.shortening import gap
from agentrl.toolservers.user_names import ToolError

MOST_OUTPUT_CHARS = 16_000
MOST_CODE_CHARS = 200_000
CELL_S = 24.0
INTERRUPTED_WITHIN = 0.125
"""The share of the time limit of a cell in which an interrupted cell must end."""
_LOOK_EVERY_S = 0.1
_MOST_ANSWER_BYTES = 4_096
_CHUNK = 65_536
_INTERPRETER = str(Path(__file__).with_name("python_interpreter.py"))
_SCHEMA = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "Statements of Python. A last expression is printed."}},
    "required": ["code"],
}
_DESCRIPTION = "Run Python code. Variables, imports and files stay for the next call. Returns what was printed."


class Output:
    """The two ends of what a cell prints."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._half = MOST_OUTPUT_CHARS // 2
        self._head = self._tail = ""
        self._chars = 0

    def add(self, data: bytes) -> None:
        text = self._decoder.decode(data)
        self._chars += len(text)
        room = self._half - len(self._head)
        self._head += text[:room] if room > 0 else ""
        self._tail = (self._tail + (text[room:] if room > 0 else text))[-self._half :]

    @property
    def text(self) -> str:
        left_out = self._chars - len(self._head) - len(self._tail)
        return f"{self._head}{gap(left_out) if left_out else ''}{self._tail}"


class Interpreter:
    """One child process that runs cells."""

    def __init__(self, folder: str) -> None:
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        self._output, output = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-u", _INTERPRETER, str(requests), str(answers)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            pass_fds=(requests, answers),
            start_new_session=True,
        )
        for theirs in (requests, answers, output):
            os.close(theirs)
        os.set_blocking(self._output, False)
        self._cells = 0

    def run(self, code: str, within_s: float, call: Call) -> str:
        """The output of a cell. Raises ToolError if the cell did not end by itself."""
        output = Output()
        deadline = time.monotonic() + within_s
        interrupted = ""
        self._cells += 1
        try:
            self._send(code)
            while not self._has_ended(output, self._cells):
                late = time.monotonic() > deadline
                if late and interrupted:
                    raise _LostError("it could not be interrupted")
                if late or (call.cancelled.is_set() and not interrupted):
                    interrupted = f"[interrupted after {within_s:g} s]" if late else "[interrupted]"
                    self._process.send_signal(signal.SIGINT)
                    deadline = time.monotonic() + within_s * INTERRUPTED_WITHIN
        except (_LostError, OSError) as lost:
            self.end()
            self._read_output(output)
            raise ToolError(f"{output.text}\n[the interpreter ended: {lost}; its variables are lost]".strip()) from None
        self._read_output(output)
        if interrupted:
            raise ToolError(f"{output.text.rstrip()}\n{interrupted}".strip())
        return output.text

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Kill the process and its descendants that did not leave its session."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def close(self) -> None:
        for descriptor in (self._requests, self._answers, self._output):
            os.close(descriptor)

    def _send(self, code: str) -> None:
        os.set_blocking(self._requests, True)
        # Written by a separate thread, because an interpreter that does not read must not delay the deadline.
        data = json.dumps(code).encode() + b"\n"
        threading.Thread(target=_write_all, args=(self._requests, data), daemon=True).start()

    def _has_ended(self, output: Output, number: int) -> bool:
        """Wait a moment. Returns whether the cell has ended. Raises _LostError if the process has."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            selector.register(self._output, selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select(_LOOK_EVERY_S)}
        if self._output in ready:
            self._read_output(output, most_chunks=16)
        if self._answers in ready:
            data = os.read(self._answers, _MOST_ANSWER_BYTES)
            if not data:
                raise _LostError(_ending(self._process.wait()))
            return str(number).encode() in data.split()
        if not self.lives:
            raise _LostError(_ending(self._process.wait()))
        return False

    def _read_output(self, output: Output, most_chunks: int = 64) -> None:
        """Read only the output that is available, because a process that the cell left behind may write for ever."""
        for _ in range(most_chunks):
            try:
                data = os.read(self._output, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                return
            output.add(data)


class _LostError(Exception):
    """The interpreter is lost."""


def _ending(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _write_all(descriptor: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        pass  # The process has ended; reading its answer will show that.


class PythonCells:
    """The interpreter of the session; a lost one is replaced."""

    def __init__(self, cell_s: float) -> None:
        self._cell_s = cell_s
        self.folder = tempfile.mkdtemp(prefix="python-")
        self._interpreter = Interpreter(self.folder)
        self._turn = threading.Lock()

    def run(self, arguments: dict[str, Any], call: Call) -> str:
        code = arguments.get("code")
        if not isinstance(code, str) or len(code) > MOST_CODE_CHARS:
            raise ToolError(f"code must be a text of at most {MOST_CODE_CHARS} characters")
        with self._turn:
            if call.cancelled.is_set():
                return ""
            if not self._interpreter.lives:
                self._interpreter.close()
                self._interpreter = Interpreter(self.folder)
            return self._interpreter.run(code, self._cell_s, call)

    def end(self) -> None:
        self._interpreter.end()
        shutil.rmtree(self.folder, ignore_errors=True)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m agentrl.toolservers python")
    parser.add_argument("--cell-s", type=float, default=CELL_S, help="seconds that a cell may take (%(default)s)")
    cells = PythonCells(parser.parse_args(arguments).cell_s)
    tool = Tool("run_python", _DESCRIPTION, _SCHEMA, cells.run)
    Server("agentrl-python", "1", [tool], at_end=cells.end).serve()
