"""Lines of JSON by which a program reports to the command that started it.

Invariant: what code of users prints is no message.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, TextIO

_messages: TextIO | None = None


def keep_messages_apart() -> None:
    """Standard output is for messages from now on. What code of users prints goes to standard error."""
    global _messages
    sys.stdout.flush()
    _messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr


def tell(event: str, **fields: Any) -> None:
    """One line of JSON for the command that started this program."""
    # In one piece: a thread that shows life writes, too.
    messages = _messages or sys.stdout
    messages.write(json.dumps({"event": event, **fields}, default=str) + "\n")
    messages.flush()
