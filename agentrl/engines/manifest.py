"""The manifest of one version of the weights: its files with their hashes, and the canary.

Invariants: bytes that do not agree with the manifest are never loaded; the bytes that are loaded are those that were
checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from agentrl.engines.canary import Canary
from agentrl.engines.interface import WeightsRefusedError
from agentrl.engines.safetensors_layout import SUFFIX
from agentrl.errors import DiskError
from agentrl.files.deltas import Delta
from agentrl.files.pieces import Content, content_of

MANIFEST_FILE = "manifest.json"
CONFIG_FILE = "config.json"
READERS = 2
"""Files that are read at the same time: most of the time goes into their hashes."""
READ_BYTES = 4 << 20


class Manifest(msgspec.Struct, frozen=True):
    """The content of `manifest.json`, and the `manifest` of a Publication."""

    files: dict[str, Content]
    canary: Canary = msgspec.field(default_factory=Canary)
    deltas: dict[str, Delta] = {}
    """Of files of which a host with the version before needs the difference only."""

    @property
    def weights(self) -> list[str]:
        """The files that have tensors."""
        return sorted(name for name in self.files if name.endswith(SUFFIX))


def describe(directory: Path, names: Iterable[str], canary: Canary | None = None) -> Manifest:
    """The manifest of files as they are now, for the writer of weights."""
    return Manifest({name: content_of(directory / name) for name in names}, canary or Canary())


def write(directory: Path, manifest: Manifest) -> None:
    (directory / MANIFEST_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def read(directory: Path) -> Manifest:
    """Raises WeightsRefusedError if the manifest is missing or damaged."""
    file = directory / MANIFEST_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise WeightsRefusedError(f"{directory} has no {MANIFEST_FILE}.") from None
    except OSError as broken:
        raise DiskError(f"{file} cannot be read: {broken.strerror}.") from broken
    except msgspec.MsgspecError as broken:
        raise WeightsRefusedError(f"{file} is damaged: {broken}.") from broken


def read_verified(directory: Path, manifest: Manifest) -> dict[str, bytearray]:
    """The contents of all files of the manifest. They are hashed while they are read, several at a time. Raises
    WeightsRefusedError, which names every wrong file."""
    contents: dict[str, bytearray] = {}

    def same(file: Path, entry: Content) -> bool:
        # In memory that may be written, as tensors want it.
        contents[file.name] = data = bytearray(entry.bytes)
        found, left = hashlib.blake2b(), memoryview(data)
        with file.open("rb", buffering=0) as opened:
            while left and (count := opened.readinto(left[:READ_BYTES])):
                found.update(left[:count])
                left = left[count:]
        return not left and found.hexdigest() == entry.blake2b

    _check_all(directory, manifest, same)
    return contents


def verify(directory: Path, manifest: Manifest) -> None:
    """The same check without the contents: files of any size are read in pieces."""

    def same(file: Path, entry: Content) -> bool:
        with file.open("rb") as data:
            return hashlib.file_digest(data, hashlib.blake2b).hexdigest() == entry.blake2b

    _check_all(directory, manifest, same)


def _check_all(directory: Path, manifest: Manifest, same: Callable[[Path, Content], bool]) -> None:
    def problem(name: str) -> str:
        entry = manifest.files[name]
        if Path(name).name != name:
            return f"{name!r} is no plain file name"
        try:
            size = (directory / name).stat().st_size
            # Sizes are compared first: a file that is still being written need not be read.
            if size != entry.bytes:
                return f"{name} has {size} bytes, not {entry.bytes}"
            return "" if same(directory / name, entry) else f"{name} has another content than was written"
        except OSError as broken:
            return f"{name} cannot be read ({broken.strerror})"

    with ThreadPoolExecutor(max_workers=READERS, thread_name_prefix="verify") as pool:
        wrong = [found for found in pool.map(problem, manifest.files) if found]
    if wrong:
        raise WeightsRefusedError(f"The weights in {directory} are not as announced: {'; '.join(wrong)}.")
