"""The job that holds the nodes of a run: its batch script and its options."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from agentrl.config.placement import Slurm, is_meant
from agentrl.placement.slurm_commands import LEAVING
from agentrl.placement.slurm_steps import STEP

_SCRIPT = """#!/bin/bash
# Holds the nodes of the run {name} of agentrl. Its host agents are steps of this job; the coordinator starts them.
comment() {{ scontrol update "jobid=$SLURM_JOB_ID" "comment=$1" 2> /dev/null; }}
leave() {{
    # A job that is cancelled gets the same signal, and has no time left.
    case "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T 2> /dev/null | head -n 1)" in
        COMPLETING | CANCELLED | TIMEOUT) exit 0 ;;
    esac
    comment {leaving}
    for group in $(seq 0 $((${{SLURM_HET_SIZE:-1}} - 1))); do
        srun ${{SLURM_HET_SIZE:+--het-group=$group}} --overlap --ntasks-per-node=1 --mem=0 --input=none \\
            {python} -m agentrl.placement.slurm_leave {run} &
    done
    wait
    # The nodes are free for others as soon as the last host has left.
    while squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format=%j | grep -q "^{step}"; do sleep 0.5; done
    {again}
}}
comment ""
trap leave TERM
# Waits for ever. A signal ends neither this nor a child that could end it.
exec 3<> <(:)
while :; do read -r -u 3; done
"""


class Group(NamedTuple):
    """The hosts of one component of a job, and its own options."""

    hosts: tuple[str, ...]
    options: tuple[str, ...] = ()


def write_script(path: Path, settings: Slurm, *, name: str, run: str) -> None:
    words = {"name": name, "run": run, "leaving": LEAVING, "step": STEP}
    words["python"] = shlex.quote(settings.python or sys.executable)
    words["again"] = 'scontrol requeue "$SLURM_JOB_ID"' if settings.requeue else "exit 0"
    path.write_text(_SCRIPT.format(**words))


def arguments(settings: Slurm, name: str, nodes: Mapping[str, str], groups: Sequence[Group]) -> list[str]:
    """The options of sbatch for a job with these groups of hosts, one for each component.

    `nodes`: by host, for hosts that must be on a particular node."""
    # Nodes need not share a directory with this host, and a job whose output cannot be opened fails.
    common = [f"--job-name=agentrl-{name}", "--output=/dev/null", "--chdir=/"]
    common += ["--requeue" if settings.requeue else "--no-requeue"]
    # Only the batch script gets the warning, because units would end at this signal.
    common += [f"--signal=B:TERM@{settings.drain_s}"] if settings.drain_s else []
    found: list[str] = []
    for group in groups:
        found += [":"] if found else []
        named = [nodes[host] for host in group.hosts if nodes.get(host)]
        found += [*common, f"--nodes={len(group.hosts)}", "--ntasks-per-node=1", "--no-kill"]
        found += [f"--nodelist={','.join(named)}"] if named else []
        found += [*settings.options, *group.options]
    return found


def groups_of(settings: Slurm, hosts: Sequence[str]) -> list[Group]:
    """One group for each component that has any of these hosts; without components, one group of all hosts."""
    if not settings.components:
        return [Group(tuple(hosts))]
    groups = [
        Group(tuple(host for host in hosts if any(is_meant(host, word) for word in each.hosts)), each.options)
        for each in settings.components
    ]
    return [group for group in groups if group.hosts]
