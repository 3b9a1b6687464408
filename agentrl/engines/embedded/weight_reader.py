"""Reads the tensors of safetensors files into preallocated tensors, in one pass over the files.

A piece is read, checked, and converted to float32 directly into the model's weights while it is in the processor's
cache; several threads work at a time. So there is never a second copy of a file in memory.

Invariants:
- only checked bytes get into a tensor;
- the header describes a file, and is checked before any tensor is made from it.
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
"""Makes contiguous tensors for the named ones; names without a tensor are not read. Raises WeightsRefusedError for
tensors that the model does not have."""
_TYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Types by their names in safetensors."""


def read_tensors(directory: Path, files: Mapping[str, Content], room: Room) -> Mapping[str, Tensor]:
    """The tensors of all files. Raises WeightsRefusedError, which names every wrong file."""
    try:
        of_files = {name: _places(directory, name, content) for name, content in files.items()}
        tensors = room({name: place for places in of_files.values() for name, place in places.items()})
        takes = {name: _Filling(places, tensors).take for name, places in of_files.items()}
    except WeightsRefusedError:
        # If a file is damaged, that is reported as the reason.
        manifests.refuse_wrong(directory, manifests.problems(directory, files))
        raise
    manifests.refuse_wrong(directory, manifests.problems(directory, files, takes))
    return tensors


def contents_of(directory: Path) -> dict[str, Content]:
    """The present contents of the weights in a directory that was not published, such as a checkpoint."""
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
