"""The screen of hosts: what runs where, what waits for a place, and the commands on a host."""

from __future__ import annotations

import time

from agentrl.protocol import control_commands, rows
from agentrl.protocol.messages import Device, DeviceUse, HostFacts, ProcessInfo
from tests.cli.scripted import Scripted
from tests.tui.conftest import HOSTILE, opened, populate
from tests.waiting import aeventually
from tui.views.hosts import Hosts

NO_PLACE = "no host can take it (far: needs 1 GPU, 0 of 1 free; near: has no data of the run)"


def add_hosts(coordinator: Scripted) -> None:
    now = time.time()
    card = Device(id="gpu-a", kind="nvidia", name="H200", memory_bytes=140 << 30, visible="0")
    facts = HostFacts(cpus=64, memory_bytes=512 << 30, gpus=1, devices=(card,), agent_version="1.2")
    stray = ProcessInfo(pid=77, command=f"miner{HOSTILE}", why="no unit")
    coordinator.rows["host/far"] = rows.HostRow(
        *("far", "up", now - 60, facts),
        units=3,
        cpu_percent=40.0,
        devices=(DeviceUse("gpu-a", memory_used_bytes=70 << 30, busy_percent=88.0),),
        holders={"gpu-a": ("web-0.7",)},
    )
    coordinator.rows["host/near"] = rows.HostRow("near", "silent", now - 9, HostFacts(cpus=2), strays=(stray,))
    for n in range(6):
        name = f"engine-{n}"
        coordinator.rows[f"unit/{name}"] = rows.UnitRow(
            name, "engine", "engine", rows.UnitState.PENDING, reason=NO_PLACE, desired=True
        )


async def test_hosts_show_what_runs_there_and_what_waits_for_a_place(coordinator: Scripted) -> None:
    populate(coordinator)
    add_hosts(coordinator)
    async with opened(coordinator.state_dir, (140, 24)) as screen:
        await screen.press("2", "H")
        await screen.shows("far", "web 3", "0 of 1 free", "silent", "stray: pid 77 miner", "1 of 2 up")
        await screen.shows(f"engine-0, engine-1, engine-2, engine-3 and 2 more: {NO_PLACE[:40]}")
        await screen.press("home", "enter")
        await screen.shows("64 processors", "H200", "88 %", "held by web-0.7", "web-2  ready for", "waits for a place")
        await screen.press("escape", "escape")
        await screen.shows("judge-0")


async def test_page_that_is_not_composed_yet_is_not_painted(coordinator: Scripted) -> None:
    populate(coordinator)
    add_hosts(coordinator)
    async with opened(coordinator.state_dir, (140, 24)) as screen:
        screen.app.navigation.open_page(Hosts())
        screen.app._paint_new_data()
        assert not screen.app.faults
        await screen.shows("1 of 2 up")


async def test_keys_drain_remove_and_forget_the_selected_host(coordinator: Scripted) -> None:
    populate(coordinator)
    add_hosts(coordinator)
    async with opened(coordinator.state_dir, (140, 24)) as screen:
        await screen.press("2", "H")
        await screen.shows("silent")
        await screen.press("home", "d")
        await aeventually(lambda: coordinator.sent("drain") == [control_commands.DrainUnits(host="far")])
        await screen.press("x")
        await aeventually(lambda: coordinator.sent("remove_host") == [control_commands.RemoveHost("far")])
        await screen.press("down", "F")
        await aeventually(lambda: coordinator.sent("forget_host") == [control_commands.ForgetHost("near")])
