"""On a full disk supervision continues, starts are refused, and the agent reports it."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.errors import DiskError
from agentrl.host.ledger import Entry, Ledger
from agentrl.protocol.messages import Exited, GroupEmpty, HostStats, Spawned, SpawnFailed
from tests.disks import fill, small_disk
from tests.host.harness import SLEEP, Bench, spawn
from tests.waiting import aeventually


@pytest.fixture
def full_disk_bench(bench: Bench, tmp_path: Path) -> Iterator[tuple[Bench, Path]]:
    folder = tmp_path / "small"
    with small_disk(folder, "128k"):
        yield Bench(dataclasses.replace(bench.home, state_dir=folder)), folder


async def test_log_that_cannot_be_written_is_named_and_not_the_program(bench: Bench) -> None:
    async with bench.tidy_agent() as agent:
        (bench.home.run_dir / "logs").write_text("a file in place of the directory")
        agent.receive(spawn("web-0", *SLEEP))
        failed = await bench.sent.one(SpawnFailed)
        assert f"Its log {bench.home.run_dir}/logs/web-0/1.log cannot be written" in failed.reason
        assert not failed.final


async def test_on_a_full_disk_nothing_is_started_and_nothing_is_lost(full_disk_bench: tuple[Bench, Path]) -> None:
    bench, folder = full_disk_bench
    async with bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", *SLEEP))
        running = await bench.sent.one(Spawned)
        ballast = folder / "ballast"
        fill(ballast)
        agent.receive(spawn("web-1", *SLEEP))
        failed = await bench.sent.one(SpawnFailed)
        assert not failed.final
        assert "No space left" in failed.reason
        assert (await bench.sent.one(HostStats, that=lambda m: bool(m.disk_full))).disk_full
        os.kill(running.pid, signal.SIGKILL)
        assert (await bench.sent.one(Exited)).exit.signal == signal.SIGKILL
        await bench.sent.one(GroupEmpty, "web-0")
        assert agent.hello().inventory[0].group_empty
        ballast.unlink()
        bench.sent.messages.clear()
        await bench.sent.one(HostStats, that=lambda m: not m.disk_full)
        later = Ledger(folder / "hosts/h1/ledger")
        later.load()
        entry = next(entry for entry in later.entries() if entry.name == "web-0.1")
        assert entry.group_empty, "entries that could not be written were written later"
        agent.receive(spawn("web-1", *SLEEP))
        await bench.sent.one(Spawned, "web-1")


def test_file_size_limit_refuses_an_intent_and_leaves_no_half_file(bench: Bench, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.load()
    entry = Entry(unit="web-0", incarnation=1, token="t", spec=spawn("web-0", *SLEEP).spec)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(DiskError, match="cannot be written"):
            ledger.intend(entry)
        ledger.record(entry)
        assert ledger.trouble
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "ledger").iterdir()) == []
    ledger.flush()
    assert not ledger.trouble
    assert [path.name for path in (tmp_path / "ledger").iterdir()] == ["web-0.1.json"]


async def test_log_that_cannot_be_created_refuses_the_start(bench: Bench) -> None:
    (bench.home.run_dir / "logs").write_text("in the way")
    async with bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", *SLEEP))
        failed = await bench.sent.one(SpawnFailed)
        assert not failed.final
        assert agent.incarnations == {}
        (bench.home.run_dir / "logs").unlink()
        agent.receive(spawn("web-0", *SLEEP))
        await aeventually(lambda: bench.sent.all(Spawned))
