"""A real Slurm on this machine: one slurmctld and four slurmd, each of which is a node.

It needs no munge: the daemons trust each other (`auth/none`), because only this machine can reach them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.waiting import PATIENCE_S, eventually

NODES = ("n1", "n2", "n3", "n4")
_CONFIGURATION = """
ClusterName=test
SlurmctldHost={hostname}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0,requeue_delay=0
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdTimeout=5
KillWait=1
MinJobAge=300
ReturnToService=2
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
"""
GRACE_S = 120
"""How long a job may run after the warning of a preemption."""


class SlurmCluster:
    def __init__(self, folder: Path) -> None:
        for program in ("slurmctld", "slurmd"):
            if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
                pytest.fail(f"This test needs {program}: `apt-get install slurmctld slurmd slurm-client`.")
        self._folder = folder
        self.configuration = folder / "slurm.conf"
        self.environ = {"SLURM_CONF": str(self.configuration)}
        os.environ |= self.environ  # the placement reads it in this process and its children
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (folder / name).mkdir(parents=True)
        self._configure()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @staticmethod
    @cache
    def shared() -> SlurmCluster:
        """The cluster of this test process."""
        folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        made = SlurmCluster(folder)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        atexit.register(made.close)
        made.start()
        return made

    def _configure(self) -> None:
        hostname, user = socket.gethostname(), "root" if os.geteuid() == 0 else os.environ["USER"]
        lines = [_CONFIGURATION.format(hostname=hostname, user=user, port=free_port(), folder=self._folder)]
        where = f"NodeHostname={hostname} NodeAddr=127.0.0.1"
        lines += [f"NodeName={node} {where} Port={free_port()} CPUs=2" for node in NODES]
        nodes = ",".join(NODES)
        lines.append(f"PartitionName=low Nodes={nodes} Default=YES PriorityTier=1 MaxTime=INFINITE GraceTime={GRACE_S}")
        lines.append(f"PartitionName=high Nodes={nodes} PriorityTier=9 MaxTime=INFINITE PreemptMode=OFF")
        self.configuration.write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        self._start("slurmctld", "slurmctld", "-D")
        for node in NODES:
            self.start_node(node)
        eventually(lambda: self.states() == dict.fromkeys(NODES, "idle"), what="four idle nodes")

    def start_node(self, node: str) -> None:
        self._start(node, "slurmd", "-D", "-N", node)

    def _start(self, name: str, program: str, *arguments: str) -> None:
        with (self._folder / f"{name}.output").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                [shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") or program, *arguments],
                env=os.environ | self.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def states(self) -> dict[str, str]:
        shown = self.ask("sinfo", "--noheader", "--Node", "--partition=low", "--format=%N %t")
        return {node: state.rstrip("*$~#!%@^-") for node, state in (line.split() for line in shown.splitlines())}

    def ask(self, *command: str) -> str:
        done = subprocess.run(
            command, env=os.environ | self.environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def jobs(self, *states: str) -> list[str]:
        of = [f"--states={','.join(states)}"] if states else []
        # A heterogeneous job has a line for each component.
        found = self.ask("squeue", "--noheader", "--format=%i", *of).split()
        return list(dict.fromkeys(job.partition("+")[0] for job in found))

    def free(self) -> None:
        """End all jobs, and wait until every node can be used again."""
        if jobs := self.jobs():
            self.ask("scancel", "--full", *jobs)
            eventually(lambda: not self.jobs(), what="the end of all jobs")
        eventually(lambda: self.states() == dict.fromkeys(NODES, "idle"), what="four idle nodes")

    def close(self) -> None:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.free()
        os.environ.pop("SLURM_CONF", None)
        for daemon in self._daemons.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait(PATIENCE_S)
