"""Lists the processes of a run on this host; also `python -m agentrl.host.process_scan UUID`. With `--below HOME` it
lists the runs that have living processes, including those whose state directory in HOME was deleted.

* Every process is listed with the evidence for it.
* The report names what could not be examined. * The scanner, its ancestors and a pid with another start time are never
killed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import msgspec

from agentrl.config.containers import ends_with_process_1
from agentrl.config.this_host import default_name
from agentrl.errors import ExitCode
from agentrl.host import cgroups, procfs
from agentrl.host.process_trees import Snapshot, kill_all_and_wait
from agentrl.protocol.messages import ProcessInfo, ScanReport

_ROUNDS = 20
_ROUND_S = 0.5


def scan(
    run: str, host: str, *, kill: bool = False, control: bool = True, in_cgroups: bool | None = None
) -> ScanReport:
    """Look at every process of the host. Blocks.

    `control`: include host agents and coordinators of the run; a host agent that scans excludes them. `in_cgroups`:
    whether units were put into cgroups; None if only the host's abilities can tell.
    """
    in_cgroups = cgroups.usable() if in_cgroups is None else in_cgroups
    found, examined, unproven = _look(run, control, in_cgroups)
    killed: list[ProcessInfo] = []
    if kill:
        left = found
        for _ in range(_ROUNDS):
            if not left:
                break
            known = {(info.pid, info.start_ticks) for info in killed}
            killed += [info for info in left if (info.pid, info.start_ticks) not in known]
            kill_all_and_wait(left, _ROUND_S)
            left, examined, unproven = _look(run, control, in_cgroups)
        found = left
    if control and not found:
        cgroups.remove_of_run(run)
    return ScanReport(host=host, examined=examined, found=tuple(found), killed=tuple(killed), unproven=unproven)


def _look(run: str, control: bool, in_cgroups: bool) -> tuple[list[ProcessInfo], int, str]:
    snapshot = Snapshot()
    evidence: dict[int, str] = {}
    names: dict[int, str] = {}
    closed: list[int] = []
    without_cgroup = 0
    protected = _ancestors(snapshot)
    for pid in snapshot.stats:
        marks = snapshot.marks(pid)
        if marks is None:
            closed.append(pid)
        elif procfs.is_of_run(marks, run):
            evidence[pid] = "mark"
            names[pid] = marks.get(procfs.MARK_INCARNATION, b"").decode(errors="replace")
        incarnation = cgroups.incarnation_of(pid, run)
        if incarnation is not None:
            evidence.setdefault(pid, "cgroup")
            names.setdefault(pid, incarnation)
        elif pid in evidence and names[pid]:
            without_cgroup += 1
    if not control:
        protected |= {pid for pid, why in evidence.items() if why == "mark" and not names[pid]}
    evidence = snapshot.descendants(evidence | {os.getpid(): "descent"} if not control else evidence)
    found = []
    for pid, why in sorted(evidence.items()):
        stat = snapshot.stats[pid]
        if pid not in protected and stat.state not in "ZX":
            found.append(ProcessInfo(pid, procfs.command(pid), stat.start_ticks, names.get(pid, ""), why))
    if (in_cgroups and not without_cgroup) or ends_with_process_1():
        return found, len(snapshot.stats), ""
    return found, len(snapshot.stats), _unproven([pid for pid in closed if pid not in protected], snapshot)


def runs_below(home: Path) -> dict[str, str]:
    """The state directories in `home` that processes of runs name, by the uuid of the run."""
    found: dict[str, str] = {}
    for pid in procfs.all_pids():
        marks = procfs.marks(pid) or {}
        state_dir = marks.get(b"AGENTRL_STATE_DIR") or _argument(pid, b"--state-dir")
        if procfs.MARK_RUN in marks and state_dir and Path(os.fsdecode(state_dir)).parent == home:
            found[marks[procfs.MARK_RUN].decode(errors="replace")] = os.fsdecode(state_dir)
    return found


def _argument(pid: int, option: bytes) -> bytes:
    """The value of an option on the command line of a host agent or coordinator."""
    words = procfs.read_bytes(f"/proc/{pid}/cmdline").split(b"\0")
    return words[words.index(option) + 1] if option in words[:-1] else b""


def _ancestors(snapshot: Snapshot) -> frozenset[int]:
    """The scanner and its ancestors."""
    found = set()
    pid = os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        stat = snapshot.stats.get(pid)
        pid = stat.ppid if stat else 0
    return frozenset(found)


def _unproven(closed: list[int], snapshot: Snapshot) -> str:
    """A sentence if there are no cgroups: then a process that removed its mark cannot be recognised."""
    sentences = [
        "Units were not in cgroups, so a process that cleared its environment and outlived its parents "
        "could not be recognised as one of the run."
    ]
    mine = os.geteuid()
    # Kernel threads have no environment and belong to no run.
    foreign = [pid for pid in closed if snapshot.stats[pid].rss_bytes > 0]
    if foreign:
        own = sum(1 for pid in foreign if _owner(pid) == mine)
        whose = f"{own} of them of the same user" if own else "all of other users"
        sentences.append(f"The environments of {len(foreign)} processes could not be read ({whose}).")
    return " ".join(sentences)


def _owner(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m agentrl.host.process_scan", description=__doc__)
    parser.add_argument("run", metavar="UUID", nargs="?", default="")
    parser.add_argument("--below", type=Path, metavar="HOME", help="list the runs with a state directory there")
    parser.add_argument("--host", default=default_name(), help="the name of this host in the report")
    parser.add_argument("--kill", action="store_true", help="end what was found")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.below is not None:
        print(msgspec.json.encode(runs_below(args.below)).decode())
        return ExitCode.OK
    if not args.run:
        parser.error("give the uuid of a run, or --below")
    report = scan(args.run, args.host, kill=args.kill)
    if args.json:
        print(msgspec.json.encode(report).decode())
    else:
        _print(report)
    return ExitCode.NOT_PROVEN if report.found else ExitCode.OK


def _print(report: ScanReport) -> None:
    for title, infos in (("killed", report.killed), ("found", report.found)):
        for info in infos:
            print(f"{title} {info.pid} {info.incarnation or '-'} ({info.why}): {info.command}")
    print(f"{report.examined} processes on {report.host} were looked at, {len(report.found)} belong to the run.")
    if report.unproven:
        print(report.unproven)


if __name__ == "__main__":
    sys.exit(main())
