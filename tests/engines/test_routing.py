"""Which engine a call goes to."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from agentrl.engines.routing import Candidate, Router

NOW = 1000.0


def engine(name: str, **changes: Any) -> Candidate:
    facts: dict[str, Any] = {"serving": True, "version": 3, "slots": 10, "running": 0, "seen_at": NOW}
    return Candidate(name=name, url=f"http://{name}", **{**facts, **changes})


def router() -> Router:
    return Router(random.Random(1))


def chosen(router: Router, engines: list[Candidate], affinity: str = "", now: float = NOW, **wish: Any) -> str:
    found = router.choose(engines, affinity, now, **wish)
    return "" if found is None else found.name


def test_ties_are_broken_by_chance() -> None:
    one, engines = router(), [engine("a"), engine("b"), engine("c")]
    counts = Counter(chosen(one, engines) for _ in range(3000))
    assert set(counts) == {"a", "b", "c"}
    assert min(counts.values()) > 850


def test_the_emptiest_by_share_of_its_slots_is_taken() -> None:
    engines = [engine("small", slots=4, running=2), engine("large", slots=64, running=20)]
    assert chosen(router(), engines) == "large"


def test_calls_since_the_last_report_count_immediately() -> None:
    one, engines = router(), [engine("a"), engine("b")]
    for _ in range(10):
        one.sent(chosen(one, engines))
    counts = Counter(one._mine)
    assert counts == {"a": 5, "b": 5}
    for _ in range(5):
        one.answered("a")
    assert chosen(one, engines) == "a"


def test_a_conversation_stays_on_its_engine() -> None:
    one, engines = router(), [engine("a"), engine("b"), engine("c")]
    home = chosen(one, engines, "record")
    busier = [engine(name, running=3 if name == home else 0) for name in "abc"]
    assert {chosen(one, busier, "record") for _ in range(20)} == {home}


def test_a_conversation_leaves_an_engine_that_is_clearly_fuller() -> None:
    one = router()
    home = chosen(one, [engine("a"), engine("b")], "record")
    full = [engine(name, running=9 if name == home else 1) for name in "ab"]
    new = chosen(one, full, "record")
    assert new != home
    assert chosen(one, [engine("a"), engine("b")], "record") == new


def test_a_dead_engine_is_excluded_immediately_and_its_conversations_move() -> None:
    one, engines = router(), [engine("a"), engine("b")]
    home = chosen(one, engines, "record")
    one.found_dead(home, NOW + 1)
    assert {chosen(one, engines, "record", NOW + 1) for _ in range(20)} == {"a", "b"} - {home}
    # A report from before the death does not bring the engine back; a newer one does.
    one.forget("record")
    alive = [engine(name, seen_at=NOW + 2) for name in "ab"]
    assert home in {chosen(one, alive, now=NOW + 2) for _ in range(50)}


@pytest.mark.parametrize(
    "useless",
    [{"serving": False}, {"version": None}, {"seen_at": NOW - 11}],
)
def test_engines_that_are_silent_or_not_serving_get_no_calls(useless: dict[str, Any]) -> None:
    assert chosen(router(), [engine("a", **useless), engine("b")]) == "b"
    assert chosen(router(), [engine("a", **useless)]) == ""
    assert chosen(router(), []) == ""


def test_routing_can_require_a_version_and_exclude_old_ones() -> None:
    engines = [engine("a", version=3), engine("b", version=5, versions_loaded=(2, 5))]
    assert chosen(router(), engines, version=2) == "b"
    assert chosen(router(), engines, version=3) == "a"
    assert chosen(router(), engines, version=4) == ""
    assert chosen(router(), engines, oldest=4) == "b"
    assert {chosen(router(), engines, oldest=3) for _ in range(1)} <= {"a", "b"}


def test_the_number_of_remembered_conversations_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.engines.routing.MAX_CONVERSATIONS", 10)
    one = router()
    for number in range(100):
        chosen(one, [engine("a")], f"r{number}")
    assert list(one._homes) == [f"r{number}" for number in range(90, 100)]


def test_an_engine_for_evaluations_gets_only_calls_of_its_version() -> None:
    engines = [engine("own", version=None, versions_loaded=(2,)), engine("usual")]
    assert chosen(router(), engines, version=2) == "own"
    assert chosen(router(), engines) == chosen(router(), engines, oldest=1) == "usual"
    assert chosen(router(), engines[:1]) == ""
