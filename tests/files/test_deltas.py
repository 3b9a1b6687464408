"""A delta restores exactly the file that it was made from, or it is refused."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest

from agentrl.files import deltas
from agentrl.files.deltas import DeltaError, apply_delta, write_delta
from agentrl.files.pieces import Content, content_of

SIZE = 2 * deltas.BLOCK_BYTES + 12_345


def changed(data: bytes, *, share: float) -> bytes:
    """The data with this share of its bytes changed; all changes are in the second block or later."""
    now, chance = bytearray(data), random.Random(1)
    for place in chance.sample(range(deltas.BLOCK_BYTES, len(now)), int(share * len(now))):
        now[place] ^= chance.randrange(1, 256)
    return bytes(now)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path, Content]:
    """A file, a later one, and their difference."""
    base, now, delta = (tmp_path / name for name in ("base", "now", "delta"))
    base.write_bytes(random.Random(0).randbytes(SIZE))
    now.write_bytes(changed(base.read_bytes(), share=0.01))
    written = write_delta(base, now, delta, most_bytes=SIZE // 10)
    assert written is not None
    assert written == content_of(delta)
    return base, now, delta, content_of(now)


def got(base: Path, delta: Path, wanted: Content) -> bytes:
    target = base.with_name("got")
    target.write_bytes(bytes(wanted.bytes))
    apply_delta(base, delta, target, wanted)
    return target.read_bytes()


def test_a_delta_is_small_and_gives_the_same_bytes(files: tuple[Path, Path, Path, Content]) -> None:
    base, now, delta, wanted = files
    assert got(base, delta, wanted) == now.read_bytes()
    assert delta.stat().st_size < 0.04 * SIZE


def test_a_wrong_base_and_a_damaged_delta_are_detected(files: tuple[Path, Path, Path, Content]) -> None:
    base, now, delta, wanted = files
    whole, sound = base.read_bytes(), delta.read_bytes()
    base.write_bytes(whole[:-1] + b"\0")
    with pytest.raises(DeltaError, match="do not give the file"):
        got(base, delta, wanted)
    base.write_bytes(whole)
    bomb = zlib.compress(bytes(1 << 24))
    for damaged, sentence in (
        (sound[:-1], "ends within a block"),
        (sound + b"\0\0\0\0", "more blocks than its base"),
        (sound[:2000] + bytes(64) + sound[2064:], "damaged|do not give|another size|within a block"),
        (len(bomb).to_bytes(4, "little") + bomb, "another size"),
        (b"\xff\xff\xff\xff", "ends within a block"),
    ):
        delta.write_bytes(damaged)
        with pytest.raises(DeltaError, match=sentence):
            got(base, delta, wanted)
    delta.write_bytes(sound)
    assert got(base, delta, wanted) == now.read_bytes()


def test_there_is_no_delta_where_it_saves_nothing(files: tuple[Path, Path, Path, Content], tmp_path: Path) -> None:
    base, now, _, _ = files
    target = tmp_path / "none"
    now.write_bytes(random.Random(2).randbytes(SIZE))
    assert write_delta(base, now, target, most_bytes=SIZE // 2) is None
    now.write_bytes(base.read_bytes() + b"\0")
    assert write_delta(base, now, target, most_bytes=SIZE) is None
    assert not target.exists()
