"""Replays of tool calls: what rebuilds a session, what counts as the same result, and the verdict."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.policies.replay_verdicts import (
    CallResult,
    EarlierCall,
    ToolEffect,
    Verdict,
    fault_of,
    is_same,
    judge,
    rebuilding_calls,
)
from agentrl.policies.result_diff import MOST_CHANGES, MOST_COUNTED, MOST_JSON_CHARS, Change, compare

OK = CallResult("ok", "17")
OTHER = CallResult("ok", "18")
LATE = CallResult("timeout", "lookup did not answer within 20 s.", "infrastructure")
RULES: Mapping[str, ToolEffect] = {"lookup": "pure", "order": "outside"}

statuses = st.sampled_from(["ok", "tool_error", "timeout", "lost", "cancelled", "refused"])
earlier = st.builds(
    EarlierCall,
    id=st.uuids().map(str),
    turn=st.integers(0, 4),
    number=st.integers(0, 3) | st.integers(1000, 1003),
    server=st.sampled_from(["shop", "other"]),
    tool=st.sampled_from(["lookup", "calculator", "order"]),
    status=statuses,
)
results = st.builds(
    CallResult, status=statuses, text=st.sampled_from(["17", "18", '{"a": [1, 2]}', "no answer in 3 s"])
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def call(turn: int, number: int = 0, tool: str = "calculator", status: str = "ok", server: str = "shop") -> EarlierCall:
    return EarlierCall(f"{turn}.{number}", turn, number, server, tool, status)


def ids(calls: Sequence[EarlierCall]) -> list[str]:
    return [one.id for one in calls]


def test_calls_of_the_same_server_before_it_rebuild_the_session_in_their_order() -> None:
    others = [call(2), call(0), call(1, 1), call(1, server="other"), call(3), call(1)]
    assert ids(rebuilding_calls(call(2), others, {}, stateless=False)) == ["0.0", "1.0", "1.1"]


def test_pure_calls_and_calls_that_did_not_run_rebuild_nothing() -> None:
    others = [
        call(0, tool="lookup"),
        call(0, 1, status="refused"),
        call(0, 2, tool="order"),
        call(0, 3, "x", "running"),
    ]
    assert ids(rebuilding_calls(call(1), others, RULES, stateless=False)) == ["0.2"]


@pytest.mark.parametrize(("tool", "stateless"), [("lookup", False), ("calculator", True)])
def test_a_pure_tool_and_a_stateless_server_need_no_rebuilding(tool: str, stateless: bool) -> None:
    assert rebuilding_calls(call(1, tool=tool), [call(0)], RULES, stateless=stateless) == []


def test_a_repeated_call_rebuilds_once_with_its_last_try() -> None:
    others = [call(0, 0, status="lost"), call(0, 1000)]
    assert ids(rebuilding_calls(call(1), others, {}, stateless=False)) == ["0.1000"]


def test_a_second_try_whose_first_is_not_listed_rebuilds_in_the_order_of_its_call() -> None:
    assert ids(rebuilding_calls(call(1), [call(0, 1), call(0, 1000)], {}, stateless=False)) == ["0.1000", "0.1"]


@given(earlier, st.lists(earlier, max_size=12), st.booleans())
def test_a_rebuild_has_only_earlier_calls_that_ran_and_change_something(
    replayed: EarlierCall, others: list[EarlierCall], stateless: bool
) -> None:
    plan = rebuilding_calls(replayed, others, RULES, stateless=stateless)
    places = [(one.turn, one.number % 1000) for one in plan]
    assert places == sorted(set(places))
    for one in plan:
        assert one.server == replayed.server
        assert one.tool != "lookup"
        assert one.status != "refused"
        assert (one.turn, one.number % 1000) < (replayed.turn, replayed.number % 1000)
    assert not plan or not (stateless or replayed.tool == "lookup")


@pytest.mark.parametrize(
    ("then", "runs", "verdict", "agreed"),
    [
        (OK, [OK, OK], Verdict.SAME, 0),
        (OK, [OTHER], Verdict.DIFFERENT, 0),
        (OK, [OK, OTHER, OK], Verdict.FLAKY, 2),
        (OK, [OK, LATE], Verdict.FLAKY, 1),
        (OK, [LATE, LATE], Verdict.BROKEN, 0),
        (LATE, [OK, OTHER], Verdict.FIXED, 0),
        (LATE, [LATE, OK, OK], Verdict.FLAKY, 2),
        (LATE, [CallResult("timeout", "lookup did not answer within 5 s.")], Verdict.SAME, 0),
        (LATE, [CallResult("lost", "it died")], Verdict.DIFFERENT, 0),
        (OK, [], Verdict.CANNOT_RUN, 0),
    ],
)
def test_verdicts(then: CallResult, runs: list[CallResult], verdict: Verdict, agreed: int) -> None:
    judged = judge(then, runs)
    assert (judged.verdict, judged.agreed) == (verdict, agreed)


@given(results, st.lists(results, max_size=6), st.randoms())
def test_a_verdict_does_not_depend_on_the_order_of_the_runs(
    then: CallResult, runs: list[CallResult], chance: random.Random
) -> None:
    judged = judge(then, runs)
    mixed = runs[:]
    chance.shuffle(mixed)
    assert judge(then, mixed) == judged
    assert (judged.verdict is Verdict.FLAKY) == (0 < judged.agreed < len(runs))
    assert (judged.verdict is Verdict.SAME) == (bool(runs) and all(is_same(then, run) for run in runs))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"a": 1, "b": [2]}', '{ "b": [2.0], "a": 1 }', True),
        ('{"a": 1}', '{"a": true}', False),
        ("two  \nlines\n", "two\nlines", True),
        ("a", "A", False),
        ("12", "13", False),
    ],
)
def test_results_are_the_same_by_value(one: str, other: str, same: bool) -> None:
    assert is_same(CallResult("ok", one), CallResult("ok", other)) is same


def test_numbers_in_messages_of_failures_do_not_count() -> None:
    assert is_same(CallResult("lost", "pid 17 died"), CallResult("lost", "pid 4711 died"))
    assert not is_same(CallResult("lost", "pid 17 died"), CallResult("timeout", "pid 17 died"))


@given(values, values)
def test_equal_results_have_no_changes_and_different_ones_have(one: object, other: object) -> None:
    then, now = CallResult("ok", json.dumps([one])), CallResult("ok", json.dumps([other], indent=1))
    assert is_same(then, now) is (compare(then, now).changes == ())
    assert compare(then, then).changes == ()


def test_json_is_compared_by_path_and_text_by_line() -> None:
    then = CallResult("ok", '{"items": [{"price": 3, "old": 1}], "x y": 1}')
    now = CallResult("ok", '{"items": [{"price": 4}, 7], "x y": 1}')
    assert compare(then, now).changes == (
        Change("$.items[0].price", "3", "4"),
        Change("$.items[0].old", "1", None),
        Change("$.items[1]", None, "7"),
    )
    text = compare(CallResult("ok", "a\nb\nc\nd"), CallResult("tool_error", "a\nB\nc\nd\ne"))
    assert text.changes == (
        Change("status", "ok", "tool_error"),
        Change("line 2", "b", "B"),
        Change("line 5", None, "e"),
    )


def test_a_large_diff_is_cut_and_what_is_left_out_is_counted() -> None:
    then = CallResult("ok", json.dumps(list(range(1000))))
    diff = compare(then, CallResult("ok", json.dumps(["x" * 1000] * 1000)))
    assert (len(diff.changes), diff.left_out) == (MOST_CHANGES, 1000 - MOST_CHANGES)
    assert max(len(change.now or "") for change in diff.changes) <= 400


def test_a_replay_shows_the_cause_of_a_failure() -> None:
    assert fault_of(LATE, Verdict.FIXED) == "infrastructure"
    assert fault_of(LATE, Verdict.SAME) == "policy"
    assert fault_of(LATE, Verdict.DIFFERENT) == ""
    assert fault_of(OK, Verdict.BROKEN) == ""


def test_a_result_of_repeated_lines_is_compared_in_a_moment() -> None:
    then = CallResult("ok", "\n".join("ab"[number % 2] for number in range(2000)))
    now = CallResult("ok", "\n".join("ba"[number % 3 == 0] for number in range(2000)))
    began = time.process_time()
    assert [change.path for change in compare(then, now).changes] == ["line 3"]
    assert time.process_time() - began < 2.0


def test_a_path_stays_short_with_a_name_of_any_length() -> None:
    then, now = ({"x" * 100_000: {"y": list(range(100))}}, {"x" * 100_000: {"y": list(range(1, 101))}})
    diff = compare(CallResult("ok", json.dumps(then)), CallResult("ok", json.dumps(now)))
    assert len(diff.changes) == MOST_CHANGES
    assert max(len(change.path) for change in diff.changes) < 100
    assert diff.changes[0].path.endswith('x…"].y[0]')


def test_comparing_long_results_takes_no_longer_than_reading_them() -> None:
    values = 150_000
    then, now = (CallResult("ok", json.dumps({f"{name}{n}": n for n in range(values)})) for name in "ab")
    assert len(then.text) > MOST_JSON_CHARS
    short = [CallResult("ok", json.dumps([number] * 50_000)) for number in (0, 1)]
    for before, after, counted in ((then, now, 0), (*short, MOST_COUNTED)):
        began = time.process_time()
        diff = compare(before, after)
        assert time.process_time() - began < 1.0
        assert diff.changes
        assert diff.left_out == counted
