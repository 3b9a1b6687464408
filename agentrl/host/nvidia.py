"""Reads NVIDIA cards and their MIG slices through NVML.

* No failure of one card hides the others.
* An agent that got only some cards (by CUDA_VISIBLE_DEVICES, as in a cluster's allocation) assigns only these. * A
whole card is named by its number in the order of buses, because some programs can read only numbers; a slice is named
by its id.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.host.device_source import Measured
from agentrl.protocol.messages import Device

_NODE = re.compile(r"nvidia\d+")


@dataclass(frozen=True)
class _Card:
    """A card, or a slice of one."""

    device: Device
    handle: Any
    parent: Any = None
    """The handle of the card of a slice."""


class Nvidia:
    def __init__(self, environ: Mapping[str, str], library: Any = None, nodes: Path = Path("/dev")) -> None:
        self.problem = ""
        self._allowed = environ.get("CUDA_VISIBLE_DEVICES")
        self._nodes = nodes
        self._library = library
        self._ready = False
        self._cards: list[_Card] = []

    def devices(self) -> tuple[Device, ...]:
        """Read the list again: slices are made and removed while an agent runs."""
        self.problem, self._cards = "", []
        if self._start():
            whole = list(self._whole_cards())
            islands = self._islands(whole)
            for card in whole:
                self._cards += self._parts(card, islands)
            self._cards = [card for card in self._cards if self._is_allowed(card)]
        return tuple(card.device for card in self._cards)

    def measure(self) -> tuple[Measured, ...]:
        return tuple(self._measure(card) for card in self._cards)

    def _start(self) -> bool:
        if self._ready:
            return True
        if self._library is None:
            import pynvml

            self._library = pynvml
        try:
            self._library.nvmlInit()
        except self._library.NVMLError as failed:
            present = sum(1 for name in _names(self._nodes) if _NODE.fullmatch(name))
            self.problem = f"NVML does not start, but the host has {present} NVIDIA cards: {failed}." if present else ""
            return False
        self._ready = True
        return True

    def _whole_cards(self) -> Iterator[_Card]:
        nv = self._library
        for number in range(nv.nvmlDeviceGetCount()):
            try:
                handle = nv.nvmlDeviceGetHandleByIndex(number)
                id = _text(nv.nvmlDeviceGetUUID(handle))
            except nv.NVMLError as failed:
                self.problem = f"Card {number} does not answer: {failed}."
                continue
            memory = self._total(handle)
            name = _text(self._or("", nv.nvmlDeviceGetName, handle))
            yield _Card(Device(id, str(number), "cuda", name, memory), handle)

    def _islands(self, cards: list[_Card]) -> dict[str, str]:
        """For each card, the first card of the group that it reaches by NVLink."""
        nv = self._library
        island = {card.device.id: card.device.id for card in cards}
        for place, one in enumerate(cards):
            for other in cards[place + 1 :]:
                pair = one.handle, other.handle, nv.NVML_P2P_CAPS_INDEX_NVLINK
                if self._or(None, nv.nvmlDeviceGetP2PStatus, *pair) == nv.NVML_P2P_STATUS_OK:
                    old, new = island[other.device.id], island[one.device.id]
                    island = {id: new if first == old else first for id, first in island.items()}
        size = [*island.values()]
        return {id: first for id, first in island.items() if size.count(first) > 1}

    def _parts(self, card: _Card, islands: Mapping[str, str]) -> list[_Card]:
        """The slices of a sliced card, otherwise the card itself."""
        nv, whole = self._library, card.device
        if self._or([0], nv.nvmlDeviceGetMigMode, card.handle)[0] != nv.NVML_DEVICE_MIG_ENABLE:
            linked = Device(whole.id, whole.visible, "cuda", whole.name, whole.memory_bytes, islands.get(whole.id, ""))
            return [_Card(linked, card.handle)]
        slices = []
        for place in range(self._or(0, nv.nvmlDeviceGetMaxMigDeviceCount, card.handle)):
            with contextlib.suppress(nv.NVMLError):  # NVML raises for places without a slice
                handle = nv.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, place)
                id = _text(nv.nvmlDeviceGetUUID(handle))
                memory = self._total(handle)
                name = _text(self._or(whole.name, nv.nvmlDeviceGetName, handle))
                slices.append(_Card(Device(id, id, "mig", name, memory), handle, card.handle))
        return slices

    def _is_allowed(self, card: _Card) -> bool:
        if self._allowed is None:
            return True
        names = [name.strip() for name in self._allowed.split(",") if name.strip()]
        # A slice is allowed only by its own id, not by its card. An id may be abbreviated.
        return any(
            name == card.device.visible or (not name.isdecimal() and card.device.id.startswith(name)) for name in names
        )

    def _measure(self, card: _Card) -> Measured:
        nv, handle = self._library, card.handle
        try:
            used = nv.nvmlDeviceGetMemoryInfo(handle).used
        except nv.NVMLError as failed:
            return Measured(card.device.id, not_measured=str(failed))
        whole = card.parent or handle
        rates = self._or(None, nv.nvmlDeviceGetUtilizationRates, handle)
        return Measured(
            card.device.id,
            memory_used_bytes=used,
            # NVML does not measure the use of a slice.
            busy_percent=float(0 if card.parent or rates is None else rates.gpu),
            temperature_c=float(self._or(0, nv.nvmlDeviceGetTemperature, whole, nv.NVML_TEMPERATURE_GPU)),
            pids=tuple(one.pid for one in self._or((), nv.nvmlDeviceGetComputeRunningProcesses, handle)),
        )

    def _total(self, handle: Any) -> int:
        memory = self._or(None, self._library.nvmlDeviceGetMemoryInfo, handle)
        return 0 if memory is None else int(memory.total)

    def _or(self, otherwise: Any, question: Callable[..., Any], *arguments: object) -> Any:
        """The answer of NVML, or the default if the card does not support the query."""
        try:
            return question(*arguments)
        except self._library.NVMLError:
            return otherwise


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
