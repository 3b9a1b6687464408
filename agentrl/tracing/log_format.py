"""Log lines of all daemons: text, or one JSON object a line with the trace that it belongs to.

Invariants:
- A JSON line is one object, whatever the message contains; `time` comes first, so tools find it at the beginning.
- The variable AGENTRL_LOG_FORMAT decides the format, until `use` sets another one.
- Output that a program writes without `logging` is not changed.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import sys

from agentrl.tracing import trace_context

VARIABLE = "AGENTRL_LOG_FORMAT"
JSON = "json"
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    """`who` is the unit or daemon that writes."""

    def __init__(self, who: str, host: str) -> None:
        super().__init__()
        self._who = who
        self._host = host

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, str] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "unit": self._who,
            "host": self._host,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (context := trace_context.current()) is not None:
            line |= {"trace_id": context.trace_id, "span_id": context.span_id}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line, ensure_ascii=False)


def set_up(who: str = "", host: str = "") -> None:
    """Log to stderr. A unit needs no arguments: its environment has its name."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    use(os.environ.get(VARIABLE, ""), who, host)


def use(format: str, who: str = "", host: str = "") -> None:
    """Change the format of all lines from now on."""
    who = who or os.environ.get("AGENTRL_INCARNATION", "")
    host = host or os.environ.get("AGENTRL_HOST", "")
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, JsonLines) or handler.formatter is None or handler.formatter._fmt == TEXT:
            handler.setFormatter(JsonLines(who, host) if format == JSON else logging.Formatter(TEXT))


def is_json() -> bool:
    """Whether lines have trace ids."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)
