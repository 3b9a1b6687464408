"""Runs cells of Python code one after another, for `python_cells.py`: the program of its child process.

Invariants:
- The variables of a cell are available in the next one, whatever the cell raised.
- Each request gets one line when its cell has ended. A process that the cell forked never writes one.
- SIGINT interrupts a cell and nothing else.
"""

from __future__ import annotations

import ast
import json
import linecache
import os
import signal
import sys
import traceback
from types import FrameType
from typing import Any


class Cells:
    """The variables, and the number of the running cell."""

    def __init__(self) -> None:
        self._variables: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
        self._runs = False
        signal.signal(signal.SIGINT, self._interrupt)

    def run(self, code: str, number: int) -> None:
        """Run a cell. Its output and its exception are printed, and the value of its last expression."""
        name = f"<cell {number}>"
        # Tracebacks show the lines of the cell.
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        try:
            self._runs = True
            self._execute(code, name)
        except BaseException as broken:  # noqa: BLE001 - whatever a cell raises is its result
            self._runs = False
            _print_exception(broken)
        finally:
            self._runs = False

    def _execute(self, code: str, name: str) -> None:
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec", dont_inherit=True), self._variables)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), self._variables)
            if value is not None:
                self._variables["_"] = value
                print(repr(value))

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self._runs:
            raise KeyboardInterrupt


def _print_exception(broken: BaseException) -> None:
    try:
        shown = traceback.TracebackException(type(broken), broken, broken.__traceback__)
        own = [frame for frame in shown.stack if frame.filename not in (__file__, ast.__file__)]
        shown.stack = traceback.StackSummary.from_list(own)
        print("".join(shown.format() if own else shown.format_exception_only()), end="", file=sys.stderr)
    except BaseException:  # noqa: BLE001 - the exception of a cell may break while it is printed
        print(type(broken).__name__, file=sys.stderr)


def main() -> None:
    requests, answers = os.fdopen(int(sys.argv[1]), "rb"), int(sys.argv[2])
    sys.argv = [""]
    own = os.getpid()
    cells = Cells()
    for number, line in enumerate(requests, start=1):
        cells.run(json.loads(line), number)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                pass  # The cell closed or replaced it.
        if os.getpid() != own:
            os._exit(0)
        os.write(answers, f"{number}\n".encode())


if __name__ == "__main__":
    main()
