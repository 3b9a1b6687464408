"""The silence of the coordinator is counted in the agent's own checks."""

from __future__ import annotations

from agentrl.host.coordinator_watchdog import START_WITHIN_S, SilenceTimer


def looked(silence: SilenceTimer, began: float, for_s: float) -> float:
    """Check at the timer's interval for some time. Returns the time at the end."""
    now = began
    while now < began + for_s:
        now += silence.pace_s
        silence.look(now)
    return now


def connected(patience_s: float) -> SilenceTimer:
    silence = SilenceTimer()
    silence.begin(0.0)
    silence.patience_s = patience_s
    silence.message_received()
    return silence


def test_silence_is_too_long_after_the_patience_and_a_message_resets_it() -> None:
    silence = connected(10.0)
    now = looked(silence, 0.0, 9.0)
    assert not silence.too_long
    silence.message_received()
    now = looked(silence, now, 9.0)
    assert not silence.too_long
    looked(silence, now, 2.0)
    assert silence.too_long


def test_time_in_which_the_agent_was_stopped_does_not_count() -> None:
    silence = connected(10.0)
    now = looked(silence, 0.0, 5.0)
    silence.look(now + 3600.0)
    assert not silence.too_long


def test_coordinator_before_its_first_message_has_the_time_of_a_slow_start() -> None:
    silence = connected(2.0)
    silence.begin(0.0)
    now = looked(silence, 0.0, START_WITHIN_S - 1)
    assert not silence.too_long
    looked(silence, now, 2.0)
    assert silence.too_long
