"""Reports what a file declares: `python -m agentrl.environments FILE` writes one line of JSON.

Invariants:
- The file is executed here, so declarations that it computes count. Output and exceptions of the file reach the answer
  only as text.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from agentrl.environments.environment import declared
from agentrl.toolservers import user_files

MODULE = "environment_of_the_run"


def described(path: Path) -> dict[str, Any]:
    """The environments of the file, or `error` with the `line` of the file that caused it."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            user_files.load(path, MODULE)
    except BaseException as broken:  # noqa: BLE001 - the code of a user may raise anything, SystemExit too
        return _error_of(broken, path)
    return {
        "environments": {
            each.name: {
                "line": each.line,
                "keys": each.keys,
                "tools": list(each.tools),
                "scored": bool(each.scorers),
                "resumable": each.resumable,
            }
            for each in declared()
        }
    }


def _error_of(broken: BaseException, path: Path) -> dict[str, Any]:
    own = [frame.lineno for frame in traceback.extract_tb(broken.__traceback__) if frame.filename == str(path)]
    line = broken.lineno if isinstance(broken, SyntaxError) and broken.filename == str(path) else (own or [0])[-1]
    message = broken.msg if isinstance(broken, SyntaxError) else " ".join(str(broken).split())
    return {"error": f"{type(broken).__name__}: {message}".rstrip(": "), "line": line or 0}


def main(arguments: list[str]) -> None:
    answer = described(Path(arguments[0]).absolute())
    sys.stdout.write(json.dumps(answer, default=str) + "\n")
    sys.stdout.flush()
    os._exit(0)  # exits without waiting for threads that the file started


if __name__ == "__main__":
    main(sys.argv[1:])
