"""A rank that follows: `python -m agentrl.training.follower RUN_DIR`, started by the unit of the trainer.

Invariant: signals are for the unit; this process ends when the rank that leads ends it, or is gone.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import torch

from agentrl.store import run_database
from agentrl.tracing import log_format
from agentrl.training import ranks
from agentrl.training.resume import settings_of


def main(run_dir: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    log_format.set_up()
    config = run_database.configuration(run_dir)
    torch.set_num_threads(config.training.threads)
    ranks.follow(settings_of(config))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
