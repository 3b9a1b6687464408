"""Lives of a trainer under a limit of memory: `python -m tests.training.lives RUN_DIR MONGO_URL LIMIT_BYTES`.

Every life is a process of its own, forked from one that has imported everything, and replaced when it dies, as a
supervisor would. Prints how each of them ended.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import traceback
from pathlib import Path

import torch
import transformers.models.qwen3.modeling_qwen3  # noqa: F401 # otherwise each life imports it again

from agentrl.store import database, run_database
from agentrl.unit.unit import Unit, UnitParts
from agentrl.unit.unit_environment import UnitEnvironment
from daemons.trainer import train

MOST_LIVES = 8


async def live(run_dir: Path, url: str, life: int) -> None:
    config = run_database.configuration(run_dir)
    environment = UnitEnvironment(unit="trainer-0", group="trainer", slot=0, incarnation=life, run_dir=run_dir)
    unit = Unit(UnitParts(environment))
    opened = database.connect(url, config.name)
    try:
        await train(unit, opened, config)
    finally:
        await opened.close()


def forked(run_dir: Path, url: str, life: int, limit: int) -> int:
    """The exit code of a life."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_mapped() + limit, _mapped() + limit))
        asyncio.run(live(run_dir, url, life))
    except BaseException:  # noqa: BLE001 - a fork must not return into the program of its parent
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _mapped() -> int:
    """Bytes of address space in use."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main() -> None:
    torch.set_num_threads(1)
    run_dir, url, limit = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    for life in range(1, MOST_LIVES + 1):
        code = forked(run_dir, url, life, limit)
        print(code, flush=True)
        if code == 0:
            return


if __name__ == "__main__":
    main()
