"""The backend `slurm`: agents as steps of a job of Slurm, one for each node.

The job is the one that `agentrl up` is in, or one that is submitted here and only holds its nodes. The agent of a node
is started by its own srun, which reads only the key of this host from standard input.

Invariants:
- A node of the job has at most one host, and keeps it until the job ends or is requeued.
- The node on which the coordinator itself runs in the job gets no second host.
- A host is GONE when its job has ended or was requeued, or when Slurm took its node out of the job.
- A job that a person cancelled is not submitted again before the next `up`. A job that was not submitted here is never
  cancelled.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec

from agentrl.config.placement import Slurm
from agentrl.errors import AgentrlError, NotProvenError
from agentrl.placement import HostRemains, HostRequest, Placed, PlacedRun, State
from agentrl.placement import slurm_commands as commands
from agentrl.placement.arrival import Order
from agentrl.placement.notes import Notes
from agentrl.placement.slurm_commands import Component
from agentrl.placement.slurm_job import arguments, groups_of, write_script
from agentrl.placement.slurm_steps import STEP, Place, run_on_node, start_on_node
from agentrl.placement.until import until

_AT_ONCE = 16
_JOB_ENDS_WITHIN_S = 60.0
_CANCELLED = "CANCELLED"


class JobNote(msgspec.Struct, frozen=True):
    """A job that holds nodes for hosts."""

    groups: tuple[tuple[str, ...], ...]
    """The hosts of each component."""
    own: bool
    """It was submitted here."""
    nodes: dict[str, str] = {}
    """The nodes of hosts that must be on a particular node, by host."""

    def without(self, host: str) -> JobNote:
        groups = tuple(tuple(one for one in group if one != host) for group in self.groups)
        return msgspec.structs.replace(self, groups=groups)

    @property
    def hosts(self) -> list[str]:
        return [host for group in self.groups for host in group]


class HostNote(msgspec.Struct, frozen=True):
    """An agent that was started."""

    job: str
    component: str
    """The id of the component of the job, or the same as `job`."""
    life: str
    node: str
    state_dir: str
    run: str
    group: int = -1

    @property
    def place(self) -> Place:
        return Place(self.job, self.node, self.group)


@dataclass(slots=True)
class View:
    """What Slurm says now of the jobs of this run."""

    jobs: dict[str, list[Component]] = field(default_factory=dict)
    nodes: dict[str, list[str]] = field(default_factory=dict)
    """By the id of a component."""
    steps: set[str] = field(default_factory=set)
    """Names of the steps that are running."""

    def component(self, job: str, id: str) -> Component | None:
        return next((one for one in self.jobs.get(job, ()) if one.id == id), None)


class SlurmPlacement:
    def __init__(self, settings: Slurm, run: PlacedRun) -> None:
        self._settings = settings
        self._run = run
        self._jobs = Notes(run.state_dir, "slurm-jobs", JobNote)
        self._notes = Notes(run.state_dir, "slurm", HostNote)

    # ---- the interface ----

    def ensure(self, wanted: Sequence[HostRequest]) -> tuple[Placed, ...]:
        with self._notes.locked("start"):
            by_host = {one.host: one for one in wanted}
            view = self._look()
            found, homeless = self._take_out(view, by_host)
            missing = {host: one for host, one in by_host.items() if host not in found}
            held = {host for note in self._jobs.all().values() for host in note.hosts}
            homeless |= {host: one.node for host, one in missing.items() if host not in held}
            if homeless and wanted:
                found |= self._acquire(homeless)
                view = self._look()
            starts: dict[str, Place] = {}
            for job, note in self._jobs.all().items():
                found |= self._of_job(job, note, view, missing, starts)
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                started = pool.map(lambda host: self._start(by_host[host], starts[host], view), starts)
                found |= {one.host: one for one in started}
            unknown = "Slurm has no node for it."
            return tuple(found.get(host) or Placed(host, State.LOST, why=unknown) for host in by_host)

    def describe(self) -> tuple[Placed, ...]:
        view = self._look()
        return tuple(self._described(host, note, view) for host, note in sorted(self._notes.all().items()))

    def release(self, hosts: Sequence[str]) -> None:
        view, notes = self._look(), self._notes.all()
        living = {host: notes[host] for host in hosts if host in notes and not self._end_of(notes[host], view)}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            ended = dict(zip(living, pool.map(self._end, living, living.values()), strict=True))
        problems = {host: problem for host, problem in ended.items() if problem}
        done = [host for host in hosts if host not in problems]
        self._notes.update(dict.fromkeys(done))
        problems |= self._give_back(done)
        if problems:
            raise NotProvenError(" ".join(problems.values()))

    def clear(self, left: HostRemains) -> str:
        return "its node has been given back to Slurm"

    # ---- jobs ----

    def _look(self) -> View:
        known = {*self._jobs.all(), *(note.job for note in self._notes.all().values())}
        view = View({job: commands.components(job) for job in sorted(known)})
        running = [one for found in view.jobs.values() for one in found if one.runs]
        view.nodes = {one.id: commands.nodes_of(one.node_list) for one in running}
        view.steps = {step.name for step in commands.steps([one.id for one in running])}
        return view

    def _acquire(self, hosts: dict[str, str]) -> dict[str, Placed]:
        """Find a job for these hosts: the one that the coordinator is in, or a new one."""
        inside = os.environ.get("SLURM_JOB_ID", "")
        if inside and inside not in self._jobs.all():
            self._adopt(inside, hosts)
            return {}
        if inside:
            why = f"The job {inside} of Slurm has no node left for it."
            return {host: Placed(host, State.LOST, why=why) for host in hosts}
        groups = groups_of(self._settings, list(hosts))
        script = self._notes.folder / "slurm-job.sh"
        write_script(script, self._settings, name=self._run.name, run=self._run.uuid)
        job = commands.submit(arguments(self._settings, self._run.name, hosts, groups), script)
        self._jobs.update({job: JobNote(tuple(group.hosts for group in groups), own=True, nodes=hosts)})
        return {}

    def _adopt(self, job: str, hosts: dict[str, str]) -> None:
        """Take the nodes of the job that the coordinator is in. Components get hosts in their order, if there are
        any."""
        found = commands.components(job)
        if len(found) > 1 and self._settings.components:
            groups = [group.hosts for group in groups_of(self._settings, list(hosts))]
        else:
            groups = [tuple(hosts)]
        self._jobs.update({job: JobNote(tuple(groups), own=False, nodes=hosts)})

    def _take_out(self, view: View, wanted: Mapping[str, HostRequest]) -> tuple[dict[str, Placed], dict[str, str]]:
        """Forget jobs that are over, and hosts whose machine was taken away. Each such host is reported once.

        Also returns all hosts that need another job, with their nodes: hosts that shared a job share the new one."""
        found: dict[str, Placed] = {}
        homeless: dict[str, str] = {}
        for host, note in self._notes.all().items():
            if host in wanted and (why := self._end_of(note, view)):
                state = self._state_of(note, view)
                found[host] = Placed(host, State.GONE, note.node, why, dismissed=state == _CANCELLED)
                self._notes.update({host: None})
        for job, job_note in self._jobs.all().items():
            components = view.jobs.get(job, [])
            if any(one.runs or one.waits for one in components):
                continue
            cancelled = any(one.state == _CANCELLED for one in components)
            homeless |= {} if cancelled else {host: job_note.nodes.get(host, "") for host in job_note.hosts}
            left = job_note
            for host in (host for host in job_note.hosts if host in wanted):
                found.setdefault(host, Placed(host, State.GONE, why=_ended(job, components), dismissed=cancelled))
                left = left.without(host)
            # Each host of a cancelled job must be reported before it may get another job.
            self._jobs.update({job: left if cancelled and left.hosts else None})
        for host in found:
            self._leave_shrunken_job(host, view)
        return found, homeless

    def _leave_shrunken_job(self, host: str, view: View) -> None:
        """If a job goes on without one of its nodes, the host of that node needs another job."""
        for job, note in self._jobs.all().items():
            if host not in note.hosts:
                continue
            for component, group in zip(view.jobs.get(job, ()), note.groups, strict=False):
                if component.runs and host in group and len(view.nodes[component.id]) < len(group):
                    self._jobs.update({job: note.without(host)})

    def _end_of(self, note: HostNote, view: View) -> str:
        """Why the machine of the host is gone; empty if it is not."""
        component = view.component(note.job, note.component)
        if component is None or not (component.runs or component.waits):
            return _ended(note.job, view.jobs.get(note.job, []))
        if component.state == "COMPLETING":
            return f"job {note.job} of Slurm ends ({_words(component)})"
        if component.life != note.life or component.waits:
            return f"Slurm took the nodes of job {note.job} back and starts it again ({_words(component)})"
        if note.node not in view.nodes[component.id]:
            return f"Slurm took node {note.node} out of job {note.job}: it failed or does not respond"
        return ""

    def _state_of(self, note: HostNote, view: View) -> str:
        component = view.component(note.job, note.component)
        return component.state if component is not None else ""

    # ---- hosts ----

    def _of_job(
        self, job: str, note: JobNote, view: View, wanted: Mapping[str, HostRequest], starts: dict[str, Place]
    ) -> dict[str, Placed]:
        """The states of the wanted hosts of a job. Adds to `starts` the hosts that must be started."""
        found: dict[str, Placed] = {}
        components = view.jobs.get(job, [])
        groups = note.groups if len(note.groups) > 1 else (tuple(note.hosts),)
        # A heterogeneous job without configured components is one pool of nodes.
        pools = [[one] for one in components] if len(groups) > 1 else [components]
        for pool, group in zip(pools, groups, strict=False):
            if waiting := next((one for one in pool if not one.runs), None):
                where, why = f"job {job}", f"waits for job {job} of Slurm ({_words(waiting)})"
                found |= {host: Placed(host, State.STARTING, where, why) for host in group if host in wanted}
            else:
                found |= self._of_nodes(job, pool, group, view, wanted, starts)
        return found

    def _of_nodes(
        self,
        job: str,
        pool: Sequence[Component],
        group: Sequence[str],
        view: View,
        wanted: Mapping[str, HostRequest],
        starts: dict[str, Place],
    ) -> dict[str, Placed]:
        notes, found = self._notes.all(), dict[str, Placed]()
        here = os.environ.get("SLURMD_NODENAME", "") if job == os.environ.get("SLURM_JOB_ID") else ""
        free = [Place(job, node, one.group) for one in pool for node in view.nodes[one.id] if node != here]
        taken = {host: notes[host].place for host in group if host in notes}
        named = {wanted[host].node for host in group if host in wanted and wanted[host].node}
        free = [place for place in free if place not in taken.values()]
        for host in (host for host in group if host in wanted):
            if host in notes and STEP + host in view.steps:
                found[host] = self._described(host, notes[host], view)
                continue
            if any(one.leaves for one in pool):
                found[host] = Placed(host, State.STARTING, f"job {job}", f"job {job} of Slurm is about to end")
                continue
            node = wanted[host].node
            fits = [place for place in free if (place.node == node if node else place.node not in named)]
            if place := taken.get(host) or next(iter(fits), None):
                free = [each for each in free if each != place]
                starts[host] = place
            else:
                what = f"node {node}" if node else "node left for it"
                found[host] = Placed(host, State.LOST, f"job {job}", f"Job {job} of Slurm has no {what}")
        return found

    def _start(self, wanted: HostRequest, place: Place, view: View) -> Placed:
        host = wanted.host
        if trouble := commands.node_trouble(place.node):
            return Placed(host, State.LOST, place.node, trouble)
        log = self._notes.folder / f"{host}.srun"
        python, within_s = self._settings.python, self._settings.start_s
        try:
            arrived = start_on_node(place, host, Order(invitation=wanted.invitation), log, python, within_s)
        except AgentrlError as failed:
            return Placed(host, State.LOST, place.node, failed.message, failed.hint)
        component = next(one for one in view.jobs[place.job] if one.group == place.group)
        state_dir, run = arrived.state_dir, wanted.invitation.run
        note = HostNote(place.job, component.id, component.life, place.node, state_dir, run, place.group)
        self._notes.update({host: note})
        return _alive(host, place)

    def _described(self, host: str, note: HostNote, view: View) -> Placed:
        if why := self._end_of(note, view):
            return Placed(host, State.GONE, note.node, why)
        if trouble := commands.node_trouble(note.node):
            return Placed(host, State.LOST, note.node, trouble)
        if STEP + host in view.steps:
            return _alive(host, note.place)
        return Placed(host, State.LOST, note.node, f"its agent on node {note.node} has ended")

    # ---- the end ----

    def _end(self, host: str, note: HostNote) -> str:
        """End the agent and look for what is left on its node. Returns the problem."""
        order = Order("end", host=host, run=note.run, state_dir=note.state_dir)
        try:
            run_on_node(note.place, host, order, self._settings.python, self._settings.start_s)
        except AgentrlError as failed:
            return str(failed)
        return ""

    def _give_back(self, hosts: Sequence[str]) -> dict[str, str]:
        """End the jobs that have no host left. Returns problems by job."""
        problems: dict[str, str] = {}
        for job, note in self._jobs.all().items():
            for host in hosts:
                note = note.without(host)
            if note.hosts:
                self._jobs.update({job: note})
                continue
            if note.own:
                commands.cancel(job)
                if not until(lambda job=job: _is_over(job), _JOB_ENDS_WITHIN_S):  # type: ignore[misc]
                    problems[job] = f"Slurm does not end job {job}."
                    continue
            self._jobs.update({job: None})
        return problems


def _is_over(job: str) -> bool:
    return not any(one.runs or one.waits for one in commands.components(job))


def _alive(host: str, place: Place) -> Placed:
    return Placed(host, State.ALIVE, f"step {STEP}{host} of job {place.job} on {place.node}")


def _words(component: Component) -> str:
    return f"{component.state.lower()}, {component.reason}" if component.reason else component.state.lower()


def _ended(job: str, components: Sequence[Component]) -> str:
    """Why a job is over, in the words of Slurm."""
    if not components:
        return f"job {job} of Slurm is over"
    first = next((one for one in components if not one.runs), components[0])
    return f"job {job} of Slurm is over ({_words(first)})"
