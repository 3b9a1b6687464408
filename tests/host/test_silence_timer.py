"""How long a coordinator has been silent, by the agent's own looks."""

from __future__ import annotations

from agentrl.host.coordinator_watchdog import START_WITHIN_S, SilenceTimer


def looked(silence: SilenceTimer, began: float, for_s: float) -> float:
    """Looks at its own pace for a time; the time then."""
    now = began
    while now < began + for_s:
        now += silence.pace_s
        silence.look(now)
    return now


def heard(patience_s: float) -> SilenceTimer:
    silence = SilenceTimer()
    silence.begin(0.0)
    silence.patience_s = patience_s
    silence.heard()
    return silence


def test_a_silence_is_too_long_when_it_lasted_and_a_late_word_ends_it() -> None:
    silence = heard(10.0)
    now = looked(silence, 0.0, 9.0)
    assert not silence.too_long
    silence.heard()
    now = looked(silence, now, 9.0)
    assert not silence.too_long
    looked(silence, now, 2.0)
    assert silence.too_long


def test_an_agent_that_was_stopped_itself_holds_nothing_against_the_coordinator() -> None:
    silence = heard(10.0)
    now = looked(silence, 0.0, 5.0)
    silence.look(now + 3600.0)
    assert not silence.too_long


def test_one_that_was_not_heard_yet_has_the_time_of_a_slow_start() -> None:
    silence = heard(2.0)
    silence.begin(0.0)
    now = looked(silence, 0.0, START_WITHIN_S - 1)
    assert not silence.too_long
    looked(silence, now, 2.0)
    assert silence.too_long
