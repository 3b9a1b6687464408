"""The ranks of a job begin and end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from agentrl.errors import ExitCode
from agentrl.training.rank_processes import run_ranks

NOTES_ITS_NAMES = """
import os, pathlib, sys
names = ("RANK", "WORLD_SIZE", "MASTER_ADDR")
pathlib.Path(sys.argv[1], os.environ["RANK"]).write_text(" ".join(os.environ[name] for name in names))
"""
THE_LAST_FAILS = """
import os, pathlib, sys, time
pathlib.Path(sys.argv[1], os.environ["RANK"]).write_text(str(os.getpid()))
while os.environ["RANK"] == "0" or len(os.listdir(sys.argv[1])) < 2:
    time.sleep(0.01)
sys.exit(7)
"""
STARTS_RANKS = """
import sys
from agentrl.training.rank_processes import run_ranks
sys.exit(run_ranks([sys.executable, "-c", sys.argv[1], sys.argv[2]], 2))
"""
ENDS_AT_A_SIGNAL = f"""
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit({int(ExitCode.INTERRUPTED)}))
pathlib.Path(sys.argv[1], os.environ["RANK"]).touch()
time.sleep(60)
"""


def test_each_rank_finds_its_place_in_the_environment(tmp_path: Path) -> None:
    assert run_ranks([sys.executable, "-c", NOTES_ITS_NAMES, str(tmp_path)], 3) == 0
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == [f"{rank} 3 127.0.0.1" for rank in range(3)]


def test_a_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    assert run_ranks([sys.executable, "-c", THE_LAST_FAILS, str(tmp_path)], 2) == 7
    for rank in tmp_path.iterdir():
        assert not Path(f"/proc/{rank.read_text()}").exists()


def test_a_signal_reaches_all_ranks(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTS_RANKS, ENDS_AT_A_SIGNAL, str(tmp_path)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as job:
        while len(os.listdir(tmp_path)) < 2:
            time.sleep(0.01)
        job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=60) == ExitCode.INTERRUPTED
