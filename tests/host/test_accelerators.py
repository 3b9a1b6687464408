"""Devices are found, measured and given to units; a unit sees its own and no other."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.host.accelerators import VARIABLE, Accelerators, Declared, declared
from agentrl.host.device_source import Measured
from agentrl.host.nvidia import Nvidia
from agentrl.host.rocm import Rocm
from agentrl.protocol.messages import Device, Exited, HostStats, SpawnFailed
from tests.host.harness import Bench, python, spawn
from tests.waiting import aeventually

GIB = 1 << 30


# ---- declared devices, and units ----


def test_declared_devices_have_sizes_and_islands() -> None:
    assert [device.id for device in declared("3")] == ["0", "1", "2"]
    two = declared("2x80GiB, 1x24GiB")
    assert [(device.memory_bytes // GIB, device.island) for device in two] == [
        (80, "island 0"),
        (80, "island 0"),
        (24, "island 1"),
    ]
    assert declared("") == ()
    for wrong in ("x", "2x", "2xmany", "-1"):
        with pytest.raises(ConfigError, match=VARIABLE):
            declared(wrong)


async def test_unit_sees_its_own_devices_whatever_its_environment_says(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, "4")
    seen = tmp_path / "seen"
    names = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES")
    code = f"import os; open({str(seen)!r}, 'w').write(' '.join(os.environ.get(n, '-') for n in {names!r}))"
    async with bench.tidy_agent() as agent:
        hello = agent.hello()
        assert ([device.id for device in hello.facts.devices], hello.facts.gpus) == (["0", "1", "2", "3"], 4)
        assert [use.id for use in hello.devices] == ["0", "1", "2", "3"]
        order = spawn("web-0", *python(code), env={"CUDA_VISIBLE_DEVICES": "0"})
        agent.receive(type(order)(order.unit, 1, "token", order.spec, "ipc:///nowhere", ("2", "3")))
        ended = await bench.sent.one(Exited)
        assert (ended.exit.code, seen.read_text()) == (0, "PCI_BUS_ID 2,3")
        assert agent.hello().inventory[0].devices == ("2", "3")
    async with bench.agent() as later:
        assert later.hello().inventory[0].devices == ("2", "3"), "the ledger has them"


async def test_unit_without_devices_keeps_what_its_host_agent_sees(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    seen = tmp_path / "seen"
    async with bench.tidy_agent() as agent:
        agent.receive(spawn("web-0", "sh", "-c", f"echo $CUDA_VISIBLE_DEVICES > {seen}"))
        await bench.sent.one(Exited)
    assert seen.read_text() == "7\n"


async def test_a_missing_device_is_reported_at_once_and_no_unit_starts_on_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    async with bench.tidy_agent() as agent:
        order = spawn("web-0", "true")
        agent.receive(type(order)(order.unit, 1, "token", order.spec, "ipc:///nowhere", ("5",)))
        failed = await bench.sent.one(SpawnFailed)
        assert (failed.reason, failed.final) == ("The device 5 does not exist here any more.", False)
        accelerators = agent.services.accelerators
        before = len(bench.sent.messages)
        accelerators.devices = ()
        await aeventually(
            lambda: any(
                not getattr(m, "facts", None).devices for m in bench.sent.messages[before:] if hasattr(m, "facts")
            ),
            what="a hello without the device",
        )


@dataclass
class Scripted:
    """A source whose processes the test decides."""

    pids: tuple[int, ...] = ()
    problem: str = ""

    def devices(self) -> tuple[Device, ...]:
        return (Device("GPU-a", "0", "cuda"),)

    def measure(self) -> tuple[Measured, ...]:
        return (Measured("GPU-a", memory_used_bytes=GIB, pids=self.pids),)


async def test_processes_on_a_device_are_distinguished(bench: Bench) -> None:
    source = Scripted()
    async with bench.tidy_agent() as agent:
        await aeventually(lambda: bench.sent.all(HostStats))
        agent.services.accelerators.stop()
        accelerators = Accelerators(source, every_s=0.02)
        agent.services.accelerators = accelerators
        accelerators.start()
        agent.receive(spawn("web-0", "sleep", "600"))
        unit = await aeventually(lambda: agent.incarnations["web-0.1"].entry.pid)
        source.pids = (unit, os.getpid(), 2**22 + 1)

        def seen_pids() -> dict[int, str] | None:
            stats = bench.sent.all(HostStats)[-1]
            found = {one.pid: one.incarnation for use in stats.devices for one in use.processes}
            return found if unit in found else None

        found = await aeventually(seen_pids, what="the processes in the measurements")
        assert found == {unit: "web-0.1", os.getpid(): "", 2**22 + 1: ""}
        last = bench.sent.all(HostStats)[-1].devices[0]
        assert [bool(one.command) for one in last.processes] == [True, True, False], (
            "the process of an unknown pid has no command"
        )


def test_a_source_that_fails_leaves_a_sentence() -> None:
    class Broken(Declared):
        def measure(self) -> tuple[Measured, ...]:
            raise RuntimeError("the bus is gone")

    accelerators = Accelerators(Broken("2"))
    accelerators.start()
    accelerators.stop()
    assert accelerators.problem == "The accelerators cannot be read: the bus is gone."


# ---- NVIDIA ----


class NvmlError(Exception):
    pass


@dataclass
class Card:
    uuid: str
    links: tuple[int, ...] = ()
    slices: tuple[str, ...] = ()
    broken: bool = False
    pids: tuple[int, ...] = ()


@dataclass
class Some:
    """An answer of NVML with these attributes."""

    total: int = 0
    used: int = 0
    gpu: int = 0
    pid: int = 0


@dataclass
class Nvml:
    """The part of NVML that is used, for cards that this machine does not have."""

    cards: list[Card] = field(default_factory=list)
    NVMLError = NvmlError
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_TEMPERATURE_GPU = 0

    def nvmlInit(self) -> None:
        if not self.cards:
            raise NvmlError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> Any:
        if self.cards[number].broken:
            raise NvmlError("GPU is lost")
        return number

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return handle if isinstance(handle, str) else self.cards[handle].uuid

    def nvmlDeviceGetName(self, handle: Any) -> str:
        return "NVIDIA X"

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Some:
        return Some(total=80 * GIB, used=GIB)

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, _: int) -> int:
        return 0 if other in self.cards[one].links else 5

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        if not self.cards[handle].slices:
            raise NvmlError("Not Supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, place: int) -> str:
        slices = self.cards[handle].slices
        if place >= len(slices):
            raise NvmlError("Not Found")
        return slices[place]

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Some:
        if isinstance(handle, str):
            raise NvmlError("Not Supported")
        return Some(gpu=37)

    def nvmlDeviceGetTemperature(self, handle: Any, _: int) -> int:
        return 61

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Some]:
        return [] if isinstance(handle, str) else [Some(pid=pid) for pid in self.cards[handle].pids]


def test_cards_have_their_islands_and_measurements() -> None:
    cards = [Card("GPU-a", (2,), pids=(7,)), Card("GPU-b"), Card("GPU-c", (0,)), Card("GPU-d", broken=True)]
    nvidia = Nvidia({}, Nvml(cards))
    found = nvidia.devices()
    assert [(device.id, device.visible, device.island) for device in found] == [
        ("GPU-a", "0", "GPU-a"),
        ("GPU-b", "1", ""),
        ("GPU-c", "2", "GPU-a"),
    ]
    assert nvidia.problem == "Card 3 does not answer: GPU is lost."
    assert nvidia.measure()[0] == Measured("GPU-a", GIB, 37.0, 61.0, (7,))


def test_slices_take_the_place_of_their_card() -> None:
    nvidia = Nvidia({}, Nvml([Card("GPU-a", slices=("MIG-1", "MIG-2")), Card("GPU-b")]))
    found = nvidia.devices()
    assert [(device.id, device.visible, device.kind) for device in found] == [
        ("MIG-1", "MIG-1", "mig"),
        ("MIG-2", "MIG-2", "mig"),
        ("GPU-b", "1", "cuda"),
    ]
    assert nvidia.measure()[0] == Measured("MIG-1", GIB, 0.0, 61.0, ())


@pytest.mark.parametrize(
    ("allowed", "ids"),
    [("1", ["GPU-b"]), ("GPU-a", ["GPU-a"]), ("", []), ("1, GPU-aaaa", ["GPU-b"]), ("GPU-", ["GPU-a", "GPU-b"])],
)
def test_agent_gives_away_only_the_cards_of_its_allocation(allowed: str, ids: list[str]) -> None:
    nvidia = Nvidia({"CUDA_VISIBLE_DEVICES": allowed}, Nvml([Card("GPU-a"), Card("GPU-b")]))
    assert [device.id for device in nvidia.devices()] == ids


def test_cards_without_a_driver_leave_a_sentence(tmp_path: Path) -> None:
    nodes = tmp_path / "dev"
    nodes.mkdir()
    assert (Nvidia({}, Nvml(), nodes).devices(), Nvidia({}, Nvml(), nodes).problem) == ((), "")
    (nodes / "nvidia0").touch()
    (nodes / "nvidiactl").touch()
    nvidia = Nvidia({}, Nvml(), nodes)
    assert nvidia.devices() == ()
    assert nvidia.problem == "NVML does not start, but the host has 1 NVIDIA cards: Driver Not Loaded."


def test_the_real_library_answers_or_is_absent() -> None:
    """On any machine with cards, NVML finds devices or reports why it finds none."""
    nvidia = Nvidia({})
    present = any(name.startswith("nvidia") and name[6:].isdecimal() for name in os.listdir("/dev"))
    assert bool(nvidia.devices() or nvidia.problem) == present


# ---- ROCm ----


def test_amd_cards_are_read_from_sysfs(tmp_path: Path) -> None:
    files = {
        "class/kfd/kfd/topology/nodes/0/gpu_id": "0",
        "class/kfd/kfd/proc/4711/vram_777": "1073741824",
        "class/kfd/kfd/proc/4712/vram_777": "0",
    }
    for number, gpu in ((1, 777), (2, 888), (10, 999)):
        node = f"class/kfd/kfd/topology/nodes/{number}"
        files[f"{node}/gpu_id"] = str(gpu)
        files[f"{node}/properties"] = f"simd_count 416\nunique_id {gpu}\ndrm_render_minor {127 + number}\n"
        drm = f"class/drm/renderD{127 + number}/device"
        files |= {
            f"{drm}/mem_info_vram_total": str(64 * GIB),
            f"{drm}/mem_info_vram_used": str(GIB),
            f"{drm}/gpu_busy_percent": "12",
            f"{drm}/hwmon/hwmon3/temp1_input": "54000",
            f"{drm}/product_name": "AMD X",
        }
    files["class/kfd/kfd/topology/nodes/1/io_links/1/properties"] = "type 11\nnode_from 1\nnode_to 2\n"
    files["class/kfd/kfd/topology/nodes/1/io_links/0/properties"] = "type 2\nnode_from 1\nnode_to 0\n"
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    rocm = Rocm({}, tmp_path)
    found = rocm.devices()
    assert [(device.id, device.visible, device.island) for device in found] == [
        (f"GPU-{777:016x}", "0", "xgmi 1"),
        (f"GPU-{888:016x}", "1", "xgmi 1"),
        (f"GPU-{999:016x}", "2", ""),
    ]
    assert rocm.measure()[0] == Measured(f"GPU-{777:016x}", GIB, 12.0, 54.0, (4711,))
    assert [device.visible for device in Rocm({"ROCR_VISIBLE_DEVICES": "1"}, tmp_path).devices()] == ["1"]

    accelerators = Accelerators(rocm)
    accelerators.start()
    accelerators.stop()
    assert accelerators.variables([found[1].id, found[2].id]) == {
        "ROCR_VISIBLE_DEVICES": "1,2",
        "HIP_VISIBLE_DEVICES": "0,1",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
