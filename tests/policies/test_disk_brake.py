"""The brake names the fullest disk, and releases only with some free space."""

from __future__ import annotations

from agentrl.policies.disk_brake import reason

MIB = 1 << 20


def test_a_disk_with_less_than_the_reserve_stops_admission() -> None:
    assert reason({"MongoDB": 600 * MIB, "the run's directory": 900 * MIB}, 512 * MIB, braked=False) == ""
    why = reason({"MongoDB": 300 * MIB, "the run's directory": 500 * MIB}, 512 * MIB, braked=False)
    assert why == "the disk of MongoDB is nearly full: 300 MiB are free, admission resumes at 640 MiB"
    assert reason({"MongoDB": 0}, 0, braked=False) == "", "no reserve, no brake"


def test_the_brake_does_not_flutter_at_the_limit() -> None:
    assert reason({"MongoDB": 600 * MIB}, 512 * MIB, braked=True)
    assert reason({"MongoDB": 640 * MIB}, 512 * MIB, braked=True) == ""
