"""Lines of JSON by which a program reports to the command that started it.

Invariant: output of users' code is never taken for a message.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, TextIO

_messages: TextIO | None = None


def keep_messages_apart() -> None:
    """From now on standard output is for messages. Output of users' code goes to standard error."""
    global _messages
    sys.stdout.flush()
    _messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr


def tell(event: str, **fields: Any) -> None:
    """One line of JSON for the command that started this program."""
    # In one piece, because the thread that shows signs of life writes too.
    messages = _messages or sys.stdout
    messages.write(json.dumps({"event": event, **fields}, default=str) + "\n")
    messages.flush()
