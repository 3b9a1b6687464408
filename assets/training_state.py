"""Reads the state of a training run from its store: steps, versions, tokens, tool calls, held-out results.

Invariants:
- The module only reads from the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agentrl.errors import AgentrlError
from agentrl.policies.status_tables import PublicationStatus, StepStatus
from agentrl.store import accounting, evaluations, run_database
from agentrl.store.accounting import Account
from agentrl.store.database import Database

T = TypeVar("T")
BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Figures:
    """The state at one time."""

    version: int | None = None
    """The newest version that engines serve."""
    rewards: tuple[float, ...] = ()
    """The mean reward of each committed step."""
    committed: int = 0
    trained_records: int = 0
    """Records that committed steps trained."""
    staleness: float | None = None
    """The mean age of the tokens of the last step that trained, in publications."""
    tokens: int = 0
    """Tokens generated so far."""
    tool_calls: int = 0
    tool_errors: int = 0
    """Tool calls that failed for infrastructure."""
    held_out: dict[int, float] = field(default_factory=dict)
    """The mean held-out reward by version, of complete evaluations."""


class RunStore:
    """The store of a run, for a program without an event loop. It is opened when the run has a store."""

    def __init__(self, run_dir: Path, state_dir: Path) -> None:
        self._run_dir, self._state_dir = run_dir, state_dir
        self._runner = asyncio.Runner()
        self._database: Database | None = None

    def look(self) -> Figures:
        """The current state; empty while there is no store yet."""
        try:
            return self._ask(_figures(self._opened()))
        except AgentrlError:
            return Figures()

    def trained(self) -> tuple[int, int]:
        """Counts of committed steps and of their records, by a cheap query."""
        sums = {"_id": None, "steps": {"$sum": 1}, "records": {"$sum": {"$size": "$records"}}}
        evaluated_versions = [{"$match": {"status": StepStatus.COMMITTED}}, {"$group": sums}]
        try:
            found = self._ask(self._opened().aggregate("Step", evaluated_versions))
        except AgentrlError:
            return 0, 0
        return (int(found[0]["steps"]), int(found[0]["records"])) if found else (0, 0)

    def ended_attempts(self) -> int:
        """Counts ended attempts, by a cheap query."""
        try:
            return self._ask(self._opened().count("Record", {"outcome": {"$ne": ""}}))
        except AgentrlError:
            return 0

    def account(self) -> Account:
        return self._ask(accounting.account(self._opened()))

    def has_claimed(self, incarnation: str) -> bool:
        """Whether an incarnation of a sampler owns or owned a record."""
        return self._ask(self._opened().count("Record", {"owner": incarnation})) > 0

    def close(self) -> None:
        """May be called twice."""
        if self._database is not None:
            self._ask(self._database.close())
            self._database = None
        self._runner.close()

    def _opened(self) -> Database:
        async def opened() -> Database:
            return await run_database.open_database(run_database.configuration(self._run_dir), self._state_dir)

        if self._database is None:
            self._database = self._ask(opened())
        return self._database

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(question)


async def _figures(database: Database) -> Figures:
    served = await database.find_one("Publication", {"status": PublicationStatus.CURRENT}, sort=[("_id", -1)])
    steps = await database.find(
        "Step", {"status": StepStatus.COMMITTED}, sort=[("step", 1)], projection=["metrics", "records"]
    )
    metrics = [step["metrics"] for step in steps]
    ages = [one["age_mean"] for one in metrics if "age_mean" in one]
    generated = await database.aggregate("Record", [{"$group": {"_id": None, "n": {"$sum": "$generated_tokens"}}}])
    tools = await _tool_calls(database)
    return Figures(
        version=None if served is None else int(served["_id"]),
        rewards=tuple(one["reward_mean"] for one in metrics if "reward_mean" in one),
        committed=len(steps),
        trained_records=sum(len(step["records"]) for step in steps),
        staleness=ages[-1] if ages else None,
        tokens=int(generated[0]["n"]) if generated else 0,
        tool_calls=tools["made"],
        tool_errors=tools["failed"],
        held_out=await _held_out(database),
    )


async def _tool_calls(database: Database) -> dict[str, int]:
    broken = {"$sum": {"$cond": [{"$eq": ["$tool_calls.error_class", "infrastructure"]}, 1, 0]}}
    sums = {"$group": {"_id": None, "made": {"$sum": 1}, "failed": broken}}
    found = await database.aggregate("DispatchedSamplingTask", [{"$unwind": "$tool_calls"}, sums])
    return found[0] if found else {"made": 0, "failed": 0}


async def _held_out(database: Database) -> dict[int, float]:
    evaluated_versions = await database.find(
        "Publication", {"evaluation": "done"}, sort=[("_id", 1)], projection=["_id"]
    )
    found: dict[int, float] = {}
    for version in (int(document["_id"]) for document in evaluated_versions):
        means = [result.mean for result in await evaluations.results(database, version) if result.mean is not None]
        if means:
            found[version] = sum(means) / len(means)
    return found


def sparkline(values: tuple[float, ...], width: int = 30) -> str:
    """Draws values from 0 to 1 as blocks, the newest on the right. A block is the mean of several values if needed."""
    if not values:
        return ""
    per_block = -(-len(values) // width)
    blocks = [values[at : at + per_block] for at in range(0, len(values), per_block)]
    means = [sum(block) / len(block) for block in blocks]
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int(max(0.0, mean) * len(BLOCKS)))] for mean in means)
