"""How the tensors of a version are distributed over safetensors files. Does not import torch.

Invariants:
- the same names, types and shapes give the same files with the same headers, whatever the values are: two versions of a
  model differ only in the bytes of their tensors;
- a tensor is in one file; a file is larger than the limit only if it has a single tensor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

INDEX_FILE = "model.safetensors.index.json"
ONE_FILE = "model.safetensors"
SUFFIX = ".safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
"""Beside the weights of a checkpoint: the state of the optimizer."""
CRITIC_FILE = "critic.safetensors"
"""Beside the weights of a checkpoint: weights and optimizer state of the critic, if there is one."""
_ALIGNMENT = 8


class Numbers(NamedTuple):
    """Type and shape of a tensor."""

    dtype: str
    """The name of the type in safetensors: `BF16`, `F32`."""
    shape: tuple[int, ...]
    bytes: int


class File(NamedTuple):
    """One file: its header, then its tensors in this order without gaps."""

    name: str
    header: bytes
    tensors: tuple[str, ...]
    bytes: int


def files_of(tensors: Mapping[str, Numbers], limit_bytes: int) -> list[File]:
    """The files of a model, in the order of its tensors."""
    groups: list[list[str]] = []
    room = 0
    # Wider types first, so that every tensor begins at a multiple of its own width.
    for name in sorted(tensors, key=lambda one: -_width(tensors[one])):
        size = tensors[name].bytes
        if not groups or size > room:
            groups.append([])
            room = limit_bytes
        groups[-1].append(name)
        room -= size
    count = len(groups)
    names = [ONE_FILE] if count == 1 else [f"model-{at:05}-of-{count:05}{SUFFIX}" for at in range(1, count + 1)]
    return [_file(name, group, tensors) for name, group in zip(names, groups, strict=True)]


def index_of(files: list[File]) -> bytes:
    """`model.safetensors.index.json`, by which readers find the file of a tensor."""
    places = {name: file.name for file in files for name in file.tensors}
    total = sum(file.bytes - len(file.header) for file in files)
    return json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=1, sort_keys=True).encode()


class Place(NamedTuple):
    """The place of a tensor in a file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    """The offset in the file."""
    end: int


def header_bytes(start: bytes | bytearray | memoryview) -> int:
    """The size of a file's header. `start` has at least the first eight bytes of the file."""
    return 8 + int.from_bytes(start[:8], "little")


def places_of(start: bytes | bytearray | memoryview, size: int) -> dict[str, Place]:
    """The tensors of a file of this size; `start` has its whole header. Raises ValueError, with the reason, if the
    header is wrong."""
    length = header_bytes(start)
    if not 8 <= length <= min(len(start), size):
        raise ValueError("it ends within its header")
    try:
        entries = msgspec.json.decode(start[8:length], type=dict[str, _Entry])
    except (msgspec.MsgspecError, UnicodeDecodeError) as broken:
        raise ValueError(f"its header cannot be read: {broken}") from broken
    found: dict[str, Place] = {}
    at = 0
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        begin, end = entry.data_offsets
        if begin != at or end < begin:
            raise ValueError(f"{name} does not follow the tensor before it")
        found[name] = Place(entry.dtype, entry.shape, length + begin, length + end)
        at = end
    if length + at != size:
        raise ValueError("its size is not that of its tensors")
    return found


class _Entry(msgspec.Struct):
    """The header's entry of a tensor. The entry of the file's metadata has none of these fields."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    data_offsets: tuple[int, int] = (0, 0)


def _file(name: str, group: list[str], tensors: Mapping[str, Numbers]) -> File:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for one in group:
        numbers = tensors[one]
        entries[one] = {
            "dtype": numbers.dtype,
            "shape": list(numbers.shape),
            "data_offsets": [at, at + numbers.bytes],
        }
        at += numbers.bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    return File(name, header, tuple(group), len(header) + at)


def _width(numbers: Numbers) -> int:
    count = 1
    for size in numbers.shape:
        count *= size
    return numbers.bytes // count if count else 0
