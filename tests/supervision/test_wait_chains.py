"""Every wait chain ends at a cause with a reason."""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.protocol.messages import Wait
from agentrl.protocol.rows import UnitState
from agentrl.supervision.wait_chains import explain
from agentrl.supervision.wait_graph import UnitFacts


def unit(name: str, *waits: Wait | str, state: UnitState = UnitState.READY, **more: object) -> UnitFacts:
    seen = tuple(wait if isinstance(wait, Wait) else Wait(wait, age_s=10.0) for wait in waits)
    return UnitFacts(name, name.rpartition("-")[0], state, waits=seen, **more)  # type: ignore[arg-type]


def world(*units: UnitFacts) -> dict[str, UnitFacts]:
    return {one.name: one for one in units}


def only(units: dict[str, UnitFacts], **more: float):  # type: ignore[no-untyped-def]
    (chain,) = explain(units, **more)
    return chain


def test_units_without_waits_have_no_chain() -> None:
    assert explain(world(unit("web-0"), unit("web-1", state=UnitState.FATAL))) == []


def test_chain_ends_at_the_unit_that_hangs() -> None:
    chain = only(
        world(
            unit("trainer-0", Wait("sampler-1", "batch", age_s=300.0), report_age_s=12.0),
            unit("sampler-1", Wait("judge-0", "score", age_s=290.0)),
            unit("judge-0", state=UnitState.SUSPECT, silent_s=30.0),
        )
    )
    assert chain.culprit == "judge-0"
    assert chain.sentence == ("trainer-0 ← sampler-1 ← judge-0, 312 s: judge-0 hangs: it sent nothing for 30 s")
    assert [(link.who, link.on, link.what, link.age_s, link.overdue) for link in chain.links] == [
        ("trainer-0", "sampler-1", "batch", 312.0, True),
        ("sampler-1", "judge-0", "score", 290.0, False),
    ]


def test_culprit_is_named_with_its_reason() -> None:
    cases = {
        "is fatal": unit("judge-0", state=UnitState.FATAL, reason="6 deaths"),
        "is lost": unit("judge-0", state=UnitState.LOST),
        "waits to be restarted (restart in 4 s)": unit("judge-0", state=UnitState.BACKOFF, next_what="restart in 4 s"),
        "process is stopped": unit("judge-0", stopped=True),
        "is paused": unit("judge-0", paused=True),
        "is stopped": unit("judge-0", state=UnitState.STOPPED),
        "is being stopped for 7 s": unit("judge-0", state=UnitState.STOPPING, age_s=7.0),
        "40 s beyond the deadline of its phase step": unit("judge-0", phase="step", phase_over_s=40.0),
        "is suspect": unit("judge-0", state=UnitState.SUSPECT),
        "is starting for 3 s": unit("judge-0", state=UnitState.STARTING, age_s=3.0),
        "is at work (phase step), last progress 2 s ago": unit("judge-0", phase="step", progress_age_s=2.0),
    }
    for words, judge in cases.items():
        chain = only(world(unit("trainer-0", "judge-0"), judge))
        assert chain.culprit == "judge-0"
        assert words in chain.because
        assert words in chain.sentence


def test_broken_unit_is_found_behind_slow_units() -> None:
    """The first wait of a unit need not be the one that delays it."""
    chains = explain(
        world(
            unit("a-0", Wait("busy-0", age_s=90.0), Wait("b-0", age_s=80.0)),
            unit("b-0", Wait("busy-0", age_s=70.0), Wait("dead-0", age_s=60.0)),
            unit("busy-0", progress_age_s=1.0),
            unit("dead-0", state=UnitState.FATAL),
        )
    )
    by_culprit = {chain.culprit: chain for chain in chains}
    assert by_culprit["dead-0"].sentence.startswith("a-0 ← b-0 ← dead-0, 80 s")
    assert {link.who for link in by_culprit["busy-0"].links} == {"a-0", "b-0"}


