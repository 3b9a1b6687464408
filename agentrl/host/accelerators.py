"""The accelerators of this host: their list, their use, and the variables that point a unit to its own.

* A separate thread reads them, because the library of a broken card may not answer for minutes. * AGENTRL_DEVICES
declares devices instead of those that are found: `4`, or `4x80GiB,4x80GiB` for two islands of four. * The last
measurement is kept; a device that cannot be measured has the reason.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping

from agentrl.config.byte_sizes import parse_bytes
from agentrl.errors import ConfigError
from agentrl.host import procfs
from agentrl.host.device_source import Measured, Source
from agentrl.host.nvidia import Nvidia
from agentrl.host.rocm import Rocm
from agentrl.protocol.messages import Device, DeviceUse, ProcessInfo

log = logging.getLogger(__name__)

VARIABLE = "AGENTRL_DEVICES"
FIRST_S = 15.0
"""How long the start of an agent waits for the first measurement."""
EVERY_S = 2.0
_ISLAND = re.compile(r"(\d{1,3})(?:x(\w+))?")


class Declared:
    """Devices that a person declares, for tests and for cards that no library lists."""

    problem = ""

    def __init__(self, text: str) -> None:
        self._devices = declared(text)

    def devices(self) -> tuple[Device, ...]:
        return self._devices

    def measure(self) -> tuple[Measured, ...]:
        return tuple(Measured(device.id, not_measured="declared") for device in self._devices)


def declared(text: str) -> tuple[Device, ...]:
    """The devices that `4x80GiB,4x80GiB` means. Raises ConfigError."""
    devices: list[Device] = []
    for island, part in enumerate(part.strip() for part in text.split(",") if part.strip()):
        match = _ISLAND.fullmatch(part)
        try:
            memory = parse_bytes(match[2]) if match is not None and match[2] else 0
        except ValueError:
            match = None
        if match is None:
            raise ConfigError(
                f"{VARIABLE} has {part!r}.",
                hint="It is a number of devices such as 4, or 4x80GiB; commas separate islands.",
            )
        for _ in range(int(match[1])):
            id = str(len(devices))
            size = memory if isinstance(memory, int) else 0
            devices.append(Device(id, id, "declared", memory_bytes=size, island=f"island {island}"))
    return tuple(devices)


def source_of(environ: Mapping[str, str]) -> Source:
    """The devices of this machine that the environment allows."""
    if VARIABLE in environ:
        return Declared(environ[VARIABLE])
    rocm = Rocm(environ)
    return rocm if rocm.devices() else Nvidia(environ)


class Accelerators:
    """The devices of this host. `start` returns after they were read once."""

    def __init__(self, source: Source | None = None, every_s: float = EVERY_S) -> None:
        self.devices: tuple[Device, ...] = ()
        self.problem = ""
        """Why devices may be missing: a sentence."""
        self._source = source
        self._every_s = every_s
        self._measured: tuple[Measured, ...] = ()
        self._read_once = threading.Event()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Raises ConfigError if the declared devices are wrong."""
        self._source = self._source or source_of(os.environ)
        threading.Thread(target=self._read, name="accelerators", daemon=True).start()
        if not self._read_once.wait(FIRST_S):
            self.problem = f"The driver of the accelerators has not answered for {FIRST_S:.0f} s."

    def stop(self) -> None:
        self._stopping.set()

    def _read(self) -> None:
        source = self._source
        assert source is not None
        while not self._stopping.is_set():
            try:
                self.devices = source.devices()
                self._measured = source.measure() if self.devices else ()
                self.problem = source.problem
            except Exception as broken:  # a thread boundary: a library that fails must not end the measurements
                if (problem := f"The accelerators cannot be read: {broken}.") != self.problem:
                    log.exception("The accelerators cannot be read.")
                self.problem = problem
            self._read_once.set()
            self._stopping.wait(self._every_s)

    def use(self, incarnation_of: Callable[[int], str]) -> tuple[DeviceUse, ...]:
        """The newest measurement of each device."""
        return tuple(
            DeviceUse(
                id=one.id,
                memory_used_bytes=one.memory_used_bytes,
                busy_percent=one.busy_percent,
                temperature_c=one.temperature_c,
                processes=tuple(_process(pid, incarnation_of) for pid in one.pids),
                not_measured=one.not_measured,
            )
            for one in self._measured
        )

    def missing(self, wanted: Iterable[str]) -> str:
        """A sentence if one of these devices does not exist any more."""
        known = {device.id for device in self.devices}
        gone = next((id for id in wanted if id not in known), "")
        return f"The device {gone} does not exist here any more." if gone else ""

    def variables(self, wanted: Iterable[str]) -> dict[str, str]:
        """The variables that point a program to these devices. A program without devices gets no such variables: it
        sees what the host agent sees, as before devices were assigned.
        """
        by_id = {device.id: device for device in self.devices}
        chosen = [by_id[id] for id in wanted if id in by_id]
        if not chosen:
            return {}
        names = ",".join(device.visible for device in chosen)
        if chosen[0].kind == "rocm":
            # HIP counts among the devices that ROCR shows, and reads CUDA_VISIBLE_DEVICES as its own variable.
            places = ",".join(str(place) for place in range(len(chosen)))
            return {"ROCR_VISIBLE_DEVICES": names, "HIP_VISIBLE_DEVICES": places, "CUDA_VISIBLE_DEVICES": places}
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": names}


def _process(pid: int, incarnation_of: Callable[[int], str]) -> ProcessInfo:
    stat = procfs.read_stat(pid)
    if stat is None:
        return ProcessInfo(pid, "", why="not visible from here")
    return ProcessInfo(pid, procfs.command(pid), stat.start_ticks, incarnation_of(pid))
