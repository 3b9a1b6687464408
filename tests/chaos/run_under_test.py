"""The run that is to survive: every role a real process, as small as it may be.

Invariants: the agent has to keep state in its tools over several turns, and every call that they carry out is written
down; some answers are right by chance, so there is something to be learned; deaths are never too many for the
supervisor, because that is not what is tested here.
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
from tests.chaos.processes import Process, Role, census
from tests.chaos.store_reader import Books
from tests.e2e.running import Run

BOUND, CHECKPOINT_EVERY = 2, 3
LEDGER = "ledger.jsonl"
UP_WITHIN_S = 600.0


class Arena(Run):
    """A run of the data plane, of which two samplers and two engines are a part."""

    def __init__(self, folder: Path, name: str, *, steps: int, chance: int) -> None:
        super().__init__(folder, name, factor=0.5)
        self.steps = steps
        self._books: Books | None = None
        small_run.write_data(folder, small_run.RECKONED)
        self.config["supervision"] |= {
            "max_deaths": 1000,
            "max_failed_starts": 1000,
            "backoff_max_s": 1.0,
            # Whoever is stopped by a signal is left alone for so long.
            "stats_every_s": 5.0,
            "coordinator_silent_s": 60.0,
        }
        self.config |= _data_plane(steps, chance)

    @property
    def books(self) -> Books:
        if self._books is None:
            self._books = Books.of(self.state_dir, self.name)
        return self._books

    def begin(self) -> None:
        self.write()
        self.cli("up", str(self.file), "--yes", within_s=UP_WITHIN_S)

    def aim_at(self, steps: int) -> None:
        """Another end of the job: trainer and steward are replaced in an orderly way."""
        self.steps = self.config["training"]["steps"] = steps
        self.write()
        self.cli("up", str(self.file), "--yes", within_s=UP_WITHIN_S)

    def who(self, role: Role | None = None, keep: Callable[[Process], bool] = lambda one: True) -> list[Process]:
        return [one for one in census(self.uuid()) if role in (None, one.role) and keep(one)]

    def ledger(self) -> list[dict[str, Any]]:
        """What the tool server carried out."""
        file = self.dir / LEDGER
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def account(self) -> Account:
        async def read() -> Account:
            database = run_database.open_database(run_database.configuration(self.dir), self.state_dir)
            try:
                return await accounting.account(database)
            finally:
                await database.close()

        return asyncio.run(read())

    def ask_toolbox(self, url: str) -> list[dict[str, Any]]:
        """Its tool servers, as it tells."""
        token = (self.state_dir / TOKEN_FILE).read_text().strip()
        asked = urllib.request.Request(f"{url}/mcpapi/servers", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked, timeout=2) as answer:
            servers: list[dict[str, Any]] = json.load(answer)["servers"]
        return servers

    def close(self) -> None:
        if self._books is not None:
            self._books.close()
            self._books = None
        super().close()


def _data_plane(steps: int, chance: int) -> dict[str, Any]:
    weather = ["--errors", "0.01", "--latency-ms", "25", "--random", str(chance), "--ledger", "{run_dir}/" + LEDGER]
    plane = small_run.data_plane(small_run.RECKONED, steps=steps, bound=BOUND, shop_arguments=weather)
    plane["environments"]["shop"] |= {"epochs": 200, "shuffle": 1}
    plane["sampling"] |= {"n": 4, "context": 160}
    plane["rollout"] |= {"samplers": 2, "concurrency": 8, "max_in_flight": 24}
    plane["engines"] |= {"count": 2, "slots": 8}
    plane["training"] |= {"groups": 2, "checkpoint_every": CHECKPOINT_EVERY, "random": chance}
    plane["evaluation"] |= {"every": 10}
    return plane
