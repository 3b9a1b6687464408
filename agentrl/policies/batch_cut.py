"""Decides when the trainer takes a step, and of which groups.

Invariants:
- the oldest admitted group goes first, not the first finished one; groups are never split;
- a record past the bound never trains, and its group trains without it;
- forks beyond their share do not train: their groups train without them, or wait if they consist of forks only;
- a group that can never train leaves `ready` immediately, also while there are too few groups for a step: otherwise it
  would hold capacity of admission forever;
- every decision is a step, a wait with its reason, or the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from agentrl.policies import fork_rules
from agentrl.policies.freshness import Freshness


@dataclass(frozen=True, slots=True)
class ReadyRecord:
    """A member that trains if it is fresh enough."""

    record: str
    age: int
    """In publications: from the version of its oldest trained token to the version that the step would start from."""
    intervened: bool = False
    """An operator chose it: it is a fork."""


@dataclass(frozen=True, slots=True)
class ReadyGroup:
    task: str
    admitted_order: int
    signal: bool
    records: tuple[ReadyRecord, ...] = ()
    environment: str = ""


class UnderWay(NamedTuple):
    """A record of a group that is not closed yet and has generated tokens."""

    age: int
    environment: str = ""


@dataclass(frozen=True, slots=True)
class BatchTarget:
    """The wanted shape of a step."""

    groups: int
    """Groups with signal."""
    max_refill: int
    """Groups without signal that are replaced before a step is taken with fewer groups."""
    last_batch: Literal["take", "leave"] = "take"
    """What happens to a smaller batch at the end of the data."""
    intervened_share: float = 1.0
    """The greatest share of forks among the records of this step and those before."""


@dataclass(frozen=True, slots=True)
class Situation:
    ready: Sequence[ReadyGroup]
    under_way: Sequence[UnderWay] = ()
    """Excludes late records of closed groups: they will not train, so nothing waits for them."""
    publishes: bool = True
    """Whether a version is published after this Step."""
    waited_s: float = 0.0
    """How long this Step has been held back for records under way."""
    exhausted: bool = False
    """No Task that could train is queued or admitted any more."""
    hold: str = ""
    """Why no Step may be taken, in words."""
    trained: int = 0
    """Records of the steps before."""
    trained_intervened: int = 0
    """How many of them were forks."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What is left of the ready groups: those to choose from, and what has become of the rest."""

    fresh: tuple[ReadyGroup, ...]
    """With signal, each reduced to its records that train, oldest admitted first."""
    flat: tuple[ReadyGroup, ...]
    """Without signal."""
    stale_records: Mapping[str, tuple[str, ...]]
    """Records with mask 0, by Task; the rest of the Task trains."""
    stale_groups: tuple[str, ...]
    """Tasks with no trainable record left: next round, or dead."""


@dataclass(frozen=True, slots=True)
class Decision:
    act: Literal["step", "wait", "end", "bury"]
    why: str
    groups: tuple[ReadyGroup, ...] = ()
    """For a Step: the groups that train. A Step without groups commits as empty."""
    filtered: tuple[str, ...] = ()
    """For a Step: Tasks without signal that it consumes."""
    stale_records: tuple[str, ...] = ()
    """For a Step: members of its groups that do not train with it."""
    stale_groups: tuple[str, ...] = ()
    """Tasks that leave `ready` now, whatever the decision is."""
    poison: tuple[str, ...] = ()
    """For a burial: Tasks that are proven to end trainers."""
    held: bool = False
    """For a wait: a Step could be taken, and is held back for records under way."""


def cut(ready: Sequence[ReadyGroup], freshness: Freshness) -> Cut:
    fresh: list[ReadyGroup] = []
    flat: list[ReadyGroup] = []
    stale_records: dict[str, tuple[str, ...]] = {}
    stale_groups: list[str] = []
    for group in sorted(ready, key=lambda group: (group.admitted_order, group.task)):
        if not group.signal:
            flat.append(group)
            continue
        rule = freshness.of(group.environment)
        trainable = tuple(record for record in group.records if rule.allows(record.age))
        if not trainable:
            stale_groups.append(group.task)
            continue
        stale_records[group.task] = tuple(record.record for record in group.records if not rule.allows(record.age))
        fresh.append(replace(group, records=trainable))
    return Cut(tuple(fresh), tuple(flat), stale_records, tuple(stale_groups))


