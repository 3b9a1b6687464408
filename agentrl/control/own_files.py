"""Restores the files of the coordinator that another program or a person removed: sockets, lock, journal, address.

Without its sockets and its address file a coordinator is alive, but no command reaches it.

Invariants:
- A removed file is back within some seconds, and the journal has an audit entry about it.
- Connections that were open stay open.
- A file that cannot be restored does not keep the others from being restored.
- If another coordinator holds the lock, or wrote its marker to the run directory, the files belong to it: nothing is
  restored, and this coordinator ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from agentrl.config.run_marker import WRITTEN_EVERY_S
from agentrl.control.context import Context
from agentrl.errors import AgentrlError, ConflictError

log = logging.getLogger(__name__)


class OwnFiles:
    """`lock` and `restore`, which has a function for each kind of file, return whether they had to restore it.

    `mark` writes the marker of the run directory, which does not count as a restoration. `on_lost_lock` is called if
    another coordinator has the run.
    """

    def __init__(
        self,
        context: Context,
        lock: Callable[[], bool],
        mark: Callable[[], bool],
        restore: Mapping[str, Callable[[], bool]],
        on_lost_lock: Callable[[ConflictError], None],
    ) -> None:
        self._context = context
        self._claims = (lock, mark)
        self._restore = {"the lock": lock, "the marker": mark, **restore}
        self._on_lost_lock = on_lost_lock
        self._failed: dict[str, str] = {}
        self._next = 0.0

    def tick(self, now: float) -> None:
        """Check all files, every few seconds."""
        if now < self._next:
            return
        self._next = now + WRITTEN_EVERY_S
        try:
            restored = [what for what, restore in self._restore.items() if self._was_restored(what, restore)]
        except ConflictError as lost:
            log.critical("This coordinator ends: %s", lost)
            self._on_lost_lock(lost)
            return
        if restored:
            sentence = f"Restored removed files: {', '.join(restored)}."
            log.warning("%s", sentence)
            self._context.audit("coordinator", "files", sentence)

    def _was_restored(self, what: str, restore: Callable[[], bool]) -> bool:
        try:
            done = restore()
        except (AgentrlError, OSError) as failed:
            if restore in self._claims and isinstance(failed, ConflictError):
                raise
            if self._failed.get(what) != str(failed):
                self._failed[what] = str(failed)
                log.error("The coordinator cannot restore %s: %s", what, failed)
            return False
        self._failed.pop(what, None)
        return done
