"""Restores the files of the coordinator that another program or a person removed: sockets, lock, journal, address.

Without its sockets and its address file a coordinator is alive, but no command reaches it.

Invariants:
- A removed file is back within some seconds, and the journal has an audit entry about it.
- Connections that were open stay open.
- A file that cannot be restored does not keep the others from being restored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from agentrl.control.context import Context
from agentrl.errors import AgentrlError

CHECK_EVERY_S = 2.0
log = logging.getLogger(__name__)


class OwnFiles:
    """`restore` has a function for each kind of file, which returns whether it had to restore it."""

    def __init__(self, context: Context, restore: Mapping[str, Callable[[], bool]]) -> None:
        self._context = context
        self._restore = restore
        self._failed: dict[str, str] = {}
        self._next = 0.0

    def tick(self, now: float) -> None:
        """Check all files, every few seconds."""
        if now < self._next:
            return
        self._next = now + CHECK_EVERY_S
        restored = [what for what, restore in self._restore.items() if self._was_restored(what, restore)]
        if restored:
            sentence = f"Restored what was removed: {', '.join(restored)}."
            log.warning("%s", sentence)
            self._context.audit("coordinator", "files", sentence)

    def _was_restored(self, what: str, restore: Callable[[], bool]) -> bool:
        try:
            done = restore()
        except (AgentrlError, OSError) as failed:
            if self._failed.get(what) != str(failed):
                self._failed[what] = str(failed)
                log.error("The coordinator cannot restore %s: %s", what, failed)
            return False
        self._failed.pop(what, None)
        return done
