"""The manifest of one version of the weights: its files with their hashes, and the canary.

Invariants: bytes that do not agree with the manifest are never loaded; the loaded bytes are the checked bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec

from agentrl.engines.canary import Canary
from agentrl.engines.interface import WeightsRefusedError
from agentrl.engines.safetensors_layout import SUFFIX
from agentrl.errors import DiskError
from agentrl.files.deltas import Delta
from agentrl.files.pieces import Content, Take, content_of, read_checked

MANIFEST_FILE = "manifest.json"
CONFIG_FILE = "config.json"


class Base(msgspec.Struct, frozen=True):
    """Whole weights to which versions of adapters are added."""

    name: str
    """The name of its directory, which is beside those of the versions."""
    files: dict[str, Content]

    @property
    def weights(self) -> dict[str, Content]:
        """The files that have tensors."""
        return {name: content for name, content in sorted(self.files.items()) if name.endswith(SUFFIX)}

    def beside(self, version: Path) -> Path:
        """The directory of the base, for a version in this directory. Raises WeightsRefusedError."""
        if Path(self.name).name != self.name:
            raise WeightsRefusedError(f"{self.name!r} is no plain name of a directory.")
        return version.parent / self.name


class Manifest(msgspec.Struct, frozen=True):
    """The content of `manifest.json`, and the `manifest` of a Publication."""

    files: dict[str, Content]
    canary: Canary = msgspec.field(default_factory=Canary)
    deltas: dict[str, Delta] = {}
    """The deltas of files, for hosts that have the previous version."""
    base: Base | None = None
    """If the version consists of adapters: the weights that they change."""

    @property
    def weights(self) -> list[str]:
        """The files that have tensors."""
        return sorted(name for name in self.files if name.endswith(SUFFIX))


def describe(directory: Path, names: Iterable[str], canary: Canary | None = None) -> Manifest:
    """The manifest of the present files, for the writer of weights."""
    return Manifest({name: content_of(directory / name) for name in names}, canary or Canary())


def write(directory: Path, manifest: Manifest) -> None:
    (directory / MANIFEST_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def read(directory: Path) -> Manifest:
    """The manifest in a directory. Raises WeightsRefusedError if it is missing or damaged."""
    file = directory / MANIFEST_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise WeightsRefusedError(f"{directory} has no {MANIFEST_FILE}.") from None
    except OSError as broken:
        raise DiskError(f"{file} cannot be read: {broken.strerror}.") from broken
    except msgspec.MsgspecError as broken:
        raise WeightsRefusedError(f"{file} is damaged: {broken}.") from broken


def read_file(directory: Path, manifest: Manifest, name: str) -> bytes:
    """A small file. Raises WeightsRefusedError if it is not as announced."""
    if (content := manifest.files.get(name)) is None:
        raise WeightsRefusedError(f"The manifest of {directory} does not name {name}.")
    data = bytearray(content.bytes)

    def keep(at: int, part: memoryview) -> None:
        data[at : at + len(part)] = part

    refuse_wrong(directory, problems(directory, {name: content}, {name: keep}))
    return bytes(data)


def verify(directory: Path, manifest: Manifest) -> None:
    """Checks all files of a version. Raises WeightsRefusedError, which names every wrong file."""
    refuse_wrong(directory, problems(directory, manifest.files))


def problems(
    directory: Path, files: Mapping[str, Content], takes: Mapping[str, Take] = MappingProxyType({})
) -> list[str]:
    """The problem of each wrong file. `takes` are called with the correct pieces of files while they are read."""
    return [found for name, content in files.items() if (found := _problem(directory, name, content, takes.get(name)))]


def refuse_wrong(directory: Path, wrong: Sequence[str]) -> None:
    if wrong:
        raise WeightsRefusedError(f"The weights in {directory} are not as announced: {'; '.join(wrong)}.")


def _problem(directory: Path, name: str, content: Content, take: Take | None) -> str:
    if Path(name).name != name:
        return f"{name!r} is no plain file name"
    try:
        size = (directory / name).stat().st_size
        # Sizes are compared first: a file that is still being written need not be read.
        if size != content.bytes:
            return f"{name} has {size} bytes, not {content.bytes}"
        same = read_checked(directory / name, content, *([take] if take else []))
        return "" if same else f"{name} has another content than was written"
    except OSError as broken:
        return f"{name} cannot be read ({broken.strerror})"