def test_chains_that_need_a_person_come_before_older_waits() -> None:
    chains = explain(
        world(
            unit("patient-0", Wait("busy-0", age_s=900.0)),
            unit("busy-0", progress_age_s=1.0),
            unit("caller-0", Wait("a name", age_s=800.0)),
            unit("early-0", state=UnitState.PENDING, after=("group",), age_s=700.0),
            unit("group-0", state=UnitState.STARTING),
            unit("a-0", Wait("b-0", age_s=20.0)),
            unit("b-0", Wait("a-0", age_s=30.0)),
            unit("new-0", Wait("dead-0", age_s=1.0)),
            unit("dead-0", state=UnitState.FATAL),
            unit("short-0", Wait("doubted-0", age_s=2.0)),
            unit("doubted-0", state=UnitState.SUSPECT),
        )
    )
    assert [chain.culprit for chain in chains] == ["a-0", "doubted-0", "dead-0", "busy-0", "a name", "group-0"]


@pytest.mark.parametrize("reported_by_another", [False, True])
def test_wait_beyond_its_limit_comes_before_older_waits_within_theirs(reported_by_another: bool) -> None:
    def first(at_most_s: float | None) -> str:
        late = Wait("judge-0", "score", 40.0, at_most_s)
        waits = (Wait("record a", age_s=50.0), reported("record a", "tool x", "is asked", 40.0, at_most_s))
        units = world(
            unit("a-0", *(waits if reported_by_another else (late,))),
            unit("trainer-0", Wait("web-0", "page", 200.0, 900.0)),
            *(unit(name, progress_age_s=1.0) for name in ("judge-0", "web-0")),
        )
        return explain(units)[0].culprit

    assert first(at_most_s=30.0) == ("tool x" if reported_by_another else "judge-0")
    assert first(at_most_s=60.0) == "web-0", "there is still time"
    assert first(at_most_s=None) == "web-0", "no limit is given, and the unit is at work"


def test_pool_of_a_tool_server_is_named_instead_of_its_toolbox() -> None:
    what = "has fewer processes than sessions: 3 wait while at most 4 are in use (tools.shop.pool)"
    short = Wait("tool server shop", what, 70.0, 60.0, "toolbox-0")
    reserved = Wait("toolbox-0", "tool call reservation", 20.0, 110.0)
    chain = only(world(unit("sampler-0", reserved), unit("toolbox-0", short, phase="serving")))
    assert (chain.culprit, chain.because, chain.amiss) == ("tool server shop", what, True)
    assert chain.sentence.startswith("sampler-0 ← toolbox-0 ← tool server shop, 70 s: ")
    assert explain(world(unit("sampler-0"), unit("toolbox-0", short))) == [], "no unit waits for it"


def test_units_that_wait_for_each_other_are_a_circle() -> None:
    chain = only(world(unit("b-0", "a-0"), unit("a-0", "b-0"), unit("c-0", "b-0")))
    assert chain.because == "a circle of waits: a-0 ← b-0 ← a-0"
    assert chain.culprit == "a-0"
    assert {link.who for link in chain.links} == {"a-0", "b-0", "c-0"}


def test_unit_that_waits_for_itself_is_a_circle() -> None:
    assert only(world(unit("a-0", "a-0"))).because == "a circle of waits: a-0 ← a-0"


def test_broken_member_of_a_circle_is_the_culprit() -> None:
    chain = only(world(unit("a-0", "b-0"), unit("b-0", "a-0", silent_s=9.0)))
    assert chain.culprit == "b-0"
    assert "hangs" in chain.because


def test_group_is_represented_by_its_least_healthy_unit() -> None:
    chain = only(
        world(
            unit("trainer-0", "judge"),
            unit("judge-0"),
            unit("judge-1", state=UnitState.BACKOFF),
            unit("judge-2", state=UnitState.STARTING),
        )
    )
    assert chain.culprit == "judge-1"


def test_starting_unit_is_not_late_and_shows_its_status() -> None:
    warm_up = {
        "state": UnitState.STARTING,
        "age_s": 700.0,
        "reason": "starting on far",
        "status": "warm-up: step 3 of 9",
    }
    chain = only(world(unit("sampler-0", Wait("trainer-0", age_s=650.0)), unit("trainer-0", **warm_up)))
    assert chain.sentence == "sampler-0 ← trainer-0, 650 s: trainer-0 is starting for 700 s: warm-up: step 3 of 9"
    assert not any(link.overdue for link in chain.links)
    assert not chain.amiss
    limited = Wait("trainer-0", age_s=650.0, at_most_s=600.0)
    assert only(world(unit("sampler-0", limited), unit("trainer-0", **warm_up))).amiss, "the limit is its own"


