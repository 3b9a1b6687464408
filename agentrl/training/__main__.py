"""Training as a job of its own: `python -m agentrl.training RUN.yaml [--from-dump PLACE]`; `agentrl train` shows it.

With `training.parallel` this process starts one of its own kind for each rank and waits for them.

Invariants: stdout has one JSON message per line, and the last one is the result; SIGINT and SIGTERM end the job after
the current step, with a checkpoint.
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
from agentrl.config.run import RunConfig
from agentrl.errors import AgentrlError, ConfigError, ExitCode
from agentrl.training import rank_processes


def main() -> int:
    options = _options()
    stop = StopRequest()
    try:
        config = load_config(options.file, sets=tuple(options.set)).config
        ranks = config.training.parallel.ranks
        if ranks > 1 and not rank_processes.is_rank():
            return rank_processes.run_ranks([sys.executable, "-m", "agentrl.training", *sys.argv[1:]], ranks)
        ended = _train(config, options, stop)
    except AgentrlError as failed:
        _print({"event": "failed", "message": failed.message, "hint": failed.hint, "code": int(failed.exit_code)})
        return failed.exit_code
    _print({"event": "ended", "interrupted": stop.requested, **ended})
    return ExitCode.INTERRUPTED if stop.requested else ExitCode.OK


class StopRequest:
    """Whether a signal has requested the end."""

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._request)

    def _request(self, *_: object) -> None:
        self.requested = True


def _train(config: RunConfig, options: argparse.Namespace, stop: StopRequest) -> dict[str, Any]:
    if options.from_dump is None and config.training.loss != "sft":
        raise ConfigError(
            "There is nothing to train on.",
            hint="Name recorded batches (--from-dump DIR), or set training.loss: sft and training.demonstrations.",
        )
    _print({"event": "starting", "run": config.name})
    # Imported late: these imports take seconds, and the mistakes above are reported before them.
    from agentrl.training import offline

    began = time.monotonic()

    def on_step(done: offline.StepReport) -> bool:
        finite = {name: value for name, value in done.metrics.items() if math.isfinite(value)}
        _print({"event": "step", "step": done.step, "of": done.last, "metrics": finite})
        return not stop.requested

    if options.from_dump is None:
        done = offline.train_supervised(config, out=options.out, on_step=on_step)
    else:
        done = offline.train_recorded(
            config,
            options.from_dump,
            start=options.start,
            out=options.out,
            as_configured=options.as_configured,
            on_step=on_step,
        )
    return {
        "start": str(done.start),
        "steps": done.steps,
        "last_step": done.last_step,
        "out": str(done.out or ""),
        "seconds": round(time.monotonic() - began, 3),
    }


def _print(message: dict[str, Any]) -> None:
    if rank_processes.leads():
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
