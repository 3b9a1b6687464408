"""Reads AMD cards from sysfs: their list from the topology of KFD, their use from their DRM devices.

* A program is pointed to a card by the card's place in the topology, because ROCR counts in this order. * A file that
is missing leaves its number at zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentrl.host.device_source import Measured
from agentrl.protocol.messages import Device

_XGMI = 11
"""The type of a fast link between cards (io_links)."""


@dataclass(frozen=True)
class _Card:
    device: Device
    gpu_id: str
    drm: Path


class Rocm:
    def __init__(self, environ: Mapping[str, str], sysfs: Path = Path("/sys")) -> None:
        self.problem = ""
        self._allowed = environ.get("ROCR_VISIBLE_DEVICES")
        self._kfd = sysfs / "class/kfd/kfd"
        self._drm = sysfs / "class/drm"
        self._cards: list[_Card] = []

    def devices(self) -> tuple[Device, ...]:
        nodes = sorted(_entries(self._kfd / "topology/nodes"), key=lambda node: int(node.name))
        cards = [node for node in nodes if _number(node / "gpu_id")]
        island = _islands(cards)
        self._cards = []
        for place, node in enumerate(cards):
            facts = _properties(node / "properties")
            drm = self._drm / f"renderD{facts.get('drm_render_minor', 0)}" / "device"
            unique = facts.get("unique_id", 0)
            id = (
                f"GPU-{unique:016x}" if unique else f"GPU-at-{facts.get('domain', 0):x}-{facts.get('location_id', 0):x}"
            )
            name = _line(drm / "product_name") or _line(node / "name")
            memory = _number(drm / "mem_info_vram_total")
            device = Device(id, str(place), "rocm", name, memory, island[node.name])
            if self._allowed is None or {str(place), id} & {one.strip() for one in self._allowed.split(",")}:
                self._cards.append(_Card(device, str(_number(node / "gpu_id")), drm))
        return tuple(card.device for card in self._cards)

    def measure(self) -> tuple[Measured, ...]:
        return tuple(
            Measured(
                card.device.id,
                memory_used_bytes=_number(card.drm / "mem_info_vram_used"),
                busy_percent=float(_number(card.drm / "gpu_busy_percent")),
                temperature_c=_hottest(card.drm),
                pids=self._pids(card),
            )
            for card in self._cards
        )

    def _pids(self, card: _Card) -> tuple[int, ...]:
        """The processes with memory on the card."""
        return tuple(
            int(process.name)
            for process in sorted(_entries(self._kfd / "proc"))
            if process.name.isdecimal() and _number(process / f"vram_{card.gpu_id}")
        )


def _islands(cards: list[Path]) -> dict[str, str]:
    """For each node, the first node of the group that it reaches by XGMI; empty if it reaches none."""
    links = {
        card.name: {
            str(facts.get("node_to"))
            for link in _entries(card / "io_links")
            if (facts := _properties(link / "properties")).get("type") == _XGMI
        }
        for card in cards
    }
    island = {name: name for name in links}
    for name, others in links.items():
        for other in others & links.keys():
            old, new = island[other], island[name]
            island = {one: new if first == old else first for one, first in island.items()}
    shared = [*island.values()]
    return {name: f"xgmi {first}" if shared.count(first) > 1 else "" for name, first in island.items()}


def _hottest(drm: Path) -> float:
    found = [_number(path / "temp1_input") for path in _entries(drm / "hwmon")]
    return max(found, default=0) / 1000


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path) -> int:
    text = _line(path)
    return int(text) if text.isdecimal() else 0


def _properties(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in _line(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