def test_chain_shows_whether_an_operator_is_needed() -> None:
    work = unit("b-0", progress_age_s=1.0)
    assert not only(world(unit("a-0", Wait("b-0", age_s=900.0)), work)).amiss, "b-0 makes progress"
    assert only(world(unit("a-0", Wait("b-0", age_s=900.0)), unit("b-0"))).amiss, (
        "it is not known whether b-0 makes progress"
    )
    assert only(world(unit("a-0", "b-0"), unit("b-0", state=UnitState.FATAL))).amiss
    assert not only(world(unit("a-0", Wait("page", age_s=4.0)))).amiss


def test_resource_without_a_unit_ends_the_chain() -> None:
    chain = only(world(unit("trainer-0", Wait("batch", age_s=4.0))))
    assert chain.culprit == "batch"
    assert "no unit of the run" in chain.sentence


def test_version_that_is_loaded_names_what_its_engine_waits_for() -> None:
    chain = only(world(unit("engine-0", Wait("version 3", "its weights to be loaded", 4.0, 60.0))))
    assert chain.culprit == "version 3"
    assert chain.because == (
        "is no unit of the run; all that is known is that engine-0 waits for its weights to be loaded"
    )


def test_chain_does_not_repeat_a_unit() -> None:
    chain = only(
        world(
            unit("trainer-0", Wait("batch", age_s=9.0)),
            unit("steward-0", Wait("record 3 on sampler-0", "is under way", 8.0, who="batch"),
                 Wait("sampler-0", "runs it", 8.0, who="record 3 on sampler-0")),
            unit("sampler-0", state=UnitState.FATAL),
        )
    )  # fmt: skip
    assert chain.sentence.startswith("trainer-0 ← batch ← record 3 ← sampler-0, ")


def test_resources_with_the_same_waiters_are_one_chain() -> None:
    chain = only(
        world(
            unit("trainer-0", Wait("waiter-0", age_s=5.0)),
            unit("waiter-0", *(Wait(f"record {n}", age_s=20.0 - n) for n in range(20))),
        )
    )
    assert chain.sentence == (
        "trainer-0 ← waiter-0 ← record 0, 20 s: record 0 is, like 19 others, no unit of the run, "
        "so nothing more is known of it"
    )
    assert [link.who for link in chain.links] == ["trainer-0", *["waiter-0"] * 20]
    assert [link.on for link in chain.links[1:]] == [f"record {n}" for n in range(20)]


def test_resources_with_different_waiters_are_separate_chains() -> None:
    chains = explain(
        world(
            unit("a-0", Wait("x", age_s=1.0), Wait("both", age_s=3.0), Wait("y", age_s=2.0)),
            unit("b-0", Wait("both", age_s=9.0)),
        )
    )
    assert [(chain.culprit, len(chain.links)) for chain in chains] == [("both", 2), ("y", 2)]
    assert "like 1 other," in chains[1].because


def test_pending_unit_waits_for_the_groups_in_after() -> None:
    chain = only(
        world(
            unit("web-0", state=UnitState.PENDING, after=("db",), age_s=33.0),
            unit("db-0", state=UnitState.FATAL, reason="no such program"),
        )
    )
    assert chain.sentence == "web-0 ← db-0, 33 s: db-0 is fatal and will not be started again: no such program"
    ready = world(unit("web-0", state=UnitState.PENDING, after=("db",)), unit("db-0"))
    assert explain(ready) == []


def test_many_units_behind_one_culprit_are_one_chain() -> None:
    units = world(*(unit(f"sampler-{n}", "judge-0") for n in range(200)), unit("judge-0", state=UnitState.LOST))
    chain = only(units)
    assert len(chain.links) == 200
    assert chain.sentence.endswith("; 199 more wait behind it")
    assert len(chain.sentence) < 200


