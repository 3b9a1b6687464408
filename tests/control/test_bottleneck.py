"""The bottleneck of the data plane is named, and full disks are predicted."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from agentrl.control.state.bottleneck import EVERY_S, BottleneckDetector, Change, bottleneck, change_of
from agentrl.control.state.disk_forecast import DiskForecast
from agentrl.protocol.rows import BottleneckRow
from agentrl.telemetry import data_plane_metrics
from agentrl.telemetry.data_plane_metrics import Meter, named

AT = 1_700_000_000.0
GIB = 1 << 30


class Plant:
    """Units that report the used share of their slots, and episodes that wait for tools or model calls."""

    def __init__(self) -> None:
        self.detector = BottleneckDetector()
        self.now = AT
        self.totals: dict[str, dict[str, float]] = {}
        self.incarnations: dict[str, int] = {}
        self.no_steps = ""

    def run(
        self,
        seconds: float,
        *,
        in_tools: float = 0.2,
        in_model: float = 0.7,
        tools: dict[str, float] | None = None,
        **busy: float,
    ) -> BottleneckRow:
        """`busy` by group; one unit each."""
        row = None
        for _ in range(int(seconds / 2)):
            self.now += 2.0
            for group, share in busy.items():
                slots = {"trainer": 1, "engine": 64, "sampler": 32, "toolbox": 32}[group]
                added = {data_plane_metrics.BUSY.name: 2 * share * slots, data_plane_metrics.OFFERED.name: 2.0 * slots}
                if group == "sampler":
                    stood = 2 * share * slots
                    added |= {
                        data_plane_metrics.IN_TOOLS.name: in_tools * stood,
                        data_plane_metrics.IN_MODEL.name: in_model * stood,
                    }
                self.report(f"{group}-0", group, added)
            latencies = {named(data_plane_metrics.TOOL_P95, name): p95 for name, p95 in (tools or {}).items()}
            rates = {named(data_plane_metrics.TOOL_RATE, name): 5.0 for name in tools or {}}
            self.detector.take("toolbox-0", "toolbox", 1, latencies | rates, self.now)
            if self.detector.is_due(self.now, self.no_steps):
                row = self.detector.compute(self.now, self.totals, "", self.no_steps)
        row = row or self.detector.shown
        assert row is not None
        return row

    def report(self, unit: str, role: str, added: dict[str, float]) -> None:
        totals = self.totals.setdefault(unit, {})
        for name, value in added.items():
            totals[name] = totals.get(name, 0.0) + value
        self.detector.take(unit, role, self.incarnations.get(unit, 1), totals, self.now)


def test_shares_are_computed_from_intervals_by_unit_and_by_role() -> None:
    row = Plant().run(120, trainer=0.59, engine=0.62, sampler=0.5, toolbox=0.1)
    assert row.busy == {"trainer": 0.59, "engine": 0.62, "sampler": 0.5, "toolbox": 0.1}
    assert row.units == {"trainer-0": 0.59, "engine-0": 0.62, "sampler-0": 0.5, "toolbox-0": 0.1}
    assert (row.in_tools, row.in_model) == (0.2, 0.7)
    assert row.bottleneck == "engines"
    assert row.sentence == "trainer waits 41% for batches; engines 62% busy; episodes 70% in model calls"


def test_sentence_names_the_start_of_the_trainer_and_not_the_idle_roles() -> None:
    plant, coming = Plant(), "trainer-0 is starting (warm-up: step 3 of 9)"
    assert "engines 0% busy" in plant.run(60, engine=0.0, sampler=0.0).sentence
    row = plant.detector.compute(plant.now, plant.totals, coming)
    assert row is not None
    assert (row.sentence, row.bottleneck) == (coming, "")


def test_counters_of_the_last_incarnation_of_a_trainer_do_not_count() -> None:
    plant, coming = Plant(), "trainer-0 is starting (starts from step-9)"
    assert plant.run(60, trainer=0.1, engine=0.6, sampler=0.5).bottleneck == "engines"
    row = plant.detector.compute(plant.now, plant.totals, coming)
    assert row is not None
    assert (row.sentence, row.bottleneck) == (f"{coming}; engines 60% busy", "")
    assert "trainer" not in row.busy


def test_end_of_steps_is_shown_at_once_and_old_shares_are_dropped() -> None:
    plant, standing = Plant(), "no step is taken any more: all 6 steps are done"
    plant.run(120, trainer=0.5, engine=0.6, sampler=0.5, tools={"shop.lookup": 0.3})
    plant.totals.pop("trainer-0")
    assert plant.detector.is_due(plant.now, standing), "the row changes at once"
    row = plant.detector.compute(plant.now, plant.totals, "", standing)
    assert row is not None
    assert (row.sentence, row.bottleneck, row.tools, row.busy) == (standing, "", (), {})
    plant.no_steps = standing
    row = plant.run(12, engine=0.0, sampler=0.0, tools={"shop.lookup": 0.3})
    assert (row.sentence, row.tools) == (standing, ())


def test_time_without_steps_does_not_count_after_steps_go_on() -> None:
    plant = Plant()
    plant.no_steps = "no step is taken: trainer-0 is paused"
    assert plant.run(300, trainer=0.0, engine=0.0, sampler=0.0).sentence == plant.no_steps
    plant.no_steps = ""
    row = plant.run(12, trainer=0.5, engine=0.6, sampler=0.5)
    assert row.sentence == "trainer waits 50% for batches; engines 60% busy; episodes 70% in model calls"


@pytest.mark.parametrize("cycle_s", [4, 20, 50, 80])
def test_alternating_steps_and_waits_give_one_stable_sentence(cycle_s: int) -> None:
    """Shares cover a minute, because over shorter times the trainer alternates between work and waits."""
    plant, seen = Plant(), set[str]()
    plant.run(120, trainer=0.5, engine=0.6, sampler=0.5)
    for turn in range(40):
        row = plant.run(cycle_s / 2, trainer=float(turn % 2), engine=0.6, sampler=0.5)
        seen.add(row.bottleneck)
    assert seen == {"engines"}


def test_slow_tool_is_named_with_its_former_latency_and_the_time_of_the_change() -> None:
    plant = Plant()
    quick = {"shop.lookup": 0.8, "shop.order": 0.3}
    before = plant.run(600, trainer=0.95, engine=0.9, sampler=0.8, toolbox=0.2, tools=quick)
    assert before.bottleneck == "trainer"
    assert before.sentence == "the trainer is 95% busy and never waits; engines 90% busy"
    changed_at = plant.now
    slow = quick | {"shop.lookup": 6.0}
    row = plant.run(120, trainer=0.59, engine=0.3, sampler=0.8, toolbox=0.9, in_tools=0.94, in_model=0.05, tools=slow)
    assert row.bottleneck == "tools"
    assert row.tools[0].name == "shop.lookup"
    assert (row.tools[0].before_s, row.tools[0].p95_s) == (0.8, 6.0)
    assert changed_at <= row.tools[0].changed_at <= changed_at + 2 * EVERY_S
    assert row.since_at == row.tools[0].changed_at
    assert re.fullmatch(
        r"trainer waits 41% for batches; engines 30% busy; episodes 94% in tools: "
        r"shop\.lookup p95 0\.8 → 6 s since \d\d:\d\d",
        row.sentence,
    )
    assert not row.tools[1].changed_at, "the latency of the other tool did not change"


def test_samples_before_the_window_do_not_count() -> None:
    plant = Plant()
    plant.run(300, trainer=1.0, sampler=1.0)
    assert plant.run(90, trainer=0.1, sampler=0.5).busy == {"trainer": 0.1, "sampler": 0.5}


def test_new_incarnation_starts_at_zero_and_dead_units_are_left_out() -> None:
    plant = Plant()
    plant.run(120, trainer=0.9, sampler=0.5)
    plant.incarnations["trainer-0"] = 2
    plant.totals.pop("trainer-0")
    assert plant.run(60, trainer=0.2, sampler=0.5).busy["trainer"] == 0.2
    plant.totals.pop("trainer-0")
    assert "trainer" not in plant.run(20, sampler=0.5).busy


def test_run_without_a_data_plane_has_no_row() -> None:
    detector = BottleneckDetector()
    detector.take("web-0", "sidecar", 1, {"requests": 3.0}, AT)
    assert detector.compute(AT, ["web-0"]) is None


@pytest.mark.parametrize(
    ("busy", "in_tools", "in_model", "kind"),
    [
        ({"sampler": 0.5}, 0.9, 0.1, ""),
        ({"trainer": 0.95, "sampler": 0.9}, 0.9, 0.1, "trainer"),
        ({"trainer": 0.2, "sampler": 0.0}, 0.0, 0.0, "admission"),
        ({"trainer": 0.2, "sampler": 0.4}, 0.6, 0.3, "tools"),
        ({"trainer": 0.2, "sampler": 0.4}, 0.1, 0.3, "engines"),
        ({"trainer": 0.2}, 0.0, 0.0, ""),
    ],
)
def test_one_role_is_the_bottleneck(busy: dict[str, float], in_tools: float, in_model: float, kind: str) -> None:
    assert bottleneck(busy, in_tools, in_model) == kind


def test_only_a_lasting_change_counts() -> None:
    def changed(*values: float) -> Change | None:
        return change_of([(10.0 * place, value) for place, value in enumerate(values)])

    assert changed(*[1.0] * 20) is None
    assert changed(*[1.0] * 10, 9.0, 1.0, 1.0, 1.0) is None, "a peak is not a lasting change"
    assert changed(*[1.0] * 10, 9.0, 9.0) is None, "not yet"
    assert changed(*[1.0] * 10, 9.0, 9.0, 9.0) == Change(1.0, 9.0, 100.0)
    assert changed(*[9.0] * 10, 1.0, 1.1, 1.0) == Change(9.0, 1.0, 100.0)
    assert changed(*[1.0, 1.2] * 10) is None, "a change that does not last"
    assert changed(9.0, 9.0) is None


def test_meter_adds_up_used_and_offered_seconds() -> None:
    meter = Meter(10.0)
    meter.set(3, 4, 12.0)
    meter.set(9, 4, 14.0)
    meter.set(0, 4, 15.0)
    assert meter.read(20.0) == {"busy_s": 3 * 2 + 4 * 1, "offered_s": 4 * 8}


# ---- disks ----


def forecast(free: Callable[[float], float], seconds: float) -> float | None:
    disks = DiskForecast(600.0)
    for at in range(0, int(seconds), 5):
        disks.add("a", int(free(at)), float(at))
    return disks.full_in_s("a")


def test_steadily_filling_disk_is_predicted() -> None:
    dice = random.Random(1)
    left_s = forecast(lambda at: 100 * GIB - 0.01 * GIB * at + dice.gauss(0, 0.05 * GIB), 1500)
    assert left_s == pytest.approx(8500, rel=0.05)


@pytest.mark.parametrize(
    ("free", "seconds"),
    [
        (lambda at: 100 * GIB, 1500),
        (lambda at: 100 * GIB + 0.01 * GIB * at, 1500),
        (lambda at: 100 * GIB - 0.01 * GIB * at, 300),
        (lambda at: 100 * GIB - (0.02 * GIB * at if at < 600 else 12 * GIB), 1500),
        (lambda at: 100 * GIB - 0.01 * GIB * (at % 200), 1500),
        (lambda at: 1e6 * GIB - 0.01 * GIB * at, 1500),
    ],
    ids=["even", "freed", "too short", "has ended", "written and removed", "far away"],
)
def test_nothing_is_predicted_without_evidence(free: Callable[[float], float], seconds: float) -> None:
    assert forecast(free, seconds) is None
