"""The journal keeps every committed batch after a full disk, damage or the death of its process."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.control.persistence import journal as journal_module
from agentrl.control.persistence import journal_schema
from agentrl.control.persistence.journal import Batch, Journal
from agentrl.errors import DiskError, VersionMismatchError
from tests.disks import small_disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def batch(*puts: tuple[str, str, bytes | None]) -> Batch:
    return Batch(puts=list(puts))


def test_batch_survives_reopening(path: Path) -> None:
    journal = Journal.open(path, at=1.0)
    both = batch(("slot", "web-0", b"a"), ("slot", "web-1", b"b"))
    both.event("audit", "1", 5.0, b"x")
    journal.commit(both)
    journal.close()
    journal = Journal.open(path, at=2.0)
    assert journal.all("slot") == {"web-0": b"a", "web-1": b"b"}
    assert journal.get("slot", "web-1") == b"b"
    assert journal.get("slot", "web-9") is None
    assert [event.id for event in journal.events()] == ["1"]
    assert journal.damage == ""
    journal.close()


def test_other_users_can_read_no_file_of_the_journal(path: Path) -> None:
    journal = Journal.open(path, at=1.0)
    journal.commit(batch(("slot", "web-0", b"a")))
    files = sorted(path.parent.glob(f"{path.name}*"))
    assert [file.name.removeprefix(path.name) for file in files] == ["", "-shm", "-wal"]
    assert [file.name for file in files if file.stat().st_mode & 0o077] == []
    journal.close()


def test_last_put_of_a_key_counts(path: Path) -> None:
    journal = Journal.open(path, at=1.0)
    journal.commit(batch(("slot", "a", b"1"), ("slot", "a", None), ("slot", "b", None), ("slot", "b", b"2")))
    assert journal.all("slot") == {"b": b"2"}
    journal.close()


def test_newest_events_are_returned_oldest_first(path: Path) -> None:
    journal = Journal.open(path, at=1.0)
    many = Batch()
    for number in range(10):
        many.event("audit" if number % 2 else "incident", str(number), float(number), b"")
    journal.commit(many)
    assert [event.id for event in journal.events(limit=3)] == ["7", "8", "9"]
    assert [event.id for event in journal.events(("audit",), after_at=3.0)] == ["5", "7", "9"]
    journal.commit(Batch(events=[("incident", "0", 20.0, b"again")]))
    assert journal.events(limit=1)[0].body == b"again"
    assert len(journal.events()) == 10
    journal.close()


def test_pruning_removes_a_few_at_a_time_and_keeps_the_newest(path: Path) -> None:
    journal = Journal.open(path, at=1.0)
    many = Batch()
    for number in range(100):
        many.event("audit", str(number), float(number), b"")
    journal.commit(many)
    portions = []
    while removed := journal.prune(before_at=80.0, keep_newest=50, most=15):
        portions.append(removed)
    assert max(portions) <= 15
    assert [event.at for event in journal.events()] == [float(at) for at in range(80, 100)]
    while journal.prune(before_at=0.0, keep_newest=5):
        pass
    assert [event.at for event in journal.events()] == [95.0, 96.0, 97.0, 98.0, 99.0]
    journal.close()


def test_newer_schema_is_refused_with_both_versions(path: Path) -> None:
    Journal.open(path, at=1.0).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(
        VersionMismatchError, match=r"schema version 99; this agentrl reads versions up to \d"
    ) as refused:
        Journal.open(path, at=2.0)
    assert "version-1" in refused.value.hint


def test_older_journal_is_migrated_and_its_file_is_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.open(path, at=1.0)
    journal.commit(batch(("told", "a", b"1"), ("slot", "b", b"2")))
    journal.close()

    def rename_kind(db: sqlite3.Connection) -> None:
        (body, crc) = db.execute("SELECT body, crc FROM state WHERE kind = 'told'").fetchone()
        assert crc == journal_schema.checksum("told", "a", body)
        crc = journal_schema.checksum("delivered", "a", body)
        db.execute("UPDATE state SET kind = 'delivered', crc = ? WHERE kind = 'told'", (crc,))

    for module in (journal_schema, journal_module):
        monkeypatch.setattr(module, "SCHEMA_VERSION", 2)
    monkeypatch.setitem(journal_schema.MIGRATIONS, 1, rename_kind)
    for _ in range(2):
        journal = Journal.open(path, at=2.0)
        assert journal.all("delivered") == {"a": b"1"}
        assert journal.all("slot") == {"b": b"2"}
        journal.close()
    monkeypatch.undo()
    with pytest.raises(VersionMismatchError):
        Journal.open(path, at=3.0)
    path.with_name("journal.sqlite.version-1").replace(path)
    journal = Journal.open(path, at=4.0)
    assert journal.all("told") == {"a": b"1"}
    journal.close()


def test_failed_migration_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path, rows=3)
    before = Journal.open(path, at=1.0)
    kept = before.all("slot")
    before.close()

    def fail(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM state")
        raise ZeroDivisionError

    for module in (journal_schema, journal_module):
        monkeypatch.setattr(module, "SCHEMA_VERSION", 2)
    monkeypatch.setitem(journal_schema.MIGRATIONS, 1, fail)
    with pytest.raises(ZeroDivisionError):
        Journal.open(path, at=2.0)
    monkeypatch.undo()
    again = Journal.open(path, at=3.0)
    assert again.all("slot") == kept
    again.close()


def test_database_of_another_program_is_refused_and_unchanged(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE recipes (name)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(VersionMismatchError, match="not a journal"):
        Journal.open(path, at=1.0)
    assert path.read_bytes() == before


def filled(path: Path, rows: int = 2000) -> None:
    journal = Journal.open(path, at=1.0)
    for part in range(0, rows, 100):
        journal.commit(batch(*(("slot", f"web-{part + n:05}", bytes(200)) for n in range(100))))
    journal.close()


def damage_pages(path: Path, *pages: int) -> None:
    with path.open("r+b") as file:
        for page in pages:
            file.seek(page * 4096)
            file.write(os.urandom(4096))


def test_damaged_file_is_kept_and_its_readable_rows_are_copied(path: Path) -> None:
    filled(path)
    pages = path.stat().st_size // 4096
    damage_pages(path, pages // 2)
    journal = Journal.open(path, at=1_700_000_000.0)
    kept = path.with_name("journal.sqlite.corrupt-20231114T221320Z")
    assert kept.exists()
    assert str(kept) in journal.damage
    saved = journal.all("slot")
    assert 1000 < len(saved) < 2000, "a page in the middle costs its own rows, not those on either side"
    assert {"web-00000", "web-01999"} <= saved.keys()
    assert set(saved.values()) == {bytes(200)}
    journal.commit(batch(("slot", "web-00000", b"new")))
    journal.close()
    again = Journal.open(path, at=1_700_000_001.0)
    assert again.damage == ""
    assert again.get("slot", "web-00000") == b"new"
    again.close()


def test_file_that_is_not_a_database_is_kept_and_reported(path: Path) -> None:
    filled(path, 100)
    damage_pages(path, 0)
    journal = Journal.open(path, at=0.0)
    assert "0 entries" in journal.damage
    assert journal.all("slot") == {}
    assert path.with_name("journal.sqlite.corrupt-19700101T000000Z").exists()
    journal.close()


def test_row_with_a_changed_byte_is_not_copied(path: Path) -> None:
    journal = Journal.open(path, at=1.0)
    journal.commit(batch(*(("slot", f"web-{n}", f"body {n} of a slot".encode() * 8) for n in range(500))))
    journal.close()
    raw = path.read_bytes()
    place = raw.index(b"body 77 of")
    # Damage in another place that SQLite itself detects causes a repair of the whole file.
    pages = len(raw) // 4096
    wrong = next(page for page in range(pages - 1, 0, -1) if abs(page * 4096 - place) > 3 * 4096)
    path.write_bytes(raw[:place] + b"BODY" + raw[place + 4 :])
    damage_pages(path, wrong)
    journal = Journal.open(path, at=0.0)
    assert journal.damage
    bodies = journal.all("slot")
    assert "web-77" not in bodies
    assert "web-76" in bodies
    journal.close()


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_next_opening_completes_an_interrupted_swap(path: Path, moved: int) -> None:
    filled(path, 100)
    good = path.read_bytes()
    rebuilt = path.with_name("journal.sqlite.rebuilt")
    rebuilt.write_bytes(good)
    damage_pages(path, 0, 1)
    path.with_name("journal.sqlite-wal").write_bytes(b"a log of the damaged file")
    for suffix in ("-wal", "")[:moved]:
        path.with_name(f"journal.sqlite{suffix}").rename(path.with_name(f"journal.sqlite.corrupt-x{suffix}"))
    journal = Journal.open(path, at=0.0)
    assert len(journal.all("slot")) == 100
    assert not rebuilt.exists()
    journal.close()


CHILD = """
import resource, sys
from pathlib import Path
from agentrl.control.persistence import journal as journal_module
from agentrl.control.persistence import journal_schema
from agentrl.control.persistence.journal import Batch, Journal
from agentrl.errors import DiskError
journal = Journal.open(Path(sys.argv[1]), at=1.0)
mode = sys.argv[2]
count = 0
if mode == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, resource.RLIM_INFINITY))
while True:
    try:
        journal.commit(Batch([("slot", f"{count:06}", bytes(3000)), ("last", "count", str(count).encode())]))
    except DiskError as full:
        print("full", full.message, flush=True)
        break
    print(count, flush=True)
    count += 1
