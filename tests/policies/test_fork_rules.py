"""What a fork is, which calls rebuild its sessions, and how many forks train."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import RefusedError
from agentrl.policies.batch_cut import BatchTarget, ReadyGroup, ReadyRecord, Situation, decide
from agentrl.policies.fork_rules import ForkCase, ForkKind, limited, lost_with_session, rebuilding_trunk
from agentrl.policies.fork_rules import decide as fork_of
from agentrl.policies.freshness import Freshness
from agentrl.policies.replay_verdicts import EarlierCall
from agentrl.policies.status_tables import RecordStatus, TaskStatus

FAILED = ForkCase(
    status=RecordStatus.FAILED, purpose="train", outcome_class="infrastructure", task_status=TaskStatus.ADMITTED
)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, ""),
        ({"status": RecordStatus.ABANDONED}, ""),
        ({"status": RecordStatus.SCORED, "outcome_class": "policy", "fault": "infrastructure"}, ""),
        ({"times": 1}, ""),
        ({"purpose": "branch"}, ""),
        ({"status": RecordStatus.SCORED, "outcome_class": "policy"}, "its failure was not the infrastructure's"),
        ({"status": RecordStatus.SCORED, "outcome_class": "policy", "fault": "policy"}, "not the infrastructure's"),
        ({"verdict": "fixed"}, ""),
        ({"verdict": "flaky"}, "the verdict of its replay is flaky"),
        ({"verdict": "same", "fault": "policy"}, "the verdict of its replay is same"),
        ({"edited": True}, "what a person wrote never repairs"),
        ({"times": 2}, "several continuations are a group of their own"),
        ({"step": "3 of t"}, "it stands in step 3 of t"),
        ({"status": RecordStatus.EXCLUDED}, "it is excluded"),
        ({"status": RecordStatus.SUPERSEDED}, "it is superseded"),
        ({"task_status": TaskStatus.READY}, "its group is over: its task is ready"),
        ({"same_round": False}, "its group is over"),
        ({"seat_taken_by": "a2"}, "its seat was filled by a2"),
        ({"too_old": True}, "its tokens are older than the bound"),
    ],
)
def test_fork_repairs_only_what_never_trained_and_failed_for_infrastructure(changed: dict[str, Any], why: str) -> None:
    decision = fork_of(replace(FAILED, **changed))
    assert why in decision.why
    assert (decision.kind is ForkKind.REPAIR) == (not why)
    assert decision.times == (1 if not why else changed.get("times") or FAILED.n)
    assert decision.purpose == ("branch" if why else changed.get("purpose", "train"))


def test_group_of_forks_that_could_not_close_or_be_admitted_is_refused() -> None:
    case = replace(FAILED, edited=True, min_valid=4, largest=16)
    with pytest.raises(RefusedError, match="A group of 3 forks could never train, because a group needs 4") as refused:
        fork_of(replace(case, times=3))
    assert refused.value.hint == "--times 4 or more, or --times 1 for a probe, which does not train"
    with pytest.raises(RefusedError, match="a group has at most 16 records"):
        fork_of(replace(case, times=17))
    assert [fork_of(replace(case, times=times)).purpose for times in (1, 4, 16, 0)] == ["probe", *["branch"] * 3]
    assert fork_of(replace(case, purpose="eval", times=3)).purpose == "probe", "probes close with any number of records"


CASES = st.builds(
    ForkCase,
    status=st.sampled_from(RecordStatus),
    purpose=st.sampled_from(["train", "branch", "eval", "probe"]),
    outcome_class=st.sampled_from(["", "policy", "limit", "infrastructure", "unscored"]),
    fault=st.sampled_from(["", "policy", "infrastructure"]),
    task_status=st.sampled_from(TaskStatus),
    same_round=st.booleans(),
    step=st.sampled_from(["", "1 of t"]),
    edited=st.booleans(),
    seat_taken_by=st.sampled_from(["", "a2"]),
    too_old=st.booleans(),
    times=st.integers(0, 4),
)


@given(CASES)
def test_held_out_tasks_never_train_and_single_continuations_are_probes(case: ForkCase) -> None:
    decision = fork_of(case)
    if case.purpose in ("eval", "probe"):
        assert (decision.kind, decision.purpose) == (ForkKind.BRANCH, "probe")
    elif decision.kind is ForkKind.BRANCH:
        assert decision.purpose == ("probe" if decision.times == 1 else "branch")
    else:
        assert (case.edited, case.step, case.too_old, case.seat_taken_by) == (False, "", False, "")
    assert bool(decision.why) == (decision.kind is ForkKind.BRANCH)


def test_only_calls_that_change_their_session_run_again_to_rebuild_a_trunk() -> None:
    def call(number: int, tool: str, status: str = "ok", server: str = "shop") -> EarlierCall:
        return EarlierCall(f"c{number}", 0, number, server, tool, status)

    effects = {"shop": {"look": "pure", "order": "outside"}}
    trunk = [call(0, "look"), call(1, "add"), call(2, "order"), call(3, "add", "refused"), call(4, "add", server="web")]
    assert [one.id for one in rebuilding_trunk(trunk, effects)] == ["c1"]  # type: ignore[arg-type]
    assert [one.id for one in lost_with_session(trunk, effects)] == ["c2"]  # type: ignore[arg-type]
    assert lost_with_session(trunk, effects, "c2") == []  # type: ignore[arg-type]
    again = [call(0, "add", "lost"), call(1000, "add")]
    assert [one.id for one in rebuilding_trunk(again, effects)] == ["c1000"]  # type: ignore[arg-type]


@given(
    st.lists(st.integers(1, 8).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size))), max_size=6),
    st.floats(0, 1),
    st.integers(0, 500),
)
def test_forks_of_a_step_stay_within_their_share(groups: list[tuple[int, int]], share: float, recent: int) -> None:
    allowed = limited(groups, share=share, recent=recent, recent_intervened=0)
    trained = recent + sum(size - forks for size, forks in groups) + sum(allowed)
    assert sum(allowed) <= max(1, share * trained + 1e-6)
    assert all(some <= forks for some, (_, forks) in zip(allowed, groups, strict=True))
    if not share:
        assert not sum(allowed)


def group(task: str, order: int, records: int, forks: int) -> ReadyGroup:
    members = tuple(ReadyRecord(f"{task}.{number}", 0, number < forks) for number in range(records))
    return ReadyGroup(task, order, True, members)


def test_forks_beyond_their_share_leave_the_step_or_wait() -> None:
    repaired, branch, usual = group("repaired", 1, 4, 2), group("branch", 2, 4, 4), group("usual", 3, 4, 0)
    wanted = BatchTarget(groups=3, max_refill=0, intervened_share=0.1)
    ready = Situation(ready=[repaired, branch, usual])
    decision = decide(ready, wanted, Freshness())
    assert [(one.task, len(one.records)) for one in decision.groups] == [("repaired", 3), ("usual", 4)]
    assert decision.stale_records == ("repaired.1",)
    later = decide(replace(ready, trained=100), wanted, Freshness())
    assert [(one.task, len(one.records)) for one in later.groups] == [("repaired", 4), ("branch", 4), ("usual", 4)]
    more = decide(Situation(ready=[group(str(order), order, 4, 1) for order in range(20)]), wanted, Freshness())
    assert [len(one.records) for one in more.groups] == [4, 3, 3], "only groups in the step count for the share"
    alone = decide(Situation(ready=[branch], trained=20, trained_intervened=9), replace(wanted, groups=1), Freshness())
    assert [(one.task, len(one.records)) for one in alone.groups] == [("branch", 1)], (
        "a fork that is alone trains, or training would stand still"
    )
