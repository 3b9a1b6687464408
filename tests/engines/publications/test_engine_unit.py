"""An engine as a process of a run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from agentrl.config.http_token import http_token
from agentrl.engines.http_engine import HttpEngine
from agentrl.engines.interface import EngineCall, Sampling
from tests.engines.conftest import Weights
from tests.engines.publications.parts import Database, document, publish
from tests.waiting import aeventually

ROOT = Path(__file__).parents[3]


def start_engine(environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen([sys.executable, "-m", "daemons.engine"], env=environment, stdout=file, stderr=file)


async def test_the_unit_serves_publications_and_leaves_on_drain(
    mongo_url: str, database: Database, first: Weights, second: Weights, run_dir: Path
) -> None:
    state = run_dir / "state"
    (state / "mongo").mkdir(parents=True)
    (state / "mongo" / "url").write_text(mongo_url)
    config = {"name": "test", "engines": {"slots": 4}, "sampling": {"context": 128}}
    (run_dir / "config.json").write_text(json.dumps(config))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AGENTRL_")}
    environment |= {"AGENTRL_RUN_DIR": str(run_dir), "AGENTRL_STATE_DIR": str(state), "PYTHONPATH": str(ROOT)}
    process = start_engine(environment, run_dir / "engine.log")
    try:
        await publish(database, first)

        async def service(**wanted: Any) -> Any:
            assert process.poll() is None, (run_dir / "engine.log").read_text()
            return await database["Service"].find_one({"kind": "engine", **wanted})

        found = await aeventually(lambda: service(state="serving", version=1))
        client = HttpEngine(found["url"], http_token(state))
        call = asyncio.create_task(
            client.generate(EngineCall("r", [4, 5], Sampling(max_new_tokens=100), deadline_s=60))
        )
        await publish(database, second)
        await aeventually(lambda: service(version=2))
        assert (await call).finish == "length"
        damaged = run_dir / "weights" / first.path.name / "model.safetensors"
        damaged.write_bytes(b"\0" * damaged.stat().st_size)
        await publish(database, first, version=3)

        async def reasons() -> Any:
            return (await document(database, 3)).get("reasons")

        await aeventually(reasons)
        greedy = Sampling(max_new_tokens=5, temperature=0.0)
        assert (await client.generate(EngineCall("s", [4, 5], greedy, deadline_s=20))).versions == [(2, 5)]
        await client.close()
        process.send_signal(signal.SIGTERM)
        await aeventually(lambda: process.poll() is not None)
        assert process.returncode == 0, (run_dir / "engine.log").read_text()
        assert (await database["Service"].find_one({"kind": "engine"}))["state"] == "gone"
    finally:
        process.kill()
        process.wait()
