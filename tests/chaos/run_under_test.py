"""The run that chaos tests inject faults into: every role is a real process, as small as possible.

Invariants: the agent needs state in its tools over several turns, and the tool server records every call that it
executes; some answers are right by chance, so there is something to learn; the supervisor never gives a unit up because
of too many deaths.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.config.http_token import TOKEN_FILE
from agentrl.store import accounting, run_database
from agentrl.store.accounting import Account
from tests import small_run
from tests.chaos.processes import Process, Role, processes_of
from tests.chaos.store_reader import StoreReader
from tests.e2e.running import Run

BOUND, CHECKPOINT_EVERY = 2, 3
LEDGER = "ledger.jsonl"
LEADS = "trainer-0"
"""The rank of the trainer that knows the store and writes files."""
UP_WITHIN_S = 600.0


class RunUnderTest(Run):
    """A run of the data plane with two samplers, two engines and a trainer of some ranks."""

    def __init__(self, folder: Path, name: str, *, steps: int, chance: int, ranks: int) -> None:
        super().__init__(folder, name, factor=0.5)
        self.steps = steps
        self.ranks = ranks
        self._store: StoreReader | None = None
        small_run.write_data(folder, small_run.RECKONED)
        self.config["supervision"] |= {
            "max_deaths": 1000,
            "max_failed_starts": 1000,
            "backoff_max_s": 1.0,
            # A process that is stopped by a signal is not thawed earlier than this.
            "stats_every_s": 5.0,
            "coordinator_silent_s": 60.0,
        }
        self.config |= _data_plane(steps, chance, ranks)

    @property
    def store(self) -> StoreReader:
        if self._store is None:
            self._store = StoreReader.of(self.state_dir, self.name)
        return self._store

    def begin(self) -> None:
        self.write()
        self.cli("up", str(self.file), "--yes", within_s=UP_WITHIN_S)

    def change_steps(self, steps: int) -> None:
        """Changes the number of steps. Trainer and steward are replaced in an orderly way."""
        self.steps = self.config["training"]["steps"] = steps
        self.write()
        self.cli("up", str(self.file), "--yes", within_s=UP_WITHIN_S)

    def find_processes(
        self, role: Role | None = None, keep: Callable[[Process], bool] = lambda one: True
    ) -> list[Process]:
        return [one for one in processes_of(self.uuid()) if role in (None, one.role) and keep(one)]

    def ledger(self) -> list[dict[str, Any]]:
        """The calls that the tool server executed."""
        file = self.dir / LEDGER
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def account(self) -> Account:
        async def read() -> Account:
            database = await run_database.open_database(run_database.configuration(self.dir), self.state_dir)
            try:
                return await accounting.account(database)
            finally:
                await database.close()

        return asyncio.run(read())

    def ask_toolbox(self, url: str) -> list[dict[str, Any]]:
        """The tool servers that it reports."""
        token = (self.state_dir / TOKEN_FILE).read_text().strip()
        wanted = urllib.request.Request(f"{url}/mcpapi/servers", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(wanted, timeout=2) as answer:
            servers: list[dict[str, Any]] = json.load(answer)["servers"]
        return servers

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
        super().close()


def _data_plane(steps: int, chance: int, ranks: int) -> dict[str, Any]:
    faults = ["--errors", "0.01", "--latency-ms", "25", "--random", str(chance), "--ledger", "{run_dir}/" + LEDGER]
    plane = small_run.data_plane(small_run.RECKONED, steps=steps, bound=BOUND, shop_arguments=faults)
    plane["environments"]["shop"] |= {"epochs": 200, "shuffle": 1}
    plane["tools"]["shop"]["sandbox"] = {"write": "{run_dir}"}  # for its ledger
    plane["sampling"] |= {"n": 4, "context": 160}
    plane["rollout"] |= {"samplers": 2, "concurrency": 8, "max_in_flight": 24}
    plane["engines"] |= {"count": 2, "slots": 8}
    plane["training"] |= {"groups": 2, "checkpoint_every": CHECKPOINT_EVERY, "random": chance}
    plane["training"]["parallel"] = {"shard": ranks}
    plane["evaluation"] |= {"every": 10}
    return plane
