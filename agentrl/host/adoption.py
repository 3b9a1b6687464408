"""Continues the ledger of a previous agent in a new one.

* A process is adopted only if pid, start time and boot id all agree.
* A process that ended without an agent is reported with the status that its spawn helper wrote. Otherwise the status
  is unknown, with the reason.
* An intent without a pid counts as dead only after a search for its mark.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from agentrl.errors import ConfigError
from agentrl.host import cgroups, procfs, spawn_environment
from agentrl.host.child_processes import status_in
from agentrl.host.incarnation import Incarnation, Services, incarnation_from_ledger
from agentrl.host.ledger import Entry, find_by_mark
from agentrl.protocol.messages import ExitStatus, Spawn

log = logging.getLogger(__name__)


def adopt_all(services: Services) -> list[Incarnation]:
    return [_adopt(services, entry) for entry in services.ledger.entries()]


def _adopt(services: Services, entry: Entry) -> Incarnation:
    group = cgroups.of_paths(entry.cgroup_tree, entry.cgroup_memory)
    if entry.pid == 0 and entry.exit is None:
        found = find_by_mark(services.home.run, entry)
        if found is not None:
            entry = msgspec.structs.replace(entry, pid=found.pid, start_ticks=found.start_ticks, boot_id=found.boot_id)
    incarnation = incarnation_from_ledger(services, entry, group)
    if entry.boot_id != procfs.boot_id():
        incarnation.tree.leader = None  # its numbers mean nothing in this boot
    if entry.exit is not None:
        incarnation.sweep()
        return incarnation
    status_file = services.ledger.status_file(entry.name)
    process = services.processes.adopt(entry.identity, incarnation.on_exit, status_file)
    if process is None:
        booted = bool(entry.boot_id) and entry.boot_id != procfs.boot_id()
        status = status_in(status_file) or ExitStatus(unknown=why_dead(entry), with_host=booted)
        log.warning("%s has ended: %s.", entry.name, status)
        incarnation.found_dead(status)
        return incarnation
    log.info("%s lives as process %d and was adopted.", entry.name, process.pid)
    cwd = spawn_environment.filled(entry.spec.cwd, services.home, entry.unit)
    incarnation.adopt(process, _environment(services, entry), Path(cwd).expanduser() if cwd else None)
    return incarnation


def why_dead(entry: Entry) -> str:
    """The reason why a process is gone and its exit status is unknown."""
    if entry.pid == 0:
        return "the host agent died while it started the process, and no process with its mark was found"
    if entry.boot_id != procfs.boot_id():
        return "the host was booted since"
    stat = procfs.read_stat(entry.pid)
    if stat is not None and stat.start_ticks != entry.start_ticks:
        return f"pid {entry.pid} belongs to another process now; this one ended while no host agent was there"
    return "it ended while no host agent was there to see it"


def _environment(services: Services, entry: Entry) -> Mapping[str, str]:
    """The environment for probes of an adopted process. Probes run even if a secret is gone."""
    spawn = Spawn(
        unit=entry.unit,
        incarnation=entry.incarnation,
        token=entry.token,
        spec=entry.spec,
        coordinator="",
        devices=entry.devices,
        rank=entry.rank,
    )
    try:
        return spawn_environment.of_unit(spawn, services.home, services.heartbeat_s, services.accelerators)
    except ConfigError as missing:
        log.warning("Probes of %s run without its secrets: %s", entry.name, missing)
        return spawn_environment.inherited()
