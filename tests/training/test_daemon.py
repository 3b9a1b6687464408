"""The trainer as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from agentrl.store import publications
from agentrl.store.database import Database
from tests.store.server import NAME
from tests.training.rollouts import closed_groups, configuration, task_statuses


def run(run_dir: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENTRL_")}
    return subprocess.run(
        [sys.executable, "-m", "daemons.trainer"],
        env=kept | {"AGENTRL_RUN_DIR": str(run_dir), "AGENTRL_STATE_DIR": str(run_dir)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


async def test_the_trainer_process_trains_to_its_end(db: Database, mongo_url: str, tiny: Path, tmp_path: Path) -> None:
    config = configuration(tmp_path, tiny, steps=2)
    (tmp_path / "mongo").mkdir()
    (tmp_path / "mongo" / "url").write_text(mongo_url)
    (tmp_path / "config.json").write_text(config.model_copy(update={"name": NAME}).model_dump_json())
    await closed_groups(db, 4)
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert await task_statuses(db) == ["trained"] * 4
    assert await publications.parents(db) == {1: None, 2: 1, 3: 2}
