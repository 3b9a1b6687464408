"""A rank that follows: `python -m agentrl.training.follower RUN_DIR`, started by the unit of the trainer.

Invariant: signals are for the unit; this process ends when the rank that leads ends it, or is gone.
"""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path

import torch

from agentrl.store import run_database
from agentrl.training import ranks
from agentrl.training.resume import settings_of


def main(run_dir: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    config = run_database.configuration(run_dir)
    torch.set_num_threads(config.training.threads)
    ranks.follow(settings_of(config))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
