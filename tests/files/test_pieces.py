"""A file is checked piece by piece, and described once."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from agentrl.files import pieces
from agentrl.files.pieces import Content, ContentHash, content_of, is_content, read_checked, read_start

SIZE, PIECE = 12_345, 1_000


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pieces, "SMALLEST_BYTES", PIECE)
    (tmp_path / "file").write_bytes(random.Random(0).randbytes(SIZE))
    return tmp_path / "file"


def test_readers_get_the_bytes_of_right_pieces_only(file: Path) -> None:
    content, data, got = content_of(file), file.read_bytes(), bytearray(SIZE)

    def keep(at: int, part: memoryview) -> None:
        assert not any(got[at : at + len(part)]), "each piece is written once"
        got[at : at + len(part)] = part

    assert read_checked(file, content, keep)
    assert got == data
    assert read_start(file, content, PIECE + 1) == data[: PIECE + 1]
    got[:] = bytes(SIZE)
    file.write_bytes(data[: 3 * PIECE + 5] + bytes([data[3 * PIECE + 5] ^ 1]) + data[3 * PIECE + 6 :])
    assert not read_checked(file, content, keep)
    assert not any(got[3 * PIECE : 4 * PIECE])
    assert read_start(file, content, 3 * PIECE) == data[: 3 * PIECE]
    with pytest.raises(ValueError, match="another content"):
        read_start(file, content, 3 * PIECE + 1)
    file.write_bytes(data[:-1])
    assert not is_content(file, content)
    with pytest.raises(OSError, match="became shorter"):
        read_checked(file, content)


def test_a_writer_and_a_reader_describe_a_file_alike(file: Path) -> None:
    found, data, chance = ContentHash(SIZE), file.read_bytes(), random.Random(1)
    while data:
        part = data[: chance.randrange(1, 2 * PIECE)]
        found.update(part)
        data = data[len(part) :]
    assert found.content() == content_of(file)
    assert content_of(file).problem() == ""


def test_descriptions_of_earlier_releases_are_understood(file: Path) -> None:
    """The last release also hashed the whole file, and the one before had no pieces."""
    whole = hashlib.blake2b(file.read_bytes()).hexdigest()
    for listed in (content_of(file).pieces, ()):
        assert is_content(file, Content(SIZE, whole, listed))
        assert not is_content(file, Content(SIZE, "0" * 128, tuple("0" * 32 for _ in listed)))
