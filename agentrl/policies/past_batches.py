"""What other settings of groups and curricula would have done over the last batches. Pure.

Invariants:
- Both sides are computed by the functions that close groups, make batches and choose rows, so a preview is what would
  have happened to these scores.
- Scores are the recorded ones: nothing here estimates how the policy would have learned under other settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentrl.policies import curriculum, group_closing
from agentrl.policies.advantages import Trained, balanced, normalized
from agentrl.policies.batch_cut import BatchTarget, ReadyGroup, ReadyRecord, Situation, decide
from agentrl.policies.curriculum import Window
from agentrl.policies.freshness import Freshness
from agentrl.policies.group_closing import Closed, GroupRule, Member, Share

_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class PastGroup:
    n: int
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class GroupChanges:
    """What changes for the groups of the last batches."""

    groups: int
    records: int
    """Records that train with the settings before or after."""
    without_signal: int
    """Groups without signal with the settings before."""
    lost: int
    """Groups that would have lost their signal."""
    gained: int
    """Groups that would have gained a signal."""
    dropped: int
    """Records that would not have trained any more."""
    added: int
    changed: int
    """Records with another advantage."""
    turned: int
    """Of these, records whose advantage has another sign."""


def compare_groups(groups: Sequence[PastGroup], before: GroupRule, after: GroupRule) -> GroupChanges:
    counts: Counter[str] = Counter()
    for group in groups:
        then, now = (group_closing.close(group.members, group.n, rule) for rule in (before, after))
        counts["without"] += not then.signal
        counts["lost"] += then.signal and not now.signal
        counts["gained"] += now.signal and not then.signal
        for member in group.members:
            counts.update(_record(then, now, member.record))
    return GroupChanges(
        groups=len(groups),
        records=counts["records"],
        without_signal=counts["without"],
        lost=counts["lost"],
        gained=counts["gained"],
        dropped=counts["dropped"],
        added=counts["added"],
        changed=counts["changed"],
        turned=counts["turned"],
    )


def _record(before: Closed, after: Closed, record: str) -> list[str]:
    then, now = (_trained(closed, record) for closed in (before, after))
    if then is None or now is None:
        return [] if then is now else ["records", "added" if then is None else "dropped"]
    found = ["records"]
    if _differ(then, now):
        found.append("changed")
    if then.advantage is not None and now.advantage is not None and then.advantage * now.advantage < 0:
        found.append("turned")
    return found


def _trained(closed: Closed, record: str) -> Share | None:
    """None if the group trains nothing: a group without signal is in no batch."""
    share = closed.shares[record]
    return share if closed.signal and share.advantage is not None else None


def _differ(one: Share, other: Share) -> bool:
    pairs = [(one.advantage or 0.0, other.advantage or 0.0), *zip(one.turns, other.turns, strict=False)]
    return any(abs(a - b) > _SLACK for a, b in pairs)


@dataclass(frozen=True, slots=True)
class BatchChanges:
    """What changes for the advantages of the last batches."""

    batches: int
    records: int
    changed: int
    turned: int
    up: float
    """By how much the positive advantages would be multiplied, over all tokens; 1 if there are none."""
    down: float
    """The same for the negative ones."""


Scaling = tuple[bool, bool]
"""Whether advantages are normalized within environments, and whether both signs are balanced after that."""


def compare_batches(batches: Sequence[Sequence[Trained]], before: Scaling, after: Scaling) -> BatchChanges:
    changed = turned = 0
    sums = {True: [0.0, 0.0], False: [0.0, 0.0]}
    for batch in batches:
        for record, then, now in zip(batch, _scaled(batch, before), _scaled(batch, after), strict=True):
            changed += abs(then - now) > _SLACK
            turned += then * now < 0
            if then:
                sums[then > 0][0] += abs(then) * record.tokens
                sums[then > 0][1] += abs(now) * record.tokens
    return BatchChanges(
        batches=len(batches),
        records=sum(map(len, batches)),
        changed=changed,
        turned=turned,
        up=_ratio(*sums[True]),
        down=_ratio(*sums[False]),
    )


def _scaled(batch: Sequence[Trained], scaling: Scaling) -> list[float]:
    changes: tuple[Callable[[Sequence[Trained]], list[float]], ...] = (normalized, balanced)
    current = list(batch)
    for wanted, change in zip(scaling, changes, strict=True):
        if wanted:
            values = change(current)
            current = [
                Trained(one.environment, one.group, value, one.tokens, one.capped)
                for one, value in zip(current, values, strict=True)
            ]
    return [one.advantage for one in current]


def _ratio(then: float, now: float) -> float:
    return now / then if then else 1.0


@dataclass(frozen=True, slots=True)
class StepChanges:
    """The steps that the groups of the last steps would make, cut in the order of their admission."""

    groups: int
    without_signal: int
    steps: int
    short: int
    """How many of these steps have fewer groups than wanted, because too many had no signal."""
    steps_before: int
    short_before: int


def compare_steps(signals: Sequence[bool], before: int, after: int) -> StepChanges:
    """`signals`: whether each group has one; before and after: the wanted groups of a step."""
    then, now = (_cut(signals, wanted) for wanted in (before, after))
    short, short_before = (sum(size < wanted for size in of) for of, wanted in ((now, after), (then, before)))
    return StepChanges(len(signals), len(signals) - sum(signals), len(now), short, len(then), short_before)


def _cut(signals: Sequence[bool], groups: int) -> list[int]:
    """How many groups with signal each step has. Groups become ready one after the other, and none is too old."""
    wanted, ready, sizes = BatchTarget(groups=groups, max_refill=groups), list[ReadyGroup](), list[int]()
    for place, signal in enumerate(signals):
        ready.append(ReadyGroup(str(place), place, signal, (ReadyRecord(str(place), 0),)))
        decision = decide(Situation(ready), wanted, Freshness())
        if decision.act == "step":
            sizes.append(len(decision.groups))
            gone = {group.task for group in decision.groups}.union(decision.filtered)
            ready = [group for group in ready if group.task not in gone]
    return sizes


@dataclass(frozen=True, slots=True)
class WindowChanges:
    """What changes for the rows of an environment that have measurements."""

    rows: int
    hard: int
    easy: int
    hard_before: int
    easy_before: int


def compare_windows(measured: Mapping[int, float], before: Window, after: Window) -> WindowChanges:
    (_, then), (_, now) = (curriculum.within(window, measured, measured) for window in (before, after))
    return WindowChanges(len(measured), now["hard"], now["easy"], then["hard"], then["easy"])
