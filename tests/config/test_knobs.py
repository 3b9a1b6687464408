"""Knobs check their values, and supervision times never contradict each other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.knobs import supervision_knobs, times_with, unit_knobs
from agentrl.config.run import RunConfig
from agentrl.config.supervision_times import SupervisionTimes
from agentrl.errors import ConfigError, UnknownNameError
from agentrl.protocol.knob import Knob
from agentrl.protocol.specs import Role

KNOBS = {knob.name: knob for knob in supervision_knobs()}


def test_every_supervision_time_is_a_knob_with_help_and_range():
    assert set(KNOBS) == {f"supervision.{name}" for name in SupervisionTimes.model_fields}
    for knob in KNOBS.values():
        assert knob.help.endswith("."), knob.name
        assert knob.minimum is not None, knob.name
        assert knob.maximum is not None, knob.name
        assert knob.boundary in ("now", "restart")
        assert knob.unit == ("s" if knob.name.endswith("_s") else "")
    assert KNOBS["supervision.heartbeat_s"].boundary == "restart"
    assert KNOBS["supervision.max_deaths"].kind == "int"
    assert KNOBS["supervision.dead_after_s"].default == 20.0


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("dead_after_s", "12", 12.0), ("dead_after_s", "1e2", 100.0), ("max_deaths", "7", 7)],
)
def test_text_becomes_a_value_of_the_type_of_the_knob(name, text, value):
    seen = KNOBS[f"supervision.{name}"].parse(text)
    assert seen == value
    assert type(seen) is type(value)


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "nan", "inf", "86401", "1 s"])
def test_refusal_names_the_allowed_values(text):
    with pytest.raises(ConfigError, match=r"supervision.dead_after_s must be a number from 0.01 to 86400 \(s\), not"):
        KNOBS["supervision.dead_after_s"].parse(text)


@pytest.mark.parametrize("value", [None, True, "3", 1.5, math.nan, math.inf, -(10**400), 10**400])
def test_whole_number_knob_accepts_only_whole_numbers_in_range(value):
    with pytest.raises(ConfigError, match=r"supervision\.max_deaths must be a whole number from 1 to 1000, not"):
        KNOBS["supervision.max_deaths"].check(value)


def test_choices_and_booleans_accept_only_their_values():
    choice = Knob(name="k", kind="choice", choices=("drop", "keep"), default="drop", help="x")
    assert choice.parse("keep") == "keep"
    with pytest.raises(ConfigError, match="k must be one of drop, keep, not 'kep'"):
        choice.parse("kep")
    switch = Knob(name="s", kind="bool", default=False, help="x")
    assert [switch.parse(text) for text in ("true", "on", "Yes", "false", "off", "no")] == [True] * 3 + [False] * 3
    for wrong in (1, "true", None):
        with pytest.raises(ConfigError, match="s must be true or false"):
            switch.check(wrong)
    with pytest.raises(ConfigError, match="s must be true or false, not '1'"):
        switch.parse("1")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (Knob(name="k", kind="int", default=0, minimum=1), "k must be a whole number of at least 1, not 0"),
        (Knob(name="k", kind="str", choices=("a",), default="a"), "cannot be of the kind 'str' with these choices"),
        (Knob(name="k", kind="blob", default="a"), "cannot be of the kind 'blob'"),
        (Knob(name="k", kind="int", default=0, boundary="soon"), "must be one of 'now', 'next claim', .*, not 'soon'"),
    ],
)
def test_declaration_that_contradicts_itself_is_refused(wrong, says):
    with pytest.raises(ConfigError, match=says):
        wrong.verified()


def test_knobs_of_units_are_those_of_their_fields():
    config = RunConfig.model_validate(
        {
            "name": "r",
            "model": {"build": "tiny"},
            "environments": {"one": {"dataset": "train.jsonl"}},
            "training": {"bound": 5, "decay": {"cap": 3}},
            "retention": {"data_max": "1MiB"},
        }
    )
    trainer = unit_knobs(config, Role.TRAINER)
    assert trainer["bound"] == Knob(
        name="bound",
        kind="int",
        default=5,
        help="How many publications old the oldest trained token of a record may be.",
        minimum=0,
        maximum=1_000_000,
        boundary="next version",
        owner="trainer",
    )
    assert (trainer["strategy"].kind, trainer["strategy"].choices) == ("choice", ("drop", "wait", "decay"))
    assert (trainer["decay_cap"].default, type(trainer["decay_cap"].default)) == (3.0, float)
    assert trainer["wait_limit_s"].unit == "s"
    assert trainer["groups"].scientific
    assert unit_knobs(config, Role.STEWARD)["data_max_bytes"].default == 1 << 20
    assert not unit_knobs(config, Role.TOOLBOX)


def test_changed_time_must_fit_the_other_times():
    times = SupervisionTimes()
    assert times_with(times, "supervision.dead_after_s", 30).dead_after_s == 30
    with pytest.raises(ConfigError, match="dead_after_s must be at least suspect_after_s, 6 s, not 5 s"):
        times_with(times, "supervision.dead_after_s", 5)
    with pytest.raises(ConfigError, match="suspect_after_s must be at least twice heartbeat_s, 8 s, not 6 s"):
        times_with(times, "supervision.heartbeat_s", 4)
    with pytest.raises(UnknownNameError, match=r"did you mean supervision\.dead_after_s"):
        times_with(times, "supervision.dead_after", 5)


@given(st.floats(0.05, 20))
def test_scaling_multiplies_times_and_keeps_counts(factor):
    before, after = SupervisionTimes().model_dump(), SupervisionTimes().scaled(factor).model_dump()
    for name, value in before.items():
        expected = value * factor if name.endswith("_s") else value
        assert after[name] == pytest.approx(expected)


@given(name=st.sampled_from(sorted(KNOBS)), value=st.floats() | st.integers() | st.text(max_size=3) | st.none())
def test_knob_accepts_nothing_that_the_configuration_refuses(name, value):
    try:
        times_with(SupervisionTimes(), name, value)
    except ConfigError:
        return
    assert SupervisionTimes.model_validate({name.removeprefix("supervision."): KNOBS[name].check(value)})
