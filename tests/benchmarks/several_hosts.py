"""Measures the demo on three hosts without a shared disk next to the same demo on one host, and the time until a killed
host is replaced.

The hosts are network namespaces of this machine: sampler and toolbox on one, the engine on another, the rest on the
host of the coordinator. So the figures show the cost of tunnels, copies of files and further processes, but no gain
from further machines. The policy stays as after the warm-up, because the length of episodes depends on what it learns;
for that reason alone two runs on one host differ by a half. Both kinds of run take turns. Needs root.
"""

from __future__ import annotations

import functools
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from agentrl.errors import UnavailableError
from assets import shop_dataset
from tests.benchmarks import processor_time
from tests.benchmarks.report import Outcome, median
from tests.e2e.hosts import ENGINES, MORE_ENGINES, TOOLS, Hosts, run_on_hosts
from tests.e2e.running import Run
from tests.waiting import eventually

WITHIN_S = 600.0
FIRST_STEPS, STEPS = 3, 30
ROUNDS = 2
UNCHANGED = 1e-9
"""A learning rate that changes no sampled token."""
LEAST = 0.9
THREE: dict[str, dict[str, list[str] | str]] = {TOOLS: {"runs": ["sampler", "toolbox"]}, ENGINES: {"runs": "engine"}}
OF_HOSTS = frozenset({"tunnel", "files", "host", "spawn_helper"})
"""The kinds of processes that each further host adds."""
SILENT_S, UNITS, MOST = 6.0, 4, 1.3


class Trained(NamedTuple):
    """The work between the first and the last step."""

    records: int
    """Records that were trained."""
    episodes: int
    """Episodes that were scored, including those of groups without signal."""
    took_s: float
    cpu_s: Counter[str]
    """Processor seconds by kind of process."""

    def cpu_ms(self, without: frozenset[str] = frozenset()) -> float:
        """Processor time of the processes of the run per episode."""
        kinds = self.cpu_s.keys() - without - {processor_time.ALL}
        return 1e3 * sum(self.cpu_s[kind] for kind in kinds) / self.episodes

    def by_kind(self) -> dict[str, float]:
        """Milliseconds per episode, by kind of process."""
        return {kind: 1e3 * seconds / self.episodes for kind, seconds in self.cpu_s.items()}

    def and_then(self, other: Trained) -> Trained:
        return Trained(
            self.records + other.records,
            self.episodes + other.episodes,
            self.took_s + other.took_s,
            self.cpu_s + other.cpu_s,
        )


def measure() -> Outcome:
    outcome = Outcome("several hosts")
    rounds = [(_train({}), _train(THREE)) for _ in range(ROUNDS)]
    alone, spread = (functools.reduce(Trained.and_then, runs) for runs in zip(*rounds, strict=True))
    what = "trained records over three hosts"
    outcome.share(what, spread.records / spread.took_s, "/s", "on one host", alone.records / alone.took_s, LEAST)
    what = "scored episodes, also those that teach nothing"
    outcome.share(what, spread.episodes / spread.took_s, "/s", "on one host", alone.episodes / alone.took_s, LEAST)
    outcome.within("CPU of the run for each of them", spread.cpu_ms(), "ms", "on one host", alone.cpu_ms(), 1 / LEAST)
    what = "without tunnels, file processes and host agents"
    outcome.within(what, spread.cpu_ms(OF_HOSTS), "ms", "on one host", alone.cpu_ms(OF_HOSTS), 1 / LEAST)
    columns = {"one host": alone.by_kind(), "three hosts": spread.by_kind()}
    outcome.notes.append(processor_time.table(columns, "ms of CPU for each scored episode"))
    lost_s, start_s = _lost_host()
    name = f"from the kill of a host to the last of its {UNITS} units ready elsewhere"
    outcome.within(name, lost_s, "s", "detection and start of a unit", SILENT_S + start_s, MOST)
    return outcome