def test_wait_is_late_after_its_limit_or_without_progress() -> None:
    def late(wait: Wait, judge: UnitFacts) -> bool:
        return bool(only(world(unit("a-0", wait), judge), no_progress_s=100.0).links[0].overdue)

    idle, busy = unit("judge-0", progress_age_s=500.0), unit("judge-0", progress_age_s=3.0)
    assert not late(Wait("judge-0", age_s=99.0), idle)
    assert late(Wait("judge-0", age_s=101.0), idle)
    assert not late(Wait("judge-0", age_s=101.0), busy), "it makes progress"
    assert late(Wait("judge-0", age_s=31.0, at_most_s=30.0), busy), "the limit counts even with progress"
    assert not late(Wait("judge-0", age_s=500.0, at_most_s=900.0), idle)


def test_overdue_unit_that_waits_for_a_broken_one_is_not_the_culprit() -> None:
    chain = only(world(unit("a-0", "b-0", phase_over_s=5.0), unit("b-0", state=UnitState.FATAL)))
    assert chain.culprit == "b-0"
    chain = only(world(unit("a-0", "b-0", phase="step", phase_over_s=5.0), unit("b-0", progress_age_s=1.0)))
    assert chain.culprit == "a-0"
    assert chain.sentence.startswith("a-0 is 5 s beyond the deadline of its phase step; its last word was")


# ---- waits that other units report ----


def reported(who: str, on: str, what: str = "", age_s: float = 10.0, at_most_s: float | None = None) -> Wait:
    return Wait(on, what, age_s, at_most_s, who)


RECORD = "record g17#r1.s3.a1 on sampler-1"
STUCK = (
    reported("batch", "task g17", "1 of its 8 records are not done", 400.0, 1800.0),
    reported("task g17", RECORD, "is under way, in turn 3", 350.0, 600.0),
    reported(RECORD, "sampler-1", "runs it", 350.0, 600.0),
    reported(RECORD, "tool shop.lookup", "has not answered the call t3.0", 300.0, 90.0),
    reported("tool shop.lookup", "toolbox", "runs it", 300.0, 90.0),
)
TRAINER = unit("trainer-0", Wait("batch", "batch", 390.0, 600.0))


def plane(*units: UnitFacts, steward: UnitFacts | None = None) -> dict[str, UnitFacts]:
    usual = (TRAINER, steward or unit("steward-0", *STUCK, report_age_s=12.0), unit("toolbox-0"), unit("sampler-1"))
    return world(*usual) | world(*units)


def test_chain_leads_through_tasks_and_records_to_the_call_without_an_answer() -> None:
    chain = only(plane())
    assert chain.culprit == "tool shop.lookup"
    assert chain.because == "has not answered the call t3.0"
    assert chain.sentence == (
        f"trainer-0 ← batch ← task g17 ← {RECORD} ← tool shop.lookup, 412 s: "
        "tool shop.lookup has not answered the call t3.0"
    )
    assert [(link.who, link.on, link.overdue) for link in chain.links] == [
        ("trainer-0", "batch", False),
        ("batch", "task g17", False),
        ("task g17", RECORD, False),
        (RECORD, "tool shop.lookup", True),
    ]


def test_broken_process_is_blamed_before_its_unanswered_call() -> None:
    chain = only(plane(unit("toolbox-0", state=UnitState.BACKOFF, next_what="restart in 2 s")))
    assert chain.culprit == "toolbox-0"
    assert chain.sentence.startswith(f"trainer-0 ← batch ← task g17 ← {RECORD} ← tool shop.lookup ← toolbox-0")
    chains = explain(plane(unit("sampler-1", stopped=True)))
    assert "sampler-1" in {chain.culprit for chain in chains}
    first = next(chain for chain in chains if chain.culprit == "sampler-1")
    assert first.sentence.startswith("trainer-0 ← batch ← task g17 ← record g17#r1.s3.a1 ← sampler-1, ")


def test_waits_of_samplers_are_found_behind_an_unclaimed_record() -> None:
    waits = (
        reported("batch", "task g1"),
        reported("task g1", "record a"),
        reported("record a", "sampler", "to be claimed"),
    )
    units = plane(
        unit("sampler-1", Wait("engine", "no engine serves", 30.0)),
        unit("engine-0", state=UnitState.STARTING, age_s=29.0),
        steward=unit("steward-0", *waits),
    )
    chain = only(units)
    assert chain.sentence.startswith("trainer-0 ← batch ← task g1 ← record a ← sampler-1 ← engine-0")
    assert chain.because == "is starting for 29 s"


