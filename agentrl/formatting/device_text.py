"""The devices of a host in words: for `hosts list`, `hosts show` and the console.

Invariant: names of processes are not made safe here; the code that displays them does that.
"""

from __future__ import annotations

from agentrl.formatting.amounts import size
from agentrl.protocol.messages import DeviceUse
from agentrl.protocol.rows import HostRow

COLUMNS = ("device", "model", "memory", "busy", "°C", "held by", "processes")


def count_of(row: HostRow) -> str:
    """`3 of 4 free`; empty for a host without devices."""
    devices = row.facts.devices
    free = sum(1 for device in devices if device.id not in row.holders and device.id not in row.occupied)
    return f"{free} of {len(devices)} free" if devices else ""


def cells_of(row: HostRow) -> list[tuple[str, ...]]:
    """One line for each device, with the columns of COLUMNS."""
    use = {one.id: one for one in row.devices}
    lines: list[tuple[str, ...]] = []
    for device in row.facts.devices:
        now = use.get(device.id, DeviceUse(device.id, not_measured="not measured yet"))
        total = size(device.memory_bytes) if device.memory_bytes else ""
        measured = not now.not_measured
        held = ", ".join(row.holders.get(device.id, ()))
        lines.append(
            (
                device.visible,
                device.name or device.kind,
                f"{size(now.memory_used_bytes)} of {total}" if measured and total else total,
                f"{now.busy_percent:.0f} %" if measured else "",
                f"{now.temperature_c:.0f}" if measured and now.temperature_c else "",
                held or (f"not given: {row.occupied[device.id]}" if device.id in row.occupied else "free"),
                ", ".join(f"{process.pid} {process.command}"[:60].strip() for process in now.processes)
                or (now.not_measured if now.not_measured != "declared" else ""),
            )
        )
    return lines
