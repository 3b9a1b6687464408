"""The manifest of one version of the weights: its files, and the canary.

The canary is a fixed set of sequences with the writer's log-probs: `log_probs[i][j]` belongs to `ids[i][j + 1]` at
temperature 1.

Invariants: bytes that do not agree with the manifest are never loaded; the bytes that are loaded are those that were
checked.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from agentrl.engines.interface import WeightsRefusedError
from agentrl.errors import DiskError

MANIFEST_FILE = "manifest.json"
WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
MEAN_LIMIT = 1e-3
"""Largest mean |difference| of log-probs in float32; beyond it engine and trainer compute different models."""
MEAN_LIMIT_HALF = 2e-2
"""The same for an engine that computes in 16 bits."""
P99_OVER_MEAN = 10.0
"""If rounding is the only difference, 99 of 100 tokens differ by less than this many times the limit of the mean."""
K3_OVER_SQUARE = 10.0
"""K3 is half a mean square, so its limit is this many times the square of that limit."""
LARGEST_OVER_MEAN = 20.0
"""A single token of the canary may differ by this many times the limit of the mean; more is reported."""


class FileEntry(msgspec.Struct, frozen=True):
    """Size and hash that a file must have."""

    bytes: int
    blake2b: str


class Canary(msgspec.Struct, frozen=True):
    """The probe set."""

    ids: list[list[int]] = msgspec.field(default_factory=list)
    log_probs: list[list[float]] = msgspec.field(default_factory=list)


class Manifest(msgspec.Struct, frozen=True):
    """The content of `manifest.json`, and the `manifest` of a Publication."""

    files: dict[str, FileEntry]
    canary: Canary = msgspec.field(default_factory=Canary)


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How much two computations of the canary differ."""

    tokens: int = 0
    mean: float = 0.0
    largest: float = 0.0
    limit: float = MEAN_LIMIT
    """The limit of the mean for the precision that the engine computes in."""

    def problem(self) -> str:
        """Empty, or why the weights must not serve. Not-a-number never agrees."""
        if self.mean <= self.limit:
            return ""
        return (
            f"the canary differs: mean |log-prob difference| {self.mean:.3g} over {self.tokens} tokens, "
            f"limit {self.limit:g}, largest {self.largest:.3g}"
        )

    @property
    def largest_over_limit(self) -> float:
        """Above 1 if one token differs by more than the precision explains. Such weights may still serve."""
        return self.largest / (LARGEST_OVER_MEAN * self.limit)


def describe(directory: Path, names: Iterable[str], canary: Canary | None = None) -> Manifest:
    """The manifest of files as they are now, for the writer of weights."""
    return Manifest({name: _entry((directory / name).read_bytes()) for name in names}, canary or Canary())


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


def read_verified(directory: Path, manifest: Manifest) -> dict[str, bytes]:
    """The contents of all files of the manifest. Raises WeightsRefusedError, which names every wrong file."""
    contents: dict[str, bytes] = {}

    def same(file: Path, entry: FileEntry) -> bool:
        contents[file.name] = data = file.read_bytes()
        return _entry(data) == entry

    _check_all(directory, manifest, same)
    return contents


def verify(directory: Path, manifest: Manifest) -> None:
    """The same check without the contents: files of any size are read in pieces."""

    def same(file: Path, entry: FileEntry) -> bool:
        with file.open("rb") as data:
            return hashlib.file_digest(data, hashlib.blake2b).hexdigest() == entry.blake2b

    _check_all(directory, manifest, same)


def _check_all(directory: Path, manifest: Manifest, same: Callable[[Path, FileEntry], bool]) -> None:
    wrong: list[str] = []
    for name, entry in manifest.files.items():
        if Path(name).name != name:
            wrong.append(f"{name!r} is no plain file name")
            continue
        try:
            size = (directory / name).stat().st_size
            # Sizes are compared first: a file that is still being written need not be read.
            if size != entry.bytes:
                wrong.append(f"{name} has {size} bytes, not {entry.bytes}")
            elif not same(directory / name, entry):
                wrong.append(f"{name} has another content than was written")
        except OSError as broken:
            wrong.append(f"{name} cannot be read ({broken.strerror})")
    if wrong:
        raise WeightsRefusedError(f"The weights in {directory} are not as announced: {'; '.join(wrong)}.")


def compare(canary: Canary, ours: Sequence[Sequence[float]], limit: float = MEAN_LIMIT) -> Agreement:
    """How much our log-probs of the canary differ from the writer's. Raises WeightsRefusedError if counts differ."""
    theirs = canary.log_probs
    if [len(one) for one in theirs] != [len(one) for one in ours]:
        raise WeightsRefusedError("The canary has another number of log-probs than of tokens to predict.")
    differences = [b - a for one, other in zip(theirs, ours, strict=True) for a, b in zip(one, other, strict=True)]
    if not differences:
        return Agreement(limit=limit)
    if not all(map(math.isfinite, differences)):
        nan = float("nan")
        return Agreement(tokens=len(differences), mean=nan, largest=nan, limit=limit)
    sizes = [abs(difference) for difference in differences]
    return Agreement(tokens=len(sizes), mean=math.fsum(sizes) / len(sizes), largest=max(sizes), limit=limit)


def _entry(data: bytes) -> FileEntry:
    return FileEntry(len(data), hashlib.blake2b(data).hexdigest())
