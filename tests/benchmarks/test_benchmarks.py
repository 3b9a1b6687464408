"""The benchmark framework: aims are checked, and no process outlives a benchmark."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from agentrl.store import accounting, indexes, lists
from agentrl.store.call_writer import CALLS
from agentrl.store.database import connect
from tests.benchmarks import (
    call_lists,
    claims,
    finished_run,
    large_run,
    many_units,
    one_process,
    replays,
    storage,
    tool_calls,
)
from tests.benchmarks.coordinator_with_fake_units import fake_fleet
from tests.benchmarks.episodes import Sampler, Shape, prepare
from tests.benchmarks.report import Outcome, as_markdown
from tests.waiting import eventually

PROGRAM = """
import subprocess, sys, time
from tests.benchmarks.cleanup import nothing_behind
with nothing_behind() as left:
    # In a session of its own, as a daemon would be.
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
    print(child.pid, flush=True)
    if sys.argv[1] == "wait":
        time.sleep(1000)
print(len(left))
"""


def outcome() -> Outcome:
    made = Outcome("a title")
    made.faster("start", 10.0, "ms", "slow", 50.0, by=5)
    made.faster("start", 10.0, "ms", "quick", 9.0, by=1)
    made.within("start", 10.0, "ms", "floor", 4.0, factor=3)
    made.share("rate", 40.0, "/s", "loop", 100.0, least=0.5)
    made.at_most("lost", 0.0, "", 0)
    made.plain("memory", 7.0, "MiB")
    return made


def test_aims_are_checked() -> None:
    assert [line.reached for line in outcome().lines] == [True, False, True, False, True, None]
    assert [line.ratio for line in outcome().lines[:4]] == [5.0, 0.9, 2.5, 0.4]


def test_markdown_has_all_figures() -> None:
    text = as_markdown({"start": outcome()})
    assert "### start: a title" in text
    assert "| start | 10 ms | slow | 50 ms | 5 | 5× faster | yes |" in text
    assert "| rate | 40 /s | loop | 100 /s | 0.4 | ≥ 0.5 | NO |" in text


async def test_trajectory_is_smaller_than_documents_with_histories(mongo_url: str) -> None:
    few = await storage.sizes(mongo_url, Shape(turns=2, prompt=50, output=20, result=20))
    many = await storage.sizes(mongo_url, Shape(turns=12, prompt=50, output=20, result=20))
    assert many.history / many.ours > few.history / few.ours, "longer trajectories save more"


async def test_concurrent_claims_balance(mongo_url: str) -> None:
    database = connect(mongo_url, f"bench-{os.getpid()}")
    try:
        await indexes.ensure(database)
        await prepare(database, 3, 4)
        samplers = [Sampler(database, f"sampler-{number}", claims.SHAPE) for number in range(2)]
        ended = await asyncio.gather(*(sampler.run(4) for sampler in samplers))
        assert sum(ended) == await database.count("Record", {"status": "scored"}) == 12
        assert await database.count("Task", {"status": "ready"}) == 3
        account = await accounting.account(database)
        assert account.balanced, account.problems
    finally:
        await database.drop()
        await database.close()


async def test_large_run_agrees_and_is_exported_whole(mongo_url: str) -> None:
    database = connect(mongo_url, f"bench-{os.getpid()}")
    try:
        await indexes.ensure(database)
        assert await finished_run.write(database, 128) == 128
        account = await accounting.account(database)
        assert account.balanced, account.problems
        assert (account.records, account.trained_records) == ({"train": {"scored": 128}}, 128)
        assert await large_run.export(database) == 128
    finally:
        await database.drop()
        await database.close()


async def test_benchmark_of_replays_replays_each_call_once(
    mongo_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "REPLAYS", 3)
    monkeypatch.setattr(replays, "CALL_S", 0.01)
    monkeypatch.setattr(replays, "IN_TURN", 1)
    outcome = Outcome("replays")
    await replays._measure(mongo_url, tmp_path, outcome)
    assert outcome.lines[0].what == "at the same time"
    assert (tmp_path / "notes").read_text().count("begun") == 2 * (3 + 1)


async def test_pages_of_calls_equal_the_queries_by_hand(mongo_url: str) -> None:
    database = connect(mongo_url, f"bench-{os.getpid()}")
    try:
        await indexes.ensure(database)
        await call_lists.write(database, 3000)
        for what, filter, sort, by_hand in call_lists.questions():
            page = await lists.page(database, "ToolCall", filter=filter, sort=sort, limit=call_lists.LIMIT)
            found = await database.aggregate(CALLS, by_hand)
            # A query by hand keeps the order of calls within a turn, so it may cut the last turn at another call.
            same = {row["id"] for row in page.rows} & {row["id"] for row in found}
            assert len(same) >= 0.97 * len(found) >= 0.97 * len(page.rows) - 2, what
    finally:
        await database.drop()
        await database.close()


def test_simulated_hosts_are_admitted_and_restart_their_units(tmp_path: Path) -> None:
    with fake_fleet(tmp_path) as real, many_units.fleet_of(real, 3) as fleet:
        many_units.bring_up(real, 10, 3)
        fleet.tell("die 4 0.1")
        seen = Counter[str]()

        def restarted() -> bool:
            seen.update(fleet.report())
            return seen["Spawn"] == 9 + 4

        eventually(restarted, what="ended units start again")
        eventually(lambda: many_units.all_ready(real, 10), what="every unit is ready again")


async def test_one_process_trains_a_step(tmp_path: Path) -> None:
    small = ["training.warmup.steps=2", "training.warmup.batch=4", "training.groups=1", "sampling.n=2"]
    config = one_process.shop_run(
        tmp_path, 1, [*small, "training.bound=0", "evaluation.tasks=2"], train=8, held_out=2, shown=8
    )
    (server,) = config.tools.values()
    async with one_process.connected(server) as tools:
        one = one_process.OneProcess(config, tmp_path, tools)
        await one.begin()
        await one.train(1)
        assert one.story.steps == 1
        assert one.story.records >= 2
        assert await one.evaluate() == 0.0, "two steps of warm-up are too few to answer correctly"
        await one.close()


@pytest.mark.parametrize("how", ["by itself", "by SIGTERM"])
def test_no_process_outlives_a_benchmark(how: str) -> None:
    word = "go" if how == "by itself" else "wait"
    command = [sys.executable, "-c", PROGRAM, word]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        if how == "by SIGTERM":
            os.kill(process.pid, signal.SIGTERM)
        assert (process.wait(60) == 0) is (how == "by itself")
    eventually(lambda: not psutil.pid_exists(child), what="the child is gone")


def test_sessions_call_through_a_toolbox_with_fresh_ids_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_SESSIONS", "3")
    with tool_calls.serving("toolbox", "") as (toolbox, _):
        for _ in range(2):
            assert tool_calls.figures_of("whole-way", "sessions", toolbox)["failed"] == 0
