"""Whole weights from a base and the adapters of a version.

The base is read and checked once, and stays in memory: for a later version only its adapters are read. Weights that the
adapters do not change are those of the base, without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from agentrl.engines import manifest as manifests
from agentrl.engines.adapters import ADAPTER_CONFIG, ADAPTER_FILE, config_of, name_in, pairs_of
from agentrl.engines.embedded.weight_reader import Room, read_tensors
from agentrl.engines.interface import WeightsRefusedError
from agentrl.engines.manifest import Base, Manifest
from agentrl.engines.safetensors_layout import Place


class KeptBase:
    """Keeps the base of the last version that had one."""

    def __init__(self) -> None:
        self._base: Base | None = None
        self._tensors: Mapping[str, Tensor] = {}

    def forget(self) -> None:
        self._base, self._tensors = None, {}

    def tensors(self, directory: Path, base: Base, room: Room) -> Mapping[str, Tensor]:
        """The tensors of a base. Raises WeightsRefusedError if its files are not as announced."""
        if base != self._base:
            self.forget()
            self._tensors = read_tensors(directory, base.weights, room)
            self._base = base
        return self._tensors


def room_of_any(places: Mapping[str, Place]) -> dict[str, Tensor]:
    return {name: torch.empty(place.shape) for name, place in places.items()}


def adapted(directory: Path, manifest: Manifest, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a version, by the names of the base. Raises WeightsRefusedError."""
    config = config_of(manifests.read_file(directory, manifest, ADAPTER_CONFIG), directory / ADAPTER_CONFIG)
    adapters = read_tensors(directory, {ADAPTER_FILE: manifest.files[ADAPTER_FILE]}, room_of_any)
    try:
        pairs = pairs_of(adapters)
    except ValueError as wrong:
        raise WeightsRefusedError(f"{directory / ADAPTER_FILE} has no adapters: {wrong}.") from wrong
    found = dict(base)
    for name, (down_name, up_name) in pairs.items():
        down, up = adapters[down_name], adapters[up_name]
        own = name_in(base, name)
        if not own or (*base[own].shape, config.r, config.r) != (
            len(up),
            *down.shape[1:],
            len(down),
            up.shape[1],
        ):
            raise WeightsRefusedError(f"{directory} changes {name}, which its base does not have in this shape.")
        found[own] = torch.addmm(base[own], up, down, alpha=config.scale)
    return found
