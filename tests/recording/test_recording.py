"""Recordings read back as they were written: over frames, files, writers, cuts and damage."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import ConfigError, ProtocolError
from agentrl.protocol import wire
from agentrl.recording import file_format
from agentrl.recording.disk_writer import Limits
from agentrl.recording.file_format import MAGIC, Change, Kind, Packer, Unpacker, read_head
from agentrl.recording.frame_writer import FILE_S, FRAME_S, Writer
from agentrl.recording.reader import Recording

BEGAN = 1_000_000.0


class Run:
    """A simulated feed and the writer of its recording."""

    def __init__(self, directory: Path, limits: Limits | None = None, now: float = BEGAN) -> None:
        self.rows: dict[str, msgspec.Raw] = {}
        self.now = now
        self.writer = Writer(directory, f"epoch of {now}", lambda: self.rows.items(), limits)
        self.writer.tick(self.now)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.close()

    def put(self, key: str, value: object) -> None:
        if value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = wire.raw(value)
        self.writer.row(self.now, key, self.rows.get(key))

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 1.0
            self.writer.tick(self.now)


@pytest.fixture
def begin() -> Iterator[Callable[..., Run]]:
    """Runs that are closed at the end; until then the files look as after a killed writer."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(Run(*args, **options))


def state_at(recording: Recording, at: float) -> dict[str, object]:
    """The rows at this time."""
    rows: dict[str, object] = {}
    for block in recording.blocks(recording.frame_at(at)):
        for change in block:
            if change.at > at:
                return rows
            if change.gone:
                rows.pop(change.key, None)
            else:
                rows[change.key] = msgspec.msgpack.decode(change.value)
    return rows


VALUES = st.one_of(st.none(), st.integers(-(2**63), 2**63), st.text(max_size=300))
STEPS = st.lists(
    st.tuples(st.sampled_from(["run", "unit/a", "unit/b", "incident/1"]), VALUES, st.integers(0, 90)), max_size=12
)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_rows_of_every_time_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, object, int]]
) -> None:
    directory = tmp_path_factory.mktemp("recording")
    was: dict[float, dict[str, object]] = {}
    with Run(directory) as run:
        for key, value, seconds in steps:
            run.put(key, value)
            # Of several changes at one time the last one counts.
            was[run.now] = {key: msgspec.msgpack.decode(row) for key, row in run.rows.items()}
            run.wait(seconds)
    recording = Recording.open(directory)
    for at, rows in was.items():
        assert state_at(recording, at) == rows


def test_cut_file_loses_at_most_the_last_second(begin: Callable[..., Run], tmp_path: Path) -> None:
    run = begin(tmp_path)
    for second in range(10):
        run.put("unit/a", second)
        run.wait(1)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    seen = set()
    for length in range(len(MAGIC) + 1, len(whole) + 1, 3):
        file.write_bytes(whole[:length])
        try:
            recording = Recording.open(tmp_path)
        except ConfigError:
            continue
        rows = state_at(recording, run.now)
        seen.add(rows.get("unit/a"))
        assert not recording.damaged
    file.write_bytes(whole)
    assert seen == {None, *range(9)} or seen == {None, *range(10)}
    assert state_at(Recording.open(tmp_path), run.now)["unit/a"] == 9


