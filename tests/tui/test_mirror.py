"""The mirror of a run: complete snapshots, the age of the rows, and lost and restored connections."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentrl.protocol.rows import GroupRow, RunRow, UnitRow, UnitState
from tui.model.mirror import STALE_S, Mirror


def unit(name: str, cpu: float = 0.0) -> UnitRow:
    return UnitRow(unit=name, group="web", role="sidecar", state=UnitState.READY, incarnation=1, cpu_percent=cpu)


def whole(mirror: Mirror, *names: str, clock: float = 0.0) -> None:
    mirror.begin()
    mirror.put("run", RunRow("demo", "u", "running"))
    for name in names:
        mirror.put(f"unit/{name}", unit(name))
    mirror.whole(clock)


def test_partial_snapshot_is_never_shown() -> None:
    mirror = Mirror()
    whole(mirror, "web-0", "web-1")
    mirror.begin()
    mirror.put("unit/web-2", unit("web-2"))
    assert [row.unit for row in mirror.units] == ["web-0", "web-1"]
    mirror.lost(1.0, "it went away in the middle")
    assert [row.unit for row in mirror.units] == ["web-0", "web-1"]
    whole(mirror, "web-2", clock=2.0)
    assert [row.unit for row in mirror.units] == ["web-2"]


def test_row_missing_in_a_snapshot_counts_as_changed() -> None:
    mirror = Mirror()
    whole(mirror, "web-0", "web-1")
    changes = mirror.watch("unit")
    assert changes.take() == {"unit/web-0", "unit/web-1"}
    whole(mirror, "web-1", "web-2")
    assert changes.take() == {"unit/web-0", "unit/web-2"}
    mirror.put("group/web", GroupRow("web", "sidecar", 2))
    assert changes.take() == set()


def test_stale_view_allows_no_command() -> None:
    mirror = Mirror()
    assert not mirror.fresh(0.0)
    assert mirror.age_s(0.0) is None
    whole(mirror, clock=100.0)
    assert mirror.fresh(100.0 + STALE_S)
    assert not mirror.fresh(100.1 + STALE_S)
    mirror.message_received(110.0)
    assert mirror.fresh(111.0)
    mirror.lost(111.0, "silent")
    assert not mirror.fresh(111.0), "a lost connection allows no command at once"
    mirror.whole(112.0)
    assert mirror.fresh(112.0)


def test_duration_of_a_lost_connection_is_counted_from_its_loss() -> None:
    mirror = Mirror()
    whole(mirror, "web-0")
    mirror.lost(50.0, "first")
    mirror.lost(60.0, "second", "a hint")
    assert (mirror.link.since, mirror.link.why, mirror.link.tries) == (50.0, "second", 2)
    mirror.whole(70.0)
    assert mirror.link.connected
    mirror.lost(90.0, "again")
    assert (mirror.link.since, mirror.link.tries) == (90.0, 1)


@given(st.lists(st.tuples(st.sampled_from(["web-0", "web-1", "web-2"]), st.none() | st.floats(0, 100)), max_size=30))
def test_mirror_equals_the_newest_rows_in_any_order_of_changes(changes: list[tuple[str, float | None]]) -> None:
    mirror, expected = Mirror(), dict[str, float]()
    whole(mirror)
    seen = mirror.watch("unit")
    for name, cpu in changes:
        mirror.put(f"unit/{name}", None if cpu is None else unit(name, cpu))
        if cpu is None:
            expected.pop(name, None)
        else:
            expected[name] = cpu
    assert {row.unit: row.cpu_percent for row in mirror.units} == expected
    assert seen.take() == {f"unit/{name}" for name, _ in changes}


def test_curves_are_removed_with_their_units() -> None:
    mirror = Mirror()
    whole(mirror, "web-0", "web-1")
    mirror.sample(0.0)
    mirror.sample(0.1)
    assert list(mirror.trends["web-1"].cpu) == [0.0], "samples are limited"
    mirror.put("unit/web-1", None)
    mirror.sample(10.0)
    assert set(mirror.trends) == {"web-0"}
