"""Reports agent loops and scorers that fail each time, so that their exception is seen and they get the blame.

One failure may be the fault of one answer; several in a row, without a success between them, are the fault of the code.
A report of code that is not called any more is withdrawn after a while: it would never be answered by a success.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

IN_A_ROW = 3
UNTRIED_S = 600.0
"""A report is withdrawn after this time without a call; longer than a scorer waits before it is called again."""
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


def scoring_of(agent: str) -> str:
    """The scoring by an agent loop. It counts apart from its `run`, which may work in every episode."""
    return f"agent {agent} (evaluate_record)"


@dataclass(slots=True)
class _Failures:
    count: int = 0
    newest_at: float = 0.0


class UserCodeFaults:
    """Counts the failures in a row of each agent loop and scorer."""

    def __init__(
        self,
        report: Callable[[str, str], None] = lambda of, sentence: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`report` gets the thing at fault and a sentence, which is empty when it works again or is not called."""
        self._report = report
        self._clock = clock
        self._failures: dict[str, _Failures] = {}

    def failed(self, of: str, why: str) -> None:
        failures = self._failures.setdefault(of, _Failures())
        failures.count += 1
        failures.newest_at = self._clock()
        if failures.count >= IN_A_ROW:
            self._report(of, why)

    def worked(self, of: str) -> None:
        failures = self._failures.pop(of, None)
        if failures is not None and failures.count >= IN_A_ROW:
            self._report(of, "")

    def forget_untried(self, under_way: Collection[str]) -> None:
        """Withdraws reports of what was not called for a while. `under_way`: what episodes call at present."""
        now = self._clock()
        for of, failures in list(self._failures.items()):
            if of in under_way:
                failures.newest_at = now
            elif now - failures.newest_at >= UNTRIED_S:
                self.worked(of)
