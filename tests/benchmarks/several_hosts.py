"""Measures the demo over three hosts without a shared disk, next to the same on one, and how soon a killed host is
replaced.

The hosts are network namespaces of this machine: sampler and toolbox on one, the engine on another, the rest on that of
the coordinator. So the figures show what tunnels, copies of files and further processes cost, and no gain of further
machines. Needs root.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from assets import shop_dataset
from tests.benchmarks.report import Outcome, median
from tests.e2e.hosts import ENGINES, MORE_ENGINES, TOOLS, Hosts, run_on_hosts
from tests.e2e.running import Run
from tests.waiting import eventually

WITHIN_S = 600.0
FIRST_STEPS, STEPS = 3, 30
LEAST = 0.9
SILENT_S, UNITS, MOST = 6.0, 4, 1.3


class Learned(NamedTuple):
    per_s: float
    """Trained records."""
    held_out: float
    """Mean score of the evaluation after the last step."""


def measure() -> Outcome:
    outcome = Outcome("several hosts")
    alone = _learn({})
    spread = _learn({TOOLS: {"runs": ["sampler", "toolbox"]}, ENGINES: {"runs": "engine"}})
    outcome.share("trained records over three hosts", spread.per_s, "/s", "on one host", alone.per_s, LEAST)
    outcome.share("held-out score after that", spread.held_out, "", "on one host", alone.held_out, LEAST)
    lost_s, start_s = _lost_host()
    name = f"from the kill of a host to the last of its {UNITS} units ready elsewhere"
    outcome.within(name, lost_s, "s", "detection and start of a unit", SILENT_S + start_s, MOST)
    return outcome


def _learn(elsewhere: dict[str, dict[str, list[str] | str]]) -> Learned:
    with _hosts(factor=1.0) as hosts:
        run = hosts.run
        run.config |= _demo(run.file.parent)
        run.config["hosts"] = elsewhere
        hosts.up()
        for host in elsewhere:
            hosts.join(host)
        eventually(lambda: _trained(run)[0] >= FIRST_STEPS, within_s=WITHIN_S, every_s=0.2, what="the first steps")
        began, (_, before) = time.monotonic(), _trained(run)
        eventually(lambda: _trained(run)[0] >= STEPS - 1, within_s=WITHIN_S, every_s=0.2, what="the last steps")
        took_s, (_, after) = time.monotonic() - began, _trained(run)
        scores = eventually(lambda: _evaluated(run), within_s=WITHIN_S, every_s=1.0, what="the last evaluation")
        return Learned((after - before) / took_s, sum(scores) / len(scores))


def _evaluated(run: Run) -> list[float]:
    """The scores of the last evaluation, when it is complete."""
    asked = f"purpose = eval and status = scored and newest_version > {STEPS}"
    rows = run.cli("records", "list", "--filter", asked, "--limit", "1000")["rows"]
    return [row["score"] for row in rows] if len(rows) >= run.config["evaluation"]["tasks"] else []


def _demo(folder: Path) -> dict[str, Any]:
    """The parts of the demo's run file, with an evaluation at the end only."""
    parts: dict[str, Any] = yaml.safe_load(resources.files("assets").joinpath("train.yaml").read_text())
    parts["name"] = parts["dir"] = None
    shop_dataset.write(folder, random_number=0)
    shop = parts["environments"]["shop"]
    shop |= {"dataset": shop_dataset.TRAIN_FILE, "evaluation": shop_dataset.HELD_OUT_FILE}
    parts["training"]["steps"], parts["evaluation"]["every"] = STEPS, 10_000
    parts["training"]["warmup"]["dataset"] = shop_dataset.DEMONSTRATIONS_FILE
    return {part: value for part, value in parts.items() if value is not None}


def _trained(run: Run) -> tuple[int, int]:
    account = run.cli("accounting")
    return int(account["steps"].get("committed", 0)), int(account["trained_records"])


def _lost_host() -> tuple[float, float]:
    """How long it took, and how long a unit takes to start."""
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
