"""Writes lines of all kinds, and one more for each line in the file RUN_DIR/say-UNIT."""

from __future__ import annotations

import datetime
import os
import sys
import time
from pathlib import Path

SAY = Path(os.environ["AGENTRL_RUN_DIR"]) / f"say-{os.environ['AGENTRL_UNIT']}"


def stamp(hours_ago: float) -> str:
    at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=hours_ago)
    return at.isoformat(timespec="seconds")


print(f"{stamp(5)} long ago in {os.environ['AGENTRL_INCARNATION']}")
print("  a line that belongs to it")
print(f"{stamp(0)} just now, loss=0.5")
print("\x1b]0;a title of its own\x07\x1b[2J\x1b[31mred\x1b[0m and \u202eturned round")
sys.stdout.flush()
said = 0
while True:
    lines = SAY.read_text().splitlines() if SAY.exists() else []
    for line in lines[said:]:
        print(line, flush=True)
    said = max(said, len(lines))
    time.sleep(0.02)