def decide(now: Situation, wanted: BatchTarget, freshness: Freshness) -> Decision:
    """Returns a step, a wait, or the end. The caller requeues `stale_groups` in any case."""
    left = cut(now.ready, freshness)
    left, waiting = _within_share(replace(left, fresh=_in_turn(left.fresh, now, freshness)), now, wanted)
    if now.hold:
        return Decision("wait", now.hold, stale_groups=left.stale_groups)
    missing = wanted.groups - len(left.fresh) - waiting
    if missing > 0:
        if now.exhausted and not left.stale_groups:
            return _last(left, wanted)
        if len(left.flat) < missing + wanted.max_refill:
            why = f"{len(left.fresh)} of {wanted.groups} groups with signal are ready"
            return Decision("wait", why, stale_groups=left.stale_groups)
    chosen = left.fresh[: wanted.groups]
    if chosen and (why := _held_back(now, freshness)):
        return Decision("wait", why, stale_groups=left.stale_groups, held=True)
    return _step(left, chosen)


def _within_share(left: Cut, now: Situation, wanted: BatchTarget) -> tuple[Cut, int]:
    """The next step without the forks beyond their share, and how many groups wait because they consist of forks only.
    If there is no other group, the first of them trains one fork, because it holds capacity that other groups need."""
    if not any(record.intervened for group in left.fresh for record in group.records):
        return left, 0
    fresh, alone = list(left.fresh), list[ReadyGroup]()
    while True:
        step = _limited(fresh[: wanted.groups], now, wanted)
        if all(kept.records for kept in step):
            break
        # Other groups take their places, which changes how many forks the step may have.
        alone += [group for group, kept in zip(fresh, step, strict=False) if not kept.records]
        fresh = [group for group in fresh if group not in alone]
    if alone and not fresh and wanted.intervened_share > 0:
        fresh = alone[:1]
        step = [replace(fresh[0], records=fresh[0].records[:1])]
        alone = alone[1:]
    out = dict(left.stale_records)
    for group, kept in zip(fresh, step, strict=False):
        too_many = {one.record for one in group.records} - {one.record for one in kept.records}
        out[group.task] = (*left.stale_records[group.task], *sorted(too_many))
    return replace(left, fresh=(*step, *fresh[len(step) :]), stale_records=out), len(alone)


def _limited(groups: Sequence[ReadyGroup], now: Situation, wanted: BatchTarget) -> list[ReadyGroup]:
    """The groups of a step, each without its forks beyond the share."""
    forks = [[record for record in group.records if record.intervened] for group in groups]
    allowed = fork_rules.limited(
        [(len(group.records), len(of)) for group, of in zip(groups, forks, strict=True)],
        share=wanted.intervened_share,
        recent=now.trained,
        recent_intervened=now.trained_intervened,
    )
    kept = []
    for group, of, most in zip(groups, forks, allowed, strict=True):
        kept.append(replace(group, records=tuple(one for one in group.records if one not in of[most:])))
    return kept


def _last(left: Cut, wanted: BatchTarget) -> Decision:
    if wanted.last_batch == "take" and (left.fresh or left.flat):
        return _step(left, left.fresh)
    return Decision("end", "nothing is left to sample or to train")


def _step(left: Cut, chosen: tuple[ReadyGroup, ...]) -> Decision:
    groups = "1 group" if len(chosen) == 1 else f"{len(chosen)} groups"
    why = f"{groups} with signal" if chosen else "no group has signal: the step is empty"
    if left.flat:
        why += f", {len(left.flat)} without"
    return Decision(
        "step",
        why,
        groups=chosen,
        filtered=tuple(group.task for group in left.flat),
        stale_records=tuple(record for group in chosen for record in left.stale_records[group.task]),
        stale_groups=left.stale_groups,
    )


def _in_turn(fresh: tuple[ReadyGroup, ...], now: Situation, freshness: Freshness) -> tuple[ReadyGroup, ...]:
    """The oldest admitted groups first. Under `wait`, groups that the step would make too old go before them: they are
    finished, so only training them now can save them."""
    if not now.publishes:
        return fresh
    return tuple(sorted(fresh, key=lambda group: not _waits(group, freshness)))


def _waits(group: ReadyGroup, freshness: Freshness) -> bool:
    rule = freshness.of(group.environment)
    return rule.strategy == "wait" and any(record.age >= rule.oldest for record in group.records)


def _held_back(now: Situation, freshness: Freshness) -> str:
    """Why a step would make records under way too old."""
    if not now.publishes:
        return ""
    rules = [(one.age, freshness.of(one.environment)) for one in now.under_way]
    pushed = sum(
        1 for age, rule in rules if rule.strategy == "wait" and age == rule.oldest and now.waited_s < rule.wait_limit_s
    )
    return f"{pushed} records under way would be pushed past their bound" if pushed else ""
