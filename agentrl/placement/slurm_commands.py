"""Queries and controls Slurm through its command line.

Invariants:
- Every wait for an answer has a limit.
- The variables that Slurm sets for the processes of a job (such as `SLURM_NTASKS`) do not change these commands.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agentrl.errors import ConfigError, UnavailableError
from agentrl.host import procfs

ANSWERS_WITHIN_S = 30.0
LEAVING = "agentrl-leaving"
"""The comment of a job whose hosts were told to finish: its end is near."""
_UNKNOWN_JOB = "Invalid job id"
_WAITING = frozenset(
    ["PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "COMPLETING"]
)
_OUT_OF_USE = ("down", "fail", "unknown")
_FIELD = re.compile(r"(?:^|\s)([A-Za-z:/]+)=(.*?)(?=\s[A-Za-z:/]+=|\s*$)")


class Component(msgspec.Struct, frozen=True):
    """A job, or one component of a heterogeneous one, as Slurm shows it."""

    id: str
    state: str
    reason: str
    life: str
    """Differs after each start of the same job."""
    node_list: str
    comment: str
    group: int = -1
    """Its number in a heterogeneous job; -1 in any other job."""

    @property
    def runs(self) -> bool:
        return self.state == "RUNNING"

    @property
    def waits(self) -> bool:
        return self.state in _WAITING

    @property
    def leaves(self) -> bool:
        return self.comment == LEAVING


class Step(msgspec.Struct, frozen=True):
    id: str
    name: str


def components(job: str) -> list[Component]:
    """The components of a job in their order, one for most jobs. Empty if Slurm does not know it any more."""
    done = _run(["scontrol", "show", "job", "--oneliner", job])
    if done.returncode:
        if _UNKNOWN_JOB in done.stderr:
            return []
        raise _failed("scontrol", done.stderr)
    found = [dict(_FIELD.findall(line)) for line in done.stdout.splitlines() if line.strip()]
    return [_component(fields) for fields in sorted(found, key=lambda fields: int(fields.get("HetJobOffset", 0)))]


def _component(fields: dict[str, str]) -> Component:
    return Component(
        id=fields["JobId"],
        state=fields.get("JobState", ""),
        reason=_plain(fields.get("Reason", "")),
        life=f"{fields.get('Restarts', '')} {fields.get('StartTime', '')}",
        node_list=_plain(fields.get("NodeList", "")),
        comment=_plain(fields.get("Comment", "")),
        group=int(fields.get("HetJobOffset", -1)),
    )


def _plain(value: str) -> str:
    return "" if value in ("(null)", "None") else value.strip()


def nodes_of(node_list: str) -> list[str]:
    if not node_list:
        return []
    done = _run(["scontrol", "show", "hostnames", node_list])
    if done.returncode:
        raise _failed("scontrol", done.stderr)
    return done.stdout.split()


def steps(jobs: Sequence[str]) -> list[Step]:
    """The running steps of these jobs."""
    if not jobs:
        return []
    done = _run(["squeue", "--noheader", "--steps", f"--jobs={','.join(jobs)}", "--format=%i %j"])
    if done.returncode:
        if _UNKNOWN_JOB in done.stderr:
            return []
        raise _failed("squeue", done.stderr)
    return [Step(*line.split(maxsplit=1)) for line in done.stdout.splitlines() if " " in line.strip()]


def node_trouble(node: str) -> str:
    """Why Slurm does not use a node; empty if it does."""
    done = _run(["sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%T|%E"])
    state, _, reason = (done.stdout.splitlines() or [""])[0].partition("|")
    # A star means that the node does not respond.
    if done.returncode or not (state.startswith(_OUT_OF_USE) or "*" in state):
        return ""
    return f"Slurm says node {node} is {state.rstrip('*')}" + (f" ({reason})" if reason not in ("", "none") else "")


def submit(arguments: Sequence[str], script: Path) -> str:
    """Submit a job and return its id."""
    done = _run(["sbatch", "--parsable", *arguments, str(script)], marked=False)
    if done.returncode:
        raise ConfigError(f"Slurm refuses the job: {_last_line(done.stderr)}", hint="Correct placement.slurm.options.")
    return done.stdout.strip().partition(";")[0]


def cancel(job: str) -> None:
    done = _run(["scancel", job])
    if done.returncode and _UNKNOWN_JOB not in done.stderr:
        raise _failed("scancel", done.stderr)


def environment(*, marked: bool = True) -> dict[str, str]:
    """`marked`: keep the mark that says that the process belongs to this run on this host."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_", "SRUN_"))}
    if conf := os.environ.get("SLURM_CONF"):
        env["SLURM_CONF"] = conf
    return env if marked else procfs.without_marks(env)


def _run(command: Sequence[str], *, marked: bool = True) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            env=environment(marked=marked),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWERS_WITHIN_S,
            check=False,
        )
    except FileNotFoundError:
        raise ConfigError(
            f"There is no program {command[0]} on the host of the coordinator.",
            hint="Run `agentrl up` where Slurm can be used, such as a login node.",
        ) from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"Slurm did not answer {command[0]} within {ANSWERS_WITHIN_S:g} s.") from None


def _failed(program: str, complaint: str) -> UnavailableError:
    return UnavailableError(f"Slurm does not answer {program}: {_last_line(complaint)}")


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")
