"""Logs: cut while the child writes, read in ranges, and cleaned for people."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.config.logfiles import cuts
from agentrl.host.log_files import Logs, clean
from agentrl.protocol import wire
from agentrl.protocol.messages import Answer, Ask, Exited, HostStats, LogChunk, ReadLog, Spawned
from tests.disks import small_disk
from tests.host.harness import QUICK, SLEEP, Bench, python, spawn
from tests.waiting import aeventually

COUNTER = """
import itertools, time
for n in itertools.count():
    print(f'line {n:09d}')
    if n % 500 == 0: time.sleep(0.005)
"""


async def test_log_is_cut_while_its_process_continues_to_write(bench: Bench) -> None:
    most = 300_000
    async with bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", *python(COUNTER), log_max_bytes=most))
        await bench.sent.one(Spawned)
        logs = agent.services.logs
        await aeventually(lambda: cuts(logs.path("web-0", 1)) >= 3)
        agent.incarnations["web-0.1"].kill_tree()
        await bench.sent.one(Exited)
        # A cut in progress is complete before the next measurement is sent.
        bench.sent.messages.clear()
        await bench.sent.one(HostStats)
        path = logs.path("web-0", 1)
        old, new = path.with_name("1.log.1").read_text().splitlines(), path.read_text().splitlines()
        assert old[0].startswith("[agentrl: cut ")
        numbers = [int(line.split()[1]) for line in (*old[1:], *new) if len(line) == len("line 000000000")]
        assert numbers == sorted(numbers), "the two parts are in order"
        assert "\0" not in path.read_text()[:100], "the process appends; it does not write where it was before"


def test_ranges_are_read_and_cuts_are_counted(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    fd = logs.open("web-0", 3)
    os.write(fd, b"0123456789\n" * 100)
    assert logs.read("web-0", 0, -11, 100) == LogChunk("web-0", 3, 1089, b"0123456789\n", 1100)
    assert logs.read("web-0", 3, 5, 3).data == b"567"
    assert logs.read("web-0", 3, 5000, 3).data == b""
    assert not logs.cut_if_large("web-0", 3, 2000)
    assert logs.cut_if_large("web-0", 3, 1000)
    os.write(fd, b"after\n")
    os.close(fd)
    chunk = logs.read("web-0", 3, 0, 100)
    assert (chunk.data, chunk.rotation) == (b"after\n", 1)
    assert cuts(Logs(tmp_path).path("web-0", 3)) == 1, "the count survives the agent"
    assert not any(path.stat().st_mode & 0o077 for path in (tmp_path / "logs").rglob("*"))
    assert (tmp_path / "logs").stat().st_mode & 0o077 == 0
    with pytest.raises(FileNotFoundError):
        logs.read("web-0", -1, 0, 1)


async def test_logs_of_agent_and_coordinator_are_cut_too(bench: Bench) -> None:
    folder = bench.home.state_dir / "hosts" / bench.home.host
    folder.mkdir(parents=True)
    own = [folder / "agent.log", folder / "coordinator.log"]
    for path in own:
        path.write_bytes(b"a line of noise\n" * 1000)
    async with bench.tidy_agent(times=replace(QUICK, own_log_max_bytes=10_000)):
        await aeventually(lambda: all(path.stat().st_size == 0 for path in own))
    assert all(cuts(path) == 1 for path in own)
    assert all(path.with_name(f"{path.name}.1").stat().st_size < 10_000 for path in own)


async def test_log_is_read_by_a_request_and_a_missing_one_is_an_error(bench: Bench) -> None:
    async with bench.tidy_agent() as agent:
        for incarnation in (1, 2):
            agent.receive(spawn("web-0", "echo", f"life {incarnation}", incarnation=incarnation))
            await bench.sent.one(Exited, "web-0", incarnation)
        agent.receive(Ask("now", ReadLog("web-0", 0)))
        agent.receive(Ask("before", ReadLog("web-0", -1)))
        agent.receive(Ask("none", ReadLog("web-7", 0)))
        answers = {}
        for name in ("now", "before", "none"):
            answers[name] = await bench.sent.one(Answer, that=lambda m, name=name: m.ask == name)  # type: ignore[misc]
        assert wire.decode_as(LogChunk, answers["now"].body).data == b"life 2\n"
        assert wire.decode_as(LogChunk, answers["before"].body).data == b"life 1\n"
        assert "web-7 has no such log" in answers["none"].error


async def test_request_for_the_log_before_the_first_incarnation_is_explained(bench: Bench) -> None:
    async with bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", "echo", "life 1"))
        await bench.sent.one(Exited, "web-0", 1)
        agent.receive(Ask("before", ReadLog("web-0", -1)))
        seen = (await bench.sent.one(Answer)).error
        assert seen.startswith("web-0.1 is the only incarnation of web-0 on ")
        assert seen.endswith("`agentrl logs web-0` shows its log.")


async def test_removed_log_of_a_running_process_is_reported_with_a_hint(bench: Bench) -> None:
    async with bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", *SLEEP))
        await bench.sent.one(Spawned)
        agent.services.logs.path("web-0", 1).unlink()
        agent.receive(Ask("now", ReadLog("web-0", 1, 0, 100)))
        seen = (await bench.sent.one(Answer)).error
        assert "was removed while it runs" in seen
        assert "agentrl restart web-0" in seen


def test_only_the_newest_logs_are_kept(tmp_path: Path) -> None:
    logs = Logs(tmp_path, keep=3)
    for incarnation in range(1, 8):
        os.close(logs.open("web-0", incarnation))
    logs.prune("web-0")
    assert logs.incarnations("web-0") == [5, 6, 7]


def test_tail_is_safe_for_a_terminal(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    fd = logs.open("web-0", 1)
    os.write(fd, b"early\n" * 50_000 + b"\x1b[2J\x1b]0;title\x07\x1b[31mred\x1b[0m\tx\xff\r\n" + b"y" * 3000 + b"\n")
    os.close(fd)
    tail = logs.tail("web-0", 1)
    assert len(tail) == 20
    assert tail[-2] == "red\tx�"
    assert len(tail[-1]) == 500
    assert logs.tail("nobody-0", 1) == ()


def test_cleaning_keeps_ordinary_text() -> None:
    assert clean("Zoë → 100 %\t✓") == "Zoë → 100 %\t✓"
    assert clean("a\x9b31mb\x00\x85") == "a31mb"


def test_log_on_a_full_disk_is_cut_even_if_its_end_cannot_be_kept(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "256k") as folder:
        logs = Logs(folder)
        fd = logs.open("web-0", 1)
        with contextlib.suppress(OSError):
            while True:
                os.write(fd, b"x" * 1023 + b"\n")
        assert logs.cut_if_large("web-0", 1, 100_000)
        assert logs.size("web-0", 1) == 0
        assert os.write(fd, b"goes on\n") == 8
        os.close(fd)