def _train(elsewhere: dict[str, dict[str, list[str] | str]]) -> Trained:
    with _hosts(factor=1.0) as hosts:
        run = hosts.run
        run.config |= _demo(run.file.parent)
        run.config["hosts"] = elsewhere
        hosts.up()
        for host in elsewhere:
            hosts.join(host)
        before, after = (_seen_at(run, step) for step in (FIRST_STEPS, STEPS - 1))
        return Trained(
            after.records - before.records,
            after.episodes - before.episodes,
            after.at - before.at,
            processor_time.between(before.cpu, after.cpu),
        )


class _Seen(NamedTuple):
    at: float
    cpu: processor_time.Spent
    episodes: int
    records: int


def _seen_at(run: Run, step: int) -> _Seen:
    """The state of the run when this step is committed."""
    eventually(lambda: _newest(run) >= step, within_s=WITHIN_S, every_s=0.5, what=f"step {step}")
    account = run.client.accounting()
    records = sum(
        row["counts"]["records"] for row in run.client.list_steps(filter="status = committed", limit=STEPS).rows
    )
    return _Seen(time.monotonic(), processor_time.spent(run), account.records["train"]["scored"], records)


def _newest(run: Run) -> int:
    """The newest committed step. A cheap query, because the observer must not cost the run anything."""
    try:
        newest = run.client.list_steps(filter="status = committed", sort="-step", limit=1).rows
    except UnavailableError:
        return 0  # the steward is starting
    return newest[0]["step"] if newest else 0


def _demo(folder: Path) -> dict[str, Any]:
    """The parts of the demo's run file, with an evaluation at the end only and the policy of the warm-up."""
    parts: dict[str, Any] = yaml.safe_load(resources.files("assets").joinpath("train.yaml").read_text())
    parts["name"] = parts["dir"] = None
    shop_dataset.write(folder, random_number=0)
    shop = parts["environments"]["shop"]
    shop |= {"dataset": shop_dataset.TRAIN_FILE, "evaluation": shop_dataset.HELD_OUT_FILE}
    parts["training"] |= {"steps": STEPS, "learning_rate": UNCHANGED}
    parts["evaluation"]["every"] = 10_000
    parts["training"]["warmup"]["dataset"] = shop_dataset.DEMONSTRATIONS_FILE
    return {part: value for part, value in parts.items() if value is not None}


def _lost_host() -> tuple[float, float]:
    """How long the replacement of a lost host takes, and how long a unit takes to start."""
    with _hosts(factor=SILENT_S / 20.0) as hosts:
        run = hosts.run
        units = [f"web-{number}" for number in range(UNITS)]
        run.unit("web", "step_loop", "--every", "0.05", fenced=True, count=UNITS, hosts=[ENGINES, MORE_ENGINES])
        hosts.up()
        hosts.join(ENGINES)
        for unit in units:
            run.wait_state(unit, "ready", within_s=WITHIN_S)
        hosts.join(MORE_ENGINES)
        eventually(lambda: f"host/{MORE_ENGINES}" in run.rows(), within_s=WITHIN_S)
        starts = []
        for unit in units[:2]:
            began, life = time.monotonic(), run.unit_row(unit).incarnation
            run.cli("restart", unit, "--yes", "--no-wait")
            run.wait_incarnation(unit, above=life, within_s=WITHIN_S)
            starts.append(time.monotonic() - began)
        lives = run.incarnations()
        began = time.monotonic()
        hosts.kill(ENGINES)
        for unit in units:
            if run.unit_row(unit).host == ENGINES:
                run.wait_incarnation(unit, above=lives[unit], within_s=WITHIN_S)
        took_s = time.monotonic() - began
        run.cli("hosts", "forget", ENGINES, "--yes")
        return took_s, median(starts)


@contextmanager
def _hosts(*, factor: float) -> Iterator[Hosts]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        yield from run_on_hosts(Path(folder), f"bench-{uuid.uuid4().hex[:6]}", factor=factor)
