"""A run with the parts of a run on GPUs, but on processors: a Qwen3 in bfloat16, SGLang, and a trainer of two ranks.

The model has 16 M random parameters instead of the 100 M that assets/random_model.py writes by default.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_config
from agentrl.telemetry.data_plane_metrics import CANARY_LARGEST
from assets import random_model
from tests.e2e.running import Run, running
from tests.e2e.test_data_plane import (
    UP_WITHIN_S,
    counted,
    is_served,
    look,
    no_record_is_too_old,
    only_with_the_token,
)
from tests.engines.contract import servers
from tests.small_run import write_data
from tests.waiting import eventually

ASSETS = Path(__file__).parents[2] / "assets"
STEPS = 5
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    yield from running(tmp_path, f"t-{uuid.uuid4().hex[:8]}", factor=1.0)


@pytest.mark.sglang
def test_a_qwen3_in_bfloat16_trains_with_sglang_and_two_ranks(run: Run) -> None:
    folder = run.file.parent
    write_data(folder)
    random_model.write(folder / "model", layers=4, hidden=512)
    run.config |= {
        "extends": str(ASSETS / "train-cpu.yaml"),
        "model": {"path": "model"},
        "environments": {"shop": {"dataset": "train.jsonl", "evaluation": "held-out.jsonl"}},
        "engines": {"python": servers.python()},
        "evaluation": {"every": 1000, "tasks": 4},
    }
    run.write()
    run.cli("up", str(run.file), "--yes", "--no-wait", within_s=UP_WITHIN_S)
    eventually(lambda: loading_engine(run), within_s=UP_WITHIN_S, what="the first version to be loaded")
    for rank in range(2):
        row = run.wait_state(f"trainer-{rank}", "stopped", within_s=2 * UP_WITHIN_S)
        assert row.done, row.reason
    assert set(run.incarnations().values()) == {1}, "nothing died"

    newest = max(publication["_id"] for publication in asyncio.run(look(run))["Publication"])
    eventually(lambda: engine_row(run)["weights"] == newest, within_s=UP_WITHIN_S, what="the last version is served")
    found = asyncio.run(look(run))
    committed = [step for step in found["Step"] if step["status"] == "committed"]
    assert [step["step"] for step in committed] == [*range(1, STEPS + 1)]
    assert all(len(step["records"]) == 8 and step["metrics"]["gradient_norm"] > 0 for step in committed)
    # The difference comes from bfloat16: the trainer and SGLang add the same numbers in different orders.
    mismatches = [step["metrics"]["mismatch_max"] for step in committed if "mismatch_max" in step["metrics"]]
    assert mismatches
    assert 0 < max(mismatches) < 0.3
    assert run.unit_row("engine-0").metrics[CANARY_LARGEST.name] > 0, "the canary compared rounded numbers"
    versions = [publication["_id"] for publication in found["Publication"]]
    assert {task["version"] for task in found["Task"] if task["purpose"] == "eval"} == {min(versions), max(versions)}
    assert no_record_is_too_old(found)
    assert is_served(run, found)
    assert only_with_the_token(found)
    assert not found["problems"]
    assert counted(run)["steps"] == {"committed": STEPS}


def test_the_twin_has_the_parts_of_the_run_on_gpus() -> None:
    gpu, cpu = (load_config(ASSETS / f"train-{name}.yaml", environ={}).config for name in ("gpu", "cpu"))
    assert cpu.engines.kind == gpu.engines.kind == "sglang"
    assert (cpu.training.optimizer, cpu.training.advantage) == (gpu.training.optimizer, gpu.training.advantage)
    assert (cpu.training.strategy, cpu.training.bound) == (gpu.training.strategy, gpu.training.bound)
    assert cpu.training.parallel.ranks == 2


def engine_row(run: Run) -> Any:
    (engine,) = (row for row in run.cli("status")["units"] if row["unit"] == "engine-0")
    return engine


def loading_engine(run: Run) -> Any:
    """The row of the engine while it loads this version and serves none yet."""
    row = engine_row(run)
    assert re.fullmatch(r"loading\(v\d+\)", row["serving"]), row
    assert row["weights"] is None
    return row
