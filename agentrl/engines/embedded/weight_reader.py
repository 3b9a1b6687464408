"""Reads the tensors of safetensors files into room that was made for them, in one pass over the files.

A piece is read, checked, and turned into float32 where the model has its weights, while it is in the cache of the
processor; several threads do so at a time. So no second copy of a file is in memory.

Invariants:
- what gets into a tensor is what was checked;
- a file is described by its header, which is checked before anything is made of it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from agentrl.engines import manifest as manifests
from agentrl.engines.interface import WeightsRefusedError
from agentrl.engines.safetensors_layout import CRITIC_FILE, OPTIMIZER_FILE, Place, header_bytes, places_of
from agentrl.files.pieces import Content, content_of, read_start

Room = Callable[[Mapping[str, Place]], Mapping[str, Tensor]]
"""Makes contiguous tensors for the named ones; what gets none is left out. Raises WeightsRefusedError for tensors that
the model does not have."""
_TYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""By the names that safetensors has."""


def read_tensors(directory: Path, files: Mapping[str, Content], room: Room) -> Mapping[str, Tensor]:
    """The tensors of all files. Raises WeightsRefusedError, which names every wrong file."""
    try:
        of_files = {name: _places(directory, name, content) for name, content in files.items()}
        tensors = room({name: place for places in of_files.values() for name, place in places.items()})
        takes = {name: _Filling(places, tensors).take for name, places in of_files.items()}
    except WeightsRefusedError:
        # The reason is that a file is damaged, if one is.
        manifests.refuse_wrong(directory, manifests.problems(directory, files))
        raise
    manifests.refuse_wrong(directory, manifests.problems(directory, files, takes))
    return tensors


def contents_of(directory: Path) -> dict[str, Content]:
    """The weights of a directory that was not published, as they are now; it may be a checkpoint."""
    found = sorted(directory.glob("*.safetensors"))
    return {file.name: content_of(file) for file in found if file.name not in (OPTIMIZER_FILE, CRITIC_FILE)}


def _places(directory: Path, name: str, content: Content) -> dict[str, Place]:
    try:
        start = read_start(directory / name, content, 8)
        start = read_start(directory / name, content, min(header_bytes(start), content.bytes))
        places = places_of(start, content.bytes)
        for one, place in places.items():
            _check(one, place)
    except (ValueError, OSError) as broken:
        raise WeightsRefusedError(f"{directory / name} is not a complete safetensors file: {broken}.") from broken
    return places


def _check(name: str, place: Place) -> None:
    if (dtype := _TYPES.get(place.dtype)) is None:
        raise ValueError(f"{name} is of the type {place.dtype}")
    if place.end - place.begin != math.prod(place.shape) * dtype.itemsize:
        raise ValueError(f"{name} has another size than its shape")
    if place.begin % dtype.itemsize:
        raise ValueError(f"{name} begins between two numbers")


class _Filling:
    """Fills the tensors of one file from pieces of it, in any order and by several threads."""

    def __init__(self, places: Mapping[str, Place], room: Mapping[str, Tensor]) -> None:
        # Places are in the order of the file.
        wanted = [(place, name) for name, place in places.items() if name in room and place.end > place.begin]
        self._places = [place for place, _ in wanted]
        self._ends = [place.end for place in self._places]
        self._flat = [room[name].detach().view(-1) for _, name in wanted]

    def take(self, at: int, data: memoryview) -> None:
        end = at + len(data)
        for number in range(bisect.bisect_right(self._ends, at), len(self._places)):
            place = self._places[number]
            if place.begin >= end:
                return
            dtype = _TYPES[place.dtype]
            low, high = max(at, place.begin), min(end, place.end)
            numbers = torch.frombuffer(data, dtype=dtype, offset=low - at, count=(high - low) // dtype.itemsize)
            first = (low - place.begin) // dtype.itemsize
            self._flat[number][first : first + len(numbers)].copy_(numbers)
