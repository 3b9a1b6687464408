"""Leases: silence, phases, late checks, and jumps of the wall clock."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.control.clock import Clock
from agentrl.supervision.liveness import Finding, Health, Leases

SUSPECT_S, DEAD_S = 6.0, 20.0


@pytest.fixture
def leases() -> Leases:
    leases = Leases(SUSPECT_S, DEAD_S)
    leases.begin("web-0", 1000.0)
    return leases


def healths(leases: Leases, now: float, unseen: tuple[str, ...] = ()) -> list[Health]:
    return [finding.health for finding in leases.scan(now, unseen)]


def test_silent_unit_is_suspect_then_dead_each_reported_once(leases: Leases) -> None:
    assert healths(leases, 1005.9) == []
    assert healths(leases, 1006.1) == [Health.SUSPECT]
    assert healths(leases, 1019.9) == []
    assert healths(leases, 1020.1) == [Health.HUNG]
    leases.beat("web-0", 1021.0)
    assert healths(leases, 1021.0) == [Health.WELL]


def test_unit_whose_network_was_away_has_time_to_connect_again(leases: Leases) -> None:
    leases.connects_again("web-0", 1001.0, 30.0)
    assert healths(leases, 1030.0) == [Health.SUSPECT]
    assert healths(leases, 1031.0) == [Health.HUNG]


def test_inside_a_phase_only_its_deadline_counts(leases: Leases) -> None:
    leases.phase("web-0", 1000.0, phase="step", age_s=0.0, at_most_s=100.0)
    assert healths(leases, 1099.0) == []
    assert list(leases.scan(1101.0)) == [
        Finding("web-0", Health.HUNG, "phase 'step' stands still for 101.0 s, 100 s allowed")
    ]


def test_phase_excuses_silence_only_with_a_host_agent(leases: Leases) -> None:
    leases.phase("web-0", 1000.0, phase="step", age_s=0.0, at_most_s=900.0)
    assert healths(leases, 1007.0, unseen=("web-1",)) == []
    assert healths(leases, 1007.0, unseen=("web-0",)) == [Health.SUSPECT]
    assert healths(leases, 1021.0, unseen=("web-0",)) == [Health.HUNG]
    assert healths(leases, 1022.0) == [Health.WELL], "its agent is back and sees it"
    leases.beat("web-0", 1023.0)
    assert healths(leases, 1024.0, unseen=("web-0",)) == [], "its agent is away, but the unit itself sends heartbeats"


def test_phase_of_a_reporting_unit_counts_without_a_host_agent(leases: Leases) -> None:
    leases.phase("web-0", 1000.0, phase="step", age_s=0.0, at_most_s=900.0)
    leases.beat("web-0", 1030.0, loop_lag_s=30.0)
    assert healths(leases, 1031.0, unseen=("web-0",)) == []


def test_late_check_extends_all_leases(leases: Leases) -> None:
    leases.begin("web-1", 1000.0)
    leases.phase("web-1", 1000.0, phase="step", age_s=0.0, at_most_s=10.0)
    leases.extend_all(60.0, 1060.0)
    assert healths(leases, 1065.0) == []
    assert healths(leases, 1071.0) == [Health.SUSPECT, Health.HUNG]


def test_heartbeat_during_a_late_check_does_not_hide_the_silence_of_others(leases: Leases) -> None:
    leases.begin("web-1", 1000.0)
    leases.beat("web-0", 1060.0)
    leases.extend_all(60.0, 1060.0)
    leases.beat("web-1", 1061.0)
    assert healths(leases, 1068.0) == [Health.SUSPECT, Health.SUSPECT]


class WallAndMonotonic:
    """Both clocks of a machine."""

    def __init__(self) -> None:
        self.wall, self.monotonic = 1_800_000_000.0, 50.0

    def pass_(self, by_s: float) -> None:
        self.wall += by_s
        self.monotonic += by_s


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0, 3 * 365 * 86_400.0, -1_799_999_999.0])
def test_jump_of_the_wall_clock_moves_no_lease_and_no_deadline(jump_s: float) -> None:
    machine = WallAndMonotonic()
    clock = Clock(monotonic=lambda: machine.monotonic, wall=lambda: machine.wall)
    assert clock.now() == 1_800_000_000.0, "stored times are wall-clock times for people and the next coordinator"
    leases = Leases(SUSPECT_S, DEAD_S)
    leases.begin("web-0", clock.now())
    leases.begin("web-1", clock.now())
    leases.phase("web-1", clock.now(), phase="step", age_s=0.0, at_most_s=30.0)
    machine.pass_(5.0)
    machine.wall += jump_s
    assert healths(leases, clock.now()) == []
    machine.pass_(2.0)
    assert healths(leases, clock.now()) == [Health.SUSPECT]
    machine.wall -= 2 * jump_s
    machine.pass_(14.0)
    assert healths(leases, clock.now()) == [Health.HUNG]
    machine.pass_(10.0)
    assert [finding.name for finding in leases.scan(clock.now())] == ["web-0", "web-1"]
    assert clock.now() == 1_800_000_031.0


def test_hanging_unit_is_reported_until_its_next_heartbeat() -> None:
    """At the first report there may be no host that can act."""
    leases = Leases(SUSPECT_S, DEAD_S)
    leases.begin("web-0", 100.0)
    assert healths(leases, 100.0 + DEAD_S) == [Health.HUNG]
    assert healths(leases, 101.0 + DEAD_S) == [Health.HUNG]
    leases.beat("web-0", 102.0 + DEAD_S)
    assert healths(leases, 102.0 + DEAD_S) == [Health.WELL]
    assert healths(leases, 103.0 + DEAD_S) == []


def test_suspect_unit_recovers_after_a_restart_of_the_coordinator() -> None:
    """It would stay suspect otherwise, because the new coordinator sees no change."""
    leases = Leases(SUSPECT_S, DEAD_S)
    leases.begin("web-0", 100.0, Health.SUSPECT)
    assert healths(leases, 100.1) == []
    leases.beat("web-0", 101.0)
    assert healths(leases, 101.1) == [Health.WELL]
    leases.begin("web-0", 102.0, Health.SUSPECT)
    assert healths(leases, 102.1) == []
    leases.end("web-0")
    leases.begin("web-1", 110.0, Health.SUSPECT)
    assert healths(leases, 110.1 + DEAD_S - SUSPECT_S) == [Health.HUNG]


def test_restarted_coordinator_uses_the_reported_age_of_progress() -> None:
    leases = Leases(SUSPECT_S, DEAD_S)
    leases.begin("web-0", 1000.0)
    leases.phase("web-0", 1000.0, phase="step", age_s=95.0, at_most_s=100.0)
    leases.progress("web-0", 1000.0, progress=7, age_s=90.0)
    leases.beat("web-0", 1001.0, progress=7)
    lease = leases.get("web-0")
    assert lease is not None
    assert (lease.progressed, lease.phase_ends) == (910.0, 1010.0)
    leases.beat("web-0", 1002.0, progress=8)
    assert lease.progressed == 1002.0


class EveryLease(Leases):
    """A reference that judges every lease at every scan."""

    def scan(self, now: float, unseen: Collection[str] = ()) -> Iterator[Finding]:
        self._unusual.update(self._leases)
        return super().scan(now, unseen)


NAMES = st.sampled_from(("web-0", "web-1", "web-2"))
ACTS = st.one_of(
    st.tuples(st.just("begin"), NAMES, st.sampled_from((Health.WELL, Health.SUSPECT))),
    st.tuples(st.just("beat"), NAMES, st.sampled_from((0.0, 0.0, 7.0))),
    st.tuples(st.just("phase"), NAMES, st.sampled_from(("", "step"))),
    st.tuples(st.just("end"), NAMES, st.none()),
    st.tuples(st.just("wait"), st.sampled_from((0.5, 3.0, 8.0)), st.booleans()),
)


@given(st.lists(ACTS, max_size=60))
def test_scan_of_silent_and_unusual_leases_equals_a_scan_of_all(acts: list[tuple[Any, ...]]) -> None:
    both, now = (Leases(6.0, 20.0), EveryLease(6.0, 20.0)), 100.0
    for act in acts:
        for leases in both:
            match act:
                case ("begin", name, health):
                    leases.begin(name, now, health)
                case ("beat", name, lag):
                    leases.beat(name, now, progress=int(now), loop_lag_s=lag)
                case ("phase", name, phase):
                    leases.phase(name, now, phase=phase, age_s=1.0, at_most_s=5.0)
                case ("end", name, _):
                    leases.end(name)
                case ("wait", by, True):
                    # The coordinator itself did not run meanwhile.
                    leases.extend_all(by, now + by)
        if act[0] == "wait":
            now += act[1]
        found, expected = (list(leases.scan(now)) for leases in both)
        assert found == expected
