"""Reports agent loops and scorers that fail each time, so that their exception is seen and they get the blame.

One failure may be the fault of one answer; several in a row, without a success between them, are the fault of the code.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

IN_A_ROW = 3
_PACKAGE = Path(__file__).parents[1]


def described(broken: BaseException) -> str:
    """An exception with the last line of the user's code that it passed: `ValueError: no (agents.py, line 12)`."""
    while isinstance(broken, BaseExceptionGroup):
        broken = broken.exceptions[0]
    message = " ".join(str(broken).split())
    what = f"{type(broken).__name__}: {message}" if message else type(broken).__name__
    frames = [frame for frame in traceback.extract_tb(broken.__traceback__) if _is_users(frame.filename)]
    return f"{what} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else what


def _is_users(file: str) -> bool:
    path = Path(file)
    return path.suffix == ".py" and not path.is_relative_to(_PACKAGE) and "site-packages" not in path.parts


class UserCodeFaults:
    """Counts the failures in a row of each agent loop and scorer."""

    def __init__(self, report: Callable[[str, str], None] = lambda of, sentence: None) -> None:
        """`report` gets the thing at fault and a sentence, which is empty when the thing works again."""
        self._report = report
        self._failures: Counter[str] = Counter()

    def failed(self, of: str, why: str) -> None:
        self._failures[of] += 1
        if self._failures[of] >= IN_A_ROW:
            self._report(of, why)

    def worked(self, of: str) -> None:
        if self._failures.pop(of, 0) >= IN_A_ROW:
            self._report(of, "")
