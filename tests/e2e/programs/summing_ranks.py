"""A rank of a gang, written for torchrun without any knowledge of agentrl. Its argument is a directory.

It writes its environment and the living processes of other epochs into that directory, then the sums that it computes
with the other ranks. It does not meet the others while the file `hold-RANK` exists, and does not end while `end-RANK`
exists.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "CUDA_VISIBLE_DEVICES",
)
folder = Path(sys.argv[1])
rank, epoch = os.environ["RANK"], os.environ["AGENTRL_GANG_EPOCH"]


def write(name: str, content: object) -> None:
    fresh = folder / f".{name}"
    fresh.write_text(json.dumps(content))
    fresh.replace(folder / name)


def alive_of_other_epochs() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            marks = dict(each.partition("=")[::2] for each in path.read_text().split("\0"))
        except OSError:
            continue
        mine = all(marks.get(name) == os.environ[name] for name in ("AGENTRL_RUN", "AGENTRL_GROUP"))
        if mine and marks.get("AGENTRL_GANG_EPOCH", epoch) != epoch:
            found.append(marks["AGENTRL_INCARNATION"])
    return found


def end(*_: object) -> None:
    while (folder / f"end-{rank}").exists():
        time.sleep(0.02)
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
write(
    f"began-{epoch}-{rank}", {"others": alive_of_other_epochs(), **{name: os.environ.get(name) for name in VARIABLES}}
)
while (folder / f"hold-{rank}").exists():
    time.sleep(0.02)

import torch  # noqa: E402
from torch import distributed  # noqa: E402

torch.set_num_threads(1)
distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
steps = 0
while True:
    total = torch.tensor(float(rank) + 1)
    distributed.all_reduce(total)
    steps += 1
    write(f"sums-{rank}", {"epoch": int(epoch), "steps": steps, "sum": total.item()})
    time.sleep(0.02)