def test_reported_waits_without_a_waiting_unit_give_no_chain() -> None:
    assert explain(world(unit("steward-0", *STUCK), unit("toolbox-0"), unit("sampler-1"))) == []


@pytest.mark.parametrize("broken", [{"state": UnitState.FATAL}, {"stopped": True}, {"paused": True}])
def test_waits_reported_by_a_broken_unit_lead_to_that_unit(broken: dict[str, object]) -> None:
    steward = unit("steward-0", *STUCK, **{"state": UnitState.READY, **broken})  # type: ignore[arg-type]
    chain = only(plane(steward=steward))
    assert chain.culprit == "steward-0"
    assert chain.sentence.startswith("trainer-0 ← batch ← steward-0")


def test_batch_without_reports_is_an_unknown_resource() -> None:
    assert "no unit of the run" in only(plane(steward=unit("steward-0"))).because


# ---- any graph ----

NAMES = [f"{letter}-{slot}" for letter in string.ascii_lowercase[:5] for slot in range(2)]
WORDS = ["batch", "task g1", "record a", "tool b"]


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, UnitFacts]:
    found: list[UnitFacts] = []
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True)):
        waits = draw(st.lists(st.sampled_from([*NAMES, *"abcde", "batch", "task g1"]), max_size=4))
        others = draw(st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from([*NAMES, *WORDS])), max_size=4))
        found.append(
            UnitFacts(
                name,
                name[0],
                draw(st.sampled_from(UnitState)),
                waits=(
                    *(Wait(on, age_s=draw(st.floats(0, 1000))) for on in waits),
                    *(reported(who, on, f"is told of by {name}") for who, on in others),
                ),
                after=tuple(draw(st.lists(st.sampled_from("abcde"), max_size=2))),
                silent_s=draw(st.sampled_from([0.0, 0.0, 30.0])),
                stopped=draw(st.booleans()) and draw(st.booleans()),
                phase_over_s=draw(st.sampled_from([0.0, 0.0, 5.0])),
                progress_age_s=draw(st.sampled_from([None, 1.0, 900.0])),
            )
        )
    return world(*found)


def waits_of(units: dict[str, UnitFacts]) -> Iterable[str]:
    return (name for name, facts in units.items() if own_waits(facts))


def own_waits(facts: UnitFacts) -> list[Wait]:
    return [wait for wait in facts.waits if not wait.who]


@settings(deadline=None)
@given(worlds())
def test_every_wait_of_any_graph_is_explained(units: dict[str, UnitFacts]) -> None:
    chains = explain(units)
    links = [link for chain in chains for link in chain.links]
    assert set(waits_of(units)) <= {link.who for link in links}, "every waiting unit is in a chain"
    assert sum(len(own_waits(facts)) for facts in units.values()) <= len(links), "every wait is in a chain"
    assert len({chain.culprit for chain in chains}) == len(chains), "one chain per culprit"
    for chain in chains:
        assert chain.because
        assert chain.culprit in chain.sentence
        assert chain.culprit in {name for link in chain.links for name in (link.who, link.on)}


@settings(deadline=None)
@given(worlds())
def test_named_circle_consists_of_real_waits(units: dict[str, UnitFacts]) -> None:
    for chain in explain(units):
        if chain.because.startswith("a circle of waits: "):
            names = chain.because.removeprefix("a circle of waits: ").split(" ← ")
            pairs = {(link.who, link.on) for link in chain.links}
            assert names[0] == names[-1]
            assert "…" in names or set(itertools.pairwise(names)) <= pairs


def test_chain_of_thousands_is_explained_without_recursion() -> None:
    line = {f"n-{n}": unit(f"n-{n}", f"n-{n + 1}") for n in range(5000)}
    chain = only(line)
    assert chain.culprit == "n-5000"
    assert len(chain.links) == 5000
    assert " ← … ← " in chain.sentence
