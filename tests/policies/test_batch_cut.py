"""When a step is taken and of which groups, one situation at a time."""

from __future__ import annotations

from dataclasses import replace

from agentrl.policies.batch_cut import BatchTarget, ReadyGroup, ReadyRecord, Situation, UnderWay, cut, decide
from agentrl.policies.freshness import Freshness

TWO = BatchTarget(groups=2, max_refill=2)
DROP = Freshness("drop", 1)
WAIT = Freshness("wait", 1, wait_limit_s=60)


def group(order: int, *ages: int, signal: bool = True) -> ReadyGroup:
    records = tuple(ReadyRecord(f"t{order}.{place}", age) for place, age in enumerate(ages))
    return ReadyGroup(f"t{order}", order, signal, records)


def tasks(groups: tuple[ReadyGroup, ...]) -> list[str]:
    return [one.task for one in groups]


def test_the_oldest_admitted_groups_are_taken() -> None:
    decision = decide(Situation([group(3, 0), group(1, 0), group(2, 1)]), TWO, DROP)
    assert decision.act == "step"
    assert tasks(decision.groups) == ["t1", "t2"]


def test_a_record_past_the_bound_is_masked_and_the_rest_of_its_group_trains() -> None:
    decision = decide(Situation([group(1, 2, 0), group(2, 1, 1), group(3, 5, 0)]), TWO, DROP)
    assert [record.record for one in decision.groups for record in one.records] == ["t1.1", "t2.0", "t2.1"]
    assert decision.stale_records == ("t1.0",), "only groups of the Step have stale records"


def test_a_group_without_trainable_records_is_requeued_also_without_a_step() -> None:
    decision = decide(Situation([group(1, 2, 3), group(2, 0)]), TWO, DROP)
    assert decision.act == "wait"
    assert decision.why == "1 of 2 groups with signal are ready"
    assert decision.stale_groups == ("t1",)
    held = decide(Situation([group(1, 2)], hold="too few attempts are valid"), TWO, DROP)
    assert (held.act, held.why, held.stale_groups) == ("wait", "too few attempts are valid", ("t1",))


def test_decay_allows_records_up_to_the_hard_bound() -> None:
    left = cut([group(1, 3), group(2, 4)], Freshness("decay", 1, hard_bound=3))
    assert tasks(left.fresh) == ["t1"]
    assert left.stale_groups == ("t2",)


def test_groups_without_signal_are_replaced_up_to_a_limit() -> None:
    flat = [group(order, signal=False) for order in (2, 3, 4)]
    assert decide(Situation([group(1, 0), *flat[:2]]), TWO, DROP).act == "wait"
    short = decide(Situation([group(1, 0), *flat]), TWO, DROP)
    assert (short.act, tasks(short.groups), short.filtered) == ("step", ["t1"], ("t2", "t3", "t4"))
    empty = decide(Situation([*flat, group(5, signal=False)]), TWO, DROP)
    assert (empty.act, empty.groups, empty.why) == ("step", (), "no group has signal: the step is empty, 4 without")
    full = decide(Situation([group(1, 0), group(9, 0), flat[0]]), TWO, DROP)
    assert full.filtered == ("t2",), "the Step that is taken anyway consumes the group without signal"


def test_waiting_for_records_that_the_step_would_make_too_old() -> None:
    ready = [group(1, 0), group(2, 0)]
    brink = [UnderWay(1)]
    held = decide(Situation(ready, under_way=[*brink, UnderWay(0)]), TWO, WAIT)
    assert held.held
    assert (held.act, held.why) == ("wait", "1 records under way would be pushed past their bound")
    assert decide(Situation(ready, under_way=brink, waited_s=60), TWO, WAIT).act == "step", "the wait limit has passed"
    assert decide(Situation(ready, under_way=brink, publishes=False), TWO, WAIT).act == "step", (
        "no record under way would become too old"
    )
    assert decide(Situation(ready, under_way=[UnderWay(0), UnderWay(2)]), TWO, WAIT).act == "step", (
        "a record that is too old already is not waited for"
    )
    assert decide(Situation(ready, under_way=brink), TWO, DROP).act == "step"


def of(environment: str, one: ReadyGroup) -> ReadyGroup:
    return replace(one, environment=environment)


def test_an_environment_may_have_a_bound_and_a_strategy_of_its_own() -> None:
    rules = Freshness("drop", 1, of_environments={"slow": Freshness("wait", 3, wait_limit_s=60)})
    ready = [of("fast", group(1, 2)), of("slow", group(2, 3)), of("slow", group(3, 4)), of("fast", group(4, 0))]
    left = cut(ready, rules)
    assert tasks(left.fresh) == ["t2", "t4"]
    assert left.stale_groups == ("t1", "t3")
    fresh = [of("fast", group(1, 0)), of("fast", group(2, 1)), of("slow", group(3, 3))]
    assert tasks(decide(Situation(fresh), TWO, rules).groups) == ["t3", "t1"], "the slow group at its bound goes first"
    held = Situation(fresh, under_way=[UnderWay(3, "slow")])
    assert decide(held, TWO, rules).held
    assert decide(replace(held, waited_s=60.0), TWO, rules).act == "step"
    assert decide(Situation(fresh, under_way=[UnderWay(1, "fast")]), TWO, rules).act == "step"


def test_ready_groups_at_the_bound_go_first() -> None:
    ready = [group(1, 0), group(2, 0), group(3, 1)]
    assert tasks(decide(Situation(ready), TWO, WAIT).groups) == ["t3", "t1"]
    assert tasks(decide(Situation(ready), TWO, DROP).groups) == ["t1", "t2"]


def test_the_end_of_the_data() -> None:
    last = decide(Situation([group(1, 0)], exhausted=True), TWO, DROP)
    assert (last.act, tasks(last.groups)) == ("step", ["t1"])
    leave = BatchTarget(groups=2, max_refill=2, last_batch="leave")
    assert decide(Situation([group(1, 0)], exhausted=True), leave, DROP).act == "end"
    only_flat = decide(Situation([group(1, signal=False)], exhausted=True), TWO, DROP)
    assert (only_flat.act, only_flat.groups, only_flat.filtered) == ("step", (), ("t1",))
    assert decide(Situation([], exhausted=True), TWO, DROP).act == "end"
    again = decide(Situation([group(1, 9)], exhausted=True), TWO, DROP)
    assert (again.act, again.stale_groups) == ("wait", ("t1",)), "a requeued group may still be sampled"