assert journal.get("last", "count") == str(count - 1).encode()
assert f"{count:06}" not in journal.all("slot")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
if mode == "limit":
    journal.commit(Batch([("slot", f"{count:06}", b"after")]))
    print("after", count, flush=True)
"""


def run_child(path: Path, mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(path), mode], stdout=subprocess.PIPE, text=True)


def test_file_size_limit_raises_disk_error_and_a_retry_works(path: Path) -> None:
    child = run_child(path, "limit")
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 0, output
    *numbers, full, after = output.splitlines()
    assert full.startswith("full The journal")
    assert len(numbers) > 5
    journal = Journal.open(path, at=2.0)
    assert len(journal.all("slot")) == len(numbers) + 1
    assert journal.get("slot", after.split()[1].zfill(6)) == b"after"
    journal.close()


def test_full_disk_raises_disk_error_and_a_retry_works(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "512k") as small:
        ballast = small / "ballast"
        ballast.write_bytes(bytes(100_000))
        journal = Journal.open(small / "journal.sqlite", at=1.0)
        written = fill(journal)
        journal.commit(Batch())
        ballast.unlink()
        journal.commit(batch(("slot", "after", b"x")))
        assert len(journal.all("slot")) == written + 1
        journal.close()


def fill(journal: Journal) -> int:
    """Write until the disk is full; returns how many batches were acknowledged."""
    count = 0

    def until_full() -> None:
        nonlocal count
        while count < 10_000:
            journal.commit(batch(("slot", f"{count}", bytes(3000))))
            count += 1

    with pytest.raises(DiskError, match="full") as refused:
        until_full()
    assert refused.value.hint
    return count


def test_missing_directory_raises_disk_error(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="cannot be"):
        Journal.open(tmp_path / "none" / "journal.sqlite", at=1.0)


def test_journal_locked_by_another_program_raises_disk_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.control.persistence.journal.BUSY_TIMEOUT_S", 0.05)
    journal = Journal.open(path, at=1.0)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DiskError, match="another program holds it"):
        journal.commit(batch(("slot", "a", b"1")))
    other.execute("ROLLBACK")
    other.close()
    journal.commit(batch(("slot", "a", b"2")))
    assert journal.get("slot", "a") == b"2"
    journal.close()


@pytest.mark.parametrize("step", ["rename", "connect"])
def test_restore_that_failed_is_completed_by_the_next_one(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fails(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    journal = Journal.open(path, at=1.0)
    journal.commit(batch(("slot", "web-0", b"a")))
    path.unlink()
    with monkeypatch.context() as broken:
        if step == "rename":
            broken.setattr(Path, "rename", fails)
        else:
            broken.setattr(journal_module, "_connect", fails)
        for _ in range(2):
            with pytest.raises(DiskError, match="not permitted"):
                journal.restore()
            with pytest.raises(DiskError, match="could not be restored"):
                journal.commit(batch(("slot", "web-1", b"b")))
    assert journal.restore()
    assert not journal.restore()
    journal.commit(batch(("slot", "web-1", b"b")))
    journal.close()
    assert Journal.open(path, at=2.0).all("slot") == {"web-0": b"a", "web-1": b"b"}


def test_failed_commit_writes_nothing_of_the_batch(path: Path) -> None:
    journal = Journal.open(path, at=1.0)
    journal.commit(batch(("slot", "a", b"old")))
    broken = Batch([("slot", "a", b"new")], [("audit", "1", "no time")])  # type: ignore[list-item]
    with pytest.raises(IndexError):
        journal.commit(broken)
    assert journal.get("slot", "a") == b"old"
    journal.commit(batch(("slot", "a", b"newer")))
    journal.close()


def test_entry_that_can_never_be_written_is_set_aside_and_the_others_are_written(path: Path) -> None:
    journal = Journal.open(path, at=1.0)
    mixed = batch(("slot", "a", b"1"), ("slot", "a \ud800", b"2"), ("slot", "b", b"3"), ("slot", "gone \ud800", None))
    mixed.event("audit", "1", math.nan, b"no time")
    mixed.event("audit", "2", 2.0, b"")
    found = journal.commit(mixed)
    assert [(entry.kind, entry.key) for entry in found] == [
        ("slot", "gone \ud800"),
        ("slot", "a \ud800"),
        ("audit", "1"),
    ]
    assert "NOT NULL constraint failed: events.at" in found[-1].why
    journal.close()
    again = Journal.open(path, at=2.0)
    assert again.all("slot") == {"a": b"1", "b": b"3"}
    assert [event.id for event in again.events()] == ["2"]
    again.close()


@pytest.mark.parametrize("enough", [1, 40, 150])
def test_kill_9_loses_no_committed_batch(path: Path, enough: int) -> None:
    child = run_child(path, "endless")
    assert child.stdout is not None
    acknowledged = [child.stdout.readline() for _ in range(enough)]
    os.kill(child.pid, signal.SIGKILL)
    acknowledged += child.stdout.readlines()
    child.stdout.close()
    child.wait()
    numbers = [int(line) for line in acknowledged if line.endswith("\n")]
    journal = Journal.open(path, at=2.0)
    assert journal.damage == ""
    there = journal.all("slot").keys()
    assert {f"{number:06}" for number in numbers} <= there
    assert len(there) <= len(numbers) + 1, "at most the batch that was being committed"
    assert journal.get("last", "count") == str(len(there) - 1).encode(), "a batch is complete or missing"
    journal.close()


OPENER = """
import sys
from pathlib import Path
from agentrl.control.persistence import journal as journal_module
from agentrl.control.persistence import journal_schema
from agentrl.control.persistence.journal import Batch, Journal
sys.stdin.readline()
journal = Journal.open(Path(sys.argv[1]), at=1.0)
journal.commit(Batch([("slot", sys.argv[2], b"x")]))
journal.close()
"""


def test_processes_that_create_a_journal_at_once_all_succeed(path: Path) -> None:
    children = [
        subprocess.Popen([sys.executable, "-c", OPENER, str(path), str(n)], stdin=subprocess.PIPE, text=True)
        for n in range(6)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.close()
    assert [child.wait(timeout=60) for child in children] == [0] * len(children)
    journal = Journal.open(path, at=1.0)
    assert len(journal.all("slot")) == 6
    journal.close()
