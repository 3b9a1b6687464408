"""Training as a job of its own: `python -m agentrl.training RUN.yaml [--from-dump PLACE]`; `agentrl train` shows it.

Invariants: stdout is one JSON message per line, the last of them says how it ended; SIGINT and SIGTERM end the job
after the step that is under way, with a checkpoint.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
from pathlib import Path
from typing import Any

from agentrl.config.load import load_config
from agentrl.errors import AgentrlError, ConfigError, ExitCode


def main() -> int:
    given = _options()
    stopping = Stopping()
    try:
        ended = _train(given, stopping)
    except AgentrlError as failed:
        _tell({"event": "failed", "message": failed.message, "hint": failed.hint, "code": int(failed.exit_code)})
        return failed.exit_code
    _tell({"event": "ended", "interrupted": stopping.asked, **ended})
    return ExitCode.INTERRUPTED if stopping.asked else ExitCode.OK


class Stopping:
    """Whether somebody asked for the end."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True


def _train(given: argparse.Namespace, stopping: Stopping) -> dict[str, Any]:
    config = load_config(given.file, sets=tuple(given.set)).config
    if given.from_dump is None and config.training.loss != "sft":
        raise ConfigError(
            "Nothing says what to train on.",
            hint="Name recorded batches (--from-dump DIR), or set training.loss: sft and training.demonstrations.",
        )
    _tell({"event": "starting", "run": config.name})
    # Seconds of imports, after the mistakes that need none.
    from agentrl.training import offline

    began = time.monotonic()

    def tell(done: offline.Stepped) -> bool:
        finite = {name: value for name, value in done.metrics.items() if math.isfinite(value)}
        _tell({"event": "step", "step": done.step, "of": done.last, "metrics": finite})
        return not stopping.asked

    if given.from_dump is None:
        done = offline.train_supervised(config, out=given.out, tell=tell)
    else:
        done = offline.train_recorded(
            config, given.from_dump, start=given.start, out=given.out, as_configured=given.as_configured, tell=tell
        )
    return {
        "start": str(done.start),
        "steps": done.steps,
        "last_step": done.last_step,
        "out": str(done.out or ""),
        "seconds": round(time.monotonic() - began, 3),
    }


def _tell(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m agentrl.training", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--from-dump", type=Path)
    parser.add_argument("--as-configured", action="store_true")
    parser.add_argument("--start", type=Path)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
