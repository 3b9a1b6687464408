"""Steps of a job of Slurm: the agent of one node, and short programs there.

Invariants:
- The key of a host is passed only on the standard input of its own srun.
- The output of srun goes to a file, so it does not fail when its parent, the reader of a pipe, has ended.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import msgspec

from agentrl.errors import UnavailableError
from agentrl.placement.arrival import Arrived, Order
from agentrl.placement.remote_python import arrival_command, read_arrived
from agentrl.placement.slurm_commands import environment
from agentrl.placement.until import until

STEP = "agentrl-"
"""The prefix of the name of a step; the name of its host follows."""


class Place(NamedTuple):
    """A node of a job."""

    job: str
    """The id of the whole job, also if it is heterogeneous."""
    node: str
    group: int = -1
    """The number of the component of a heterogeneous job."""


def start_on_node(place: Place, host: str, order: Order, log: Path, python: str, within_s: float) -> Arrived:
    """Start the agent as a step that lasts as long as the agent. Raises AgentrlError with a sentence."""
    command = _srun(place, STEP + host, arrival_command(python, "--stay"))
    complaints = log.with_suffix(".err")
    with log.open("wb") as output, complaints.open("wb") as errors:
        process = subprocess.Popen(
            command,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(msgspec.json.encode(order))
    until(lambda: log.stat().st_size > 0 or process.poll() is not None, within_s)
    code = process.poll()
    if code is None and not log.stat().st_size:
        process.kill()
        process.wait()
        raise UnavailableError(f"Slurm did not start the agent of host {host} on node {place.node} in time.")
    try:
        return read_arrived(host, place.node, log.read_bytes(), complaints.read_bytes(), code or 0, python)
    finally:
        # The step outlives this process, and Popen must not warn about that.
        process.returncode = code if code is not None else 0


def run_on_node(place: Place, host: str, order: Order, python: str, within_s: float) -> Arrived:
    """Carry out an order there, and wait for its end. Raises AgentrlError with a sentence."""
    command = _srun(place, f"{STEP}{order.act}-{host}", arrival_command(python))
    try:
        done = subprocess.run(
            command,
            env=environment(),
            input=msgspec.json.encode(order),
            capture_output=True,
            timeout=within_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"Host {host} ({place.node}) did not answer over srun in time.") from None
    return read_arrived(host, place.node, done.stdout, done.stderr, done.returncode, python)


def _srun(place: Place, name: str, command: list[str]) -> list[str]:
    # Gets all memory and devices of the job on that node, shared with the other steps.
    step = [
        "srun",
        f"--jobid={place.job}",
        f"--nodelist={place.node}",
        "--nodes=1",
        "--ntasks=1",
        "--overlap",
        "--mem=0",
        "--chdir=/",
    ]
    step += [f"--het-group={place.group}"] if place.group >= 0 else []
    return [*step, f"--job-name={name}", "--unbuffered", "--quiet", *command]
