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

from agentrl.config.tokenfile import TOKEN_FILE
from agentrl.store import access, accounting
from agentrl.store.accounting import Account
from assets import shop, shopdata
from tests.chaos.books import Books
from tests.chaos.census import Process, Role, census
from tests.e2e.running import Run

ITEM = "bake"
PRICE = shop.price_of(ITEM)
RIGHT = 2 * PRICE + 1
BOUND, CHECKPOINT_EVERY = 2, 3
LEDGER = "ledger.jsonl"
UP_WITHIN_S = 600.0


class Arena(Run):
    """A run of the data plane, of which two samplers and two engines are a part."""

    def __init__(self, folder: Path, name: str, *, steps: int, chance: int) -> None:
        super().__init__(folder, name, factor=0.5)
        self.steps = steps
        self._books: Books | None = None
        _write_data(folder)
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
            database = access.open_database(access.configuration(self.dir), self.state_dir)
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
    weather = ["--errors", "0.01", "--latency-ms", "25", "--random", str(chance)]
    return {
        "model": {"build": "tiny"},
        "environments": {
            "shop": {
                "dataset": "train.jsonl",
                "evaluation": "held-out.jsonl",
                "tools": ["shop"],
                "parser": "minicpm",
                "system": "Price it.",
                "max_turns": 5,
                "epochs": 200,
                "shuffle": 1,
            }
        },
        "tools": {
            "shop": {
                "command": ["{python}", "-m", "assets.shop", *weather, "--ledger", "{run_dir}/" + LEDGER],
                "session": "keyed",
                "timeout_s": 20,
            }
        },
        "sampling": {"n": 4, "max_tokens": 24, "context": 160},
        "rollout": {"samplers": 2, "concurrency": 8, "max_in_flight": 24, "episode_s": 120},
        "engines": {"count": 2, "slots": 8},
        "training": {
            "steps": steps,
            "groups": 2,
            "optimizer": "muon",
            "learning_rate": 1e-4,
            "bound": BOUND,
            "checkpoint_every": CHECKPOINT_EVERY,
            "random": chance,
            "warmup": {"dataset": "shown.jsonl", "steps": 40, "batch": 8, "learning_rate": 4e-3},
        },
        "evaluation": {"every": 10, "tasks": 4},
    }


def _write_data(folder: Path) -> None:
    """Demonstrations that go all the way, with a result of the tool that is needed later, and answer rightly every
    other time."""

    def shown(number: int) -> dict[str, Any]:
        said = [
            ("system", "Price it."),
            ("user", f"{ITEM} {number}"),
            ("assistant", f"<tool_call>lookup({ITEM})</tool_call>"),
            ("tool", str(PRICE)),
            ("assistant", f"<tool_call>calculator(2*{PRICE})</tool_call>"),
            ("tool", str(2 * PRICE)),
            ("assistant", "<tool_call>calculator(ans+1)</tool_call>"),
            ("tool", str(RIGHT)),
            ("assistant", f"<answer>{RIGHT + number % 2}</answer>"),
        ]
        return {"messages": [{"role": role, "content": content} for role, content in said], "tools": shopdata.tools()}

    rows = [{"query": f"{ITEM} {number}", "answer": str(RIGHT)} for number in range(44)]
    for name, lines in (
        ("train.jsonl", rows[4:]),
        ("held-out.jsonl", rows[:4]),
        ("shown.jsonl", [shown(number) for number in range(100, 116)]),
    ):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
