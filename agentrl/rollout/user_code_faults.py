"""Reports agent loops and scorers that fail each time, so that people see the exception and the code that is at fault.

One failure may be the fault of one answer; several in a row, without a success between them, are the fault of the code.
A report is withdrawn after a while if its code is no longer called, because no success could clear it. The report of a
scorer whose other model was away is withdrawn once that model answers again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from agentrl.environments import user_places
from agentrl.environments.user_code_guard import Late
from agentrl.environments.user_places import Place
from agentrl.environments.user_tasks import BlockedError, UncancelledError, UserExitError
from agentrl.formatting.amounts import counted
from agentrl.toolservers.shortening import one_line

IN_A_ROW = 3
MOST_CHARS = 1_000
"""The most characters of the message of an exception."""
UNTRIED_S = 600.0
"""A report is withdrawn after this time without a call; longer than a scorer waits before it is called again."""


def described(broken: BaseException) -> str:
    """An exception with the last line of the user's code that it passed: `ValueError: no (agents.py, line 12)`."""
    while isinstance(broken, BaseExceptionGroup):
        broken = broken.exceptions[0]
    message = shown(" ".join(str(broken).split()))
    what = f"{type(broken).__name__}: {message}" if message else type(broken).__name__
    if isinstance(broken, UserExitError | BlockedError | UncancelledError):
        what = message
    place = user_places.of_traceback(broken.__traceback__)
    return f"{what} ({place})" if place else what


def shown(text: str) -> str:
    """A text of a user's code or of a model on one line, without characters that a terminal or a store would
    interpret."""
    return one_line(text, MOST_CHARS)


def scoring_of(agent: str) -> str:
    """The name for the scoring by an agent loop. It is counted separately from `run`, which may work in every
    episode."""
    return f"agent {agent} (evaluate_record)"


@dataclass(slots=True)
class _Failures:
    count: int = 0
    newest_at: float = 0.0
    away: str = ""
    """The other model that caused the newest failure; empty if there is another cause."""


class UserCodeFaults:
    """Counts the failures in a row of each agent loop and scorer."""

    def __init__(
        self,
        report: Callable[[str, str], None] = lambda of, sentence: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`report` gets the thing at fault and a sentence, which is empty when the code works again or is no longer
        called."""
        self._report = report
        self._clock = clock
        self._failures: dict[str, _Failures] = {}
        self.blocked_s = 0.0
        """How long code of users held up all episodes of this process."""
        self.left_behind = 0
        """Tasks that agent loops had not ended with their episodes."""

    def late(self, late: Late) -> None:
        """Code of a user held up all episodes."""
        self.blocked_s += late.seconds
        ended = " and was interrupted" if late.interrupted else ""
        self._warn(f"code {late.place.file}", f"it held up all episodes for {late.seconds:.1f} s{ended} ({late.place})")

    def left(self, of: str, places: Sequence[Place]) -> None:
        """An episode ended before tasks that it had begun, which are cancelled."""
        self.left_behind += len(places)
        self._warn(f"{of}: tasks", f"it ended before {counted(len(places), 'tasks')} that it had begun ({places[0]})")

    def _warn(self, of: str, sentence: str) -> None:
        """Warns at the first occurrence, because one answer cannot cause this."""
        self._failures[of] = _Failures(IN_A_ROW, self._clock())
        self._report(of, sentence)

    @property
    def away(self) -> dict[str, str]:
        """The other model that each reported scorer could not ask."""
        return {of: each.away for of, each in self._failures.items() if each.away and each.count >= IN_A_ROW}

    def failed(self, of: str, why: str, *, away: str = "") -> None:
        """`away`: the other model that did not answer, if that is the reason."""
        failures = self._failures.setdefault(of, _Failures())
        failures.count += 1
        failures.away = away
        failures.newest_at = self._clock()
        if failures.count >= IN_A_ROW:
            self._report(of, why)

    def worked(self, of: str) -> None:
        failures = self._failures.pop(of, None)
        if failures is not None and failures.count >= IN_A_ROW:
            self._report(of, "")

    def forget_untried(self, under_way: Collection[str]) -> None:
        """Withdraws reports of code that was not called for a while. `under_way`: the code that episodes call now."""
        now = self._clock()
        for of, failures in list(self._failures.items()):
            if of in under_way:
                failures.newest_at = now
            elif now - failures.newest_at >= UNTRIED_S:
                self.worked(of)