def test_frame_is_readable_by_itself(begin: Callable[..., Run], tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.put("run", "first")
    run.wait(3 * FRAME_S)
    run.put("unit/a", "second")
    run.wait(1)
    run.writer.close()
    recording = Recording.open(tmp_path)
    assert len(recording.frames) == 4
    first_block = next(iter(recording.blocks(3)))
    assert [change.key for change in first_block] == ["run"]
    assert recording.frame_at(0.0) == 0, "an earlier time shows the beginning of the recording"
    assert recording.frame_at(BEGAN + 1e9) == 3


def test_row_is_visible_at_its_mark(begin: Callable[..., Run], tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.wait(30)
    run.put("incident/i1", {"a": 1})
    run.writer.mark(run.now, "incident/i1")
    run.wait(1)
    recording = Recording.open(tmp_path)
    (mark,) = recording.marks
    assert mark.key == "incident/i1"
    assert "incident/i1" in state_at(recording, mark.at)


def test_repeated_marks_of_a_new_coordinator_are_left_out_except_alerts(
    begin: Callable[..., Run], tmp_path: Path
) -> None:
    first = begin(tmp_path)
    for key in ("incident/i1", "op/o1", "alert/hot"):
        first.writer.mark(first.now, key)
    first.wait(5)  # killed, not closed
    second = begin(tmp_path, now=first.now + 2)
    for key in ("incident/i1", "op/o1", "op/o2", "alert/hot"):
        second.writer.mark(second.now, key)
    second.wait(5)
    marks = [(mark.key, mark.at < first.now) for mark in Recording.open(tmp_path).marks]
    once = [("incident/i1", True), ("op/o1", True), ("alert/hot", True)]
    assert marks == [*once, ("op/o2", False), ("alert/hot", False)], "an alert may fire again"


def test_recordings_of_two_coordinators_are_one_time_line(begin: Callable[..., Run], tmp_path: Path) -> None:
    first = begin(tmp_path)
    first.put("run", "one")
    first.wait(5)  # killed, not closed
    second = begin(tmp_path, now=first.now + 100)
    second.put("run", "two")
    second.wait(130)
    recording = Recording.open(tmp_path)
    assert state_at(recording, first.now)["run"] == "one"
    assert state_at(recording, second.now)["run"] == "two"
    assert recording.begin == BEGAN
    assert recording.end >= first.now + 100


def test_oldest_files_are_removed_first_and_the_current_one_never(begin: Callable[..., Run], tmp_path: Path) -> None:
    most = 40_000
    run = begin(tmp_path, Limits(most_bytes=most))
    for minute in range(40):
        run.put(f"unit/{minute % 4}", os.urandom(1_000).hex())
        run.now += FRAME_S
        run.writer.tick(run.now)
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= most
    assert len(list(tmp_path.iterdir())) > 2, "the recording consists of several files"
    assert len(state_at(Recording.open(tmp_path), run.now)) == 4
    (tmp_path / "of a person.rec").write_bytes(MAGIC)
    run.writer.limits = Limits(keep_s=10 * FRAME_S)
    run.now += FILE_S
    run.writer.tick(run.now)
    kept = {file.name for file in tmp_path.iterdir()}
    assert kept == {"of a person.rec", f"{int(run.now * 1000):015d}.rec"}


def test_size_limit_of_zero_keeps_nothing(begin: Callable[..., Run], tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.wait(5)
    assert list(tmp_path.iterdir())
    run.writer.limits = Limits(most_bytes=0)
    run.put("run", "x")
    run.wait(100)
    assert not list(tmp_path.iterdir())


def test_full_disk_leaves_no_empty_files(begin: Callable[..., Run], tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.wait(5)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(MAGIC), hard))
    try:
        for _ in range(10):
            run.put("run", os.urandom(20_000).hex())
            run.wait(int(FRAME_S))
        trouble = run.writer.trouble
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert "Nothing is recorded" in trouble
    assert len(list(tmp_path.iterdir())) == 1, "the file from before the disk was full"
    run.put("run", "kept")
    run.wait(int(FRAME_S) + 1)
    assert not run.writer.trouble
    assert state_at(Recording.open(tmp_path), run.now) == {"run": "kept"}


def test_slow_disk_costs_the_rest_of_the_frame(tmp_path: Path) -> None:
    waiting: list[Callable[[], None]] = []
    takes = True

    def later(work: Callable[[], None]) -> bool:
        if takes:
            waiting.append(work)
        return takes

    writer = Writer(tmp_path, "e", lambda: [("run", wire.raw("as it is"))], run=later)
    writer.tick(BEGAN)
    assert waiting
    assert not list(tmp_path.iterdir()), "the caller does not wait for the disk"
    takes = False
    writer.row(BEGAN, "run", wire.raw("lost"))
    writer.tick(BEGAN + 1)
    assert "too slow" in writer.trouble
    takes = True
    writer.tick(BEGAN + FRAME_S)
    assert not writer.trouble
    writer.close()
    for work in waiting:
        work()
    recording = Recording.open(tmp_path)
    assert len(recording.frames) == 2
    assert state_at(recording, BEGAN + FRAME_S) == {"run": "as it is"}


def test_rows_are_compressed_where_the_disk_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[list[Change]] = []
    monkeypatch.setattr(Packer, "pack", lambda self, changes: bytes(packed.append(list(changes)) or b""))
    waiting: list[Callable[[], None]] = []
    writer = Writer(tmp_path, "e", lambda: [("run", wire.raw("up"))], run=lambda work: waiting.append(work) or True)
    writer.tick(BEGAN)
    writer.row(BEGAN + 1, "run", wire.raw("down"))
    writer.tick(BEGAN + 2)
    assert len(waiting) == 2
    assert not packed
    for work in waiting:
        work()
    writer.close()
    waiting[-1]()
    assert packed == [[Change(BEGAN, "run", wire.raw("up"))], [Change(BEGAN + 1, "run", wire.raw("down"))]]


def test_files_are_private(begin: Callable[..., Run], tmp_path: Path) -> None:
    begin(tmp_path / "new")
    (file,) = (tmp_path / "new").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_disk_error_is_logged_once_and_retried(
    begin: Callable[..., Run], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "recordings"
    blocked.write_text("a file stands where the directory belongs")
    run = begin(blocked)
    run.put("run", "lost")
    run.wait(3 * FRAME_S)
    assert "Nothing is recorded" in run.writer.trouble
    assert len([record for record in caplog.records if "nothing is recorded" in record.message]) == 1
    blocked.unlink()
    run.put("run", "kept")
    run.wait(FRAME_S)
    assert not run.writer.trouble
    run.writer.close()
    assert state_at(Recording.open(blocked), run.now) == {"run": "kept"}


def test_damaged_file_is_readable_up_to_the_damage(begin: Callable[..., Run], tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.put("run", "kept")
    run.wait(FRAME_S + 1)
    run.writer.close()
    (file,) = tmp_path.iterdir()
    frames = Recording.open(tmp_path).frames
    body = bytearray(file.read_bytes())
    body[frames[1].begin] = 99
    file.write_bytes(body)
    recording = Recording.open(tmp_path)
    assert len(recording.frames) == 1
    assert "damaged" in recording.damaged[0]
    assert state_at(recording, BEGAN + 5) == {"run": "kept"}


@pytest.mark.parametrize("at", [-1.0, math.nan, math.inf, 1e18])
def test_invalid_time_is_damage(at: float) -> None:
    assert [change.at for change in Unpacker().unpack(Packer().pack([Change(BEGAN, "run")]))] == [BEGAN]
    with pytest.raises(ProtocolError, match="damaged: the time of a row is not valid"):
        list(Unpacker().unpack(Packer().pack([Change(at, "run")])))
    with pytest.raises(ProtocolError, match="damaged"):
        read_head(file_format.encode_block(Kind.FRAME, at, b""))


@pytest.mark.parametrize("content", [b"", b"hello", MAGIC, MAGIC + b"\xff" * 40, os.urandom(100)])
def test_file_that_is_no_recording_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.rec"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="no recording"):
        Recording.open(file)
    with pytest.raises(ConfigError):
        Recording.open(tmp_path / "nosuch.rec")


@given(st.binary(max_size=200))
def test_random_bytes_raise_only_protocol_errors(data: bytes) -> None:
    for read in (lambda: read_head(data), lambda: list(Unpacker().unpack(data))):
        try:
            read()
        except ProtocolError:
            continue


def test_similar_rows_compress_well() -> None:
    packer = Packer()

    def rows() -> Iterator[Change]:
        for number in range(600):
            value = {"type": "unit", "unit": f"web-{number % 200}", "status": "works", "cpu_percent": number * 0.37}
            yield Change(BEGAN + number, f"unit/web-{number % 200}", wire.raw(value))

    plain = sum(len(msgspec.msgpack.encode(change)) for change in rows())
    assert len(packer.pack(rows())) < plain / 3
