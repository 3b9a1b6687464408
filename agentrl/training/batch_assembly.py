"""From the stored documents of a step to the batch that it trains.

Invariants:
- tokens come from the stored calls and from nowhere else;
- a record whose oldest trained token is past the bound trains nothing, even if it was fresh when the step was leased;
- a call that was sampled in a way that makes its log-probs impossible to recompute is refused, never approximated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from agentrl.errors import ConfigError
from agentrl.policies import advantages
from agentrl.policies.freshness import Freshness
from agentrl.policies.sampling_rule import NEUTRAL
from agentrl.policies.version_tree import VersionTree
from agentrl.store import calls, publications, steps
from agentrl.store.database import Database
from agentrl.store.documents import DBRecordData, DispatchedSamplingTask, Step
from agentrl.tokens import version_runs
from agentrl.tokens.binary_format import payload
from agentrl.tokens.spans import Span, stored_slice
from agentrl.training.batch import Array, Batch, BrokenTrajectoryError, Segment, Trajectory, checked
from agentrl.training.batch_selection import Selection
from agentrl.training.trainer_knobs import Plan

log = logging.getLogger("trainer")
IMITATED = "demonstrations"
"""The group of everything that is imitated."""


class UntrainableSamplingError(ConfigError):
    """Tokens were sampled from a distribution that the trainer cannot recompute."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """A batch, and the records that are left out of it."""

    batch: Batch
    stale: tuple[str, ...] = ()
    """Records past the bound."""
    broken: tuple[str, ...] = ()
    """Records whose stored tokens do not fit together; the log has the reason."""


async def read_batch(database: Database, leased: Step, look: Selection, plan: Plan, tree: VersionTree) -> Assembled:
    # Records may have been excluded between the look and the lease, which changes the advantages of the others.
    shares = await steps.shares_of(database, leased)
    data = [
        msgspec.structs.replace(record, advantage=share.advantage, capped=share.capped, turns=share.turns)
        for name in leased.tasks
        for record in look.ready[name].records
        if (share := shares.get(record.id)) is not None
    ]
    by_record = await calls.with_tokens(database, [one.id for one in data], texts=False)
    made = assemble(
        leased.step,
        leased.base_version,
        data,
        [call for of_record in by_record.values() for call in of_record],
        tree,
        plan.freshness,
        environments={name: look.ready[name].task.environment for name in leased.tasks},
        normalise=plan.normalise,
        balance=plan.balance,
        critic=plan.loss.critic is not None,
    )
    if not plan.decays_by_time:
        return made
    ages_s = await publications.ages_s(database, made.batch.ages, leased.leased_at)
    return replace(made, batch=msgspec.structs.replace(made.batch, ages_s=ages_s))


def assemble(
    step: int,
    base_version: int,
    data: Sequence[DBRecordData],
    calls: Iterable[DispatchedSamplingTask],
    tree: VersionTree,
    freshness: Freshness,
    *,
    environments: Mapping[str, str] | None = None,
    normalise: bool = False,
    balance: bool = False,
    critic: bool = False,
) -> Assembled:
    """`calls` are all calls of these records. Records without an advantage do not train. `environments` names the
    environment of each task; `normalise` brings the advantages of each environment to one scale; then
    `balance` makes their positive and negative sums equal. With a critic, scores are rewards of the last tokens."""
    of_record: dict[str, list[DispatchedSamplingTask]] = {}
    for call in calls:
        of_record.setdefault(call.record, []).append(call)
    made: list[Trajectory] = []
    stale: list[str] = []
    broken: list[str] = []
    for one in data:
        if one.advantage is None:
            continue
        try:
            trajectory = trajectory_of(one, of_record.get(one.id, []), critic=critic)
        except BrokenTrajectoryError as error:
            log.error("%s does not train: %s", one.id, error.message)
            broken.append(one.id)
            continue
        rule = freshness.of((environments or {}).get(one.task, ""))
        if rule.allows(tree.staleness(trajectory.versions, base_version)):
            made.append(msgspec.structs.replace(trajectory, decays=rule.strategy == "decay"))
        else:
            stale.append(one.id)
    for wanted, change in ((normalise, advantages.normalized), (balance, advantages.balanced)):
        if wanted:
            made = _changed(made, environments or {}, change)
    seen = {version for trajectory in made for version in trajectory.versions}
    ages = {version: tree.age(version, base_version) for version in sorted(seen)}
    batch = Batch(step=step, base_version=base_version, trajectories=made, ages=ages)
    return Assembled(batch, tuple(stale), tuple(broken))


def _changed(
    made: Sequence[Trajectory],
    environments: Mapping[str, str],
    change: Callable[[Sequence[advantages.Trained]], list[float]],
) -> list[Trajectory]:
    """The trajectories with the advantages that `change` computes from all of them."""
    places = [(number, at) for number, one in enumerate(made) for at in one.trained_segments]
    known = [_trained(made[number], made[number].segments[at], environments) for number, at in places]
    changed = list(made)
    for (number, at), advantage in zip(places, change(known), strict=True):
        one = changed[number]
        if one.segments[at].advantage is None:
            changed[number] = msgspec.structs.replace(one, advantage=advantage)
            continue
        segments = list(one.segments)
        segments[at] = msgspec.structs.replace(segments[at], advantage=advantage)
        changed[number] = msgspec.structs.replace(one, segments=segments)
    return changed


def _trained(one: Trajectory, segment: Segment, environments: Mapping[str, str]) -> advantages.Trained:
    own = one.advantage if segment.advantage is None else segment.advantage
    return advantages.Trained(environments.get(one.group, ""), one.group, own, len(segment.ids), one.capped)


def trajectory_of(
    data: DBRecordData,
    calls: Sequence[DispatchedSamplingTask],
    *,
    critic: bool = False,
    imitated: bool = False,
) -> Trajectory:
    """The token tree of a record, with the log-probs, versions and temperatures of its tokens. With a critic, its score
    and the rewards of its turns are given after their last tokens; else turns may have advantages of their own.
    `imitated`: it is an example to imitate, at temperature 1, however it was sampled."""
    known = {call.index: call for call in calls}
    ids = {call.id for call in calls}
    for call in calls:
        if call.base and call.base not in ids:
            raise BrokenTrajectoryError(f"{call.id} builds on {call.base}, which is not stored.")
    arrays = {call.index: _Tokens.of(call) for call in calls}
    missing = [span.call for span in data.spans if span.call not in known]
    if missing:
        raise BrokenTrajectoryError(f"{data.id} has a span of call {missing[0]}, which is not stored.")
    segments = [_segment(span, known[span.call], arrays[span.call], imitated=imitated) for span in data.spans]
    one = Trajectory(
        record=data.id,
        # Imitated records of an environment begin with the same tokens in all tasks, so they are packed together.
        group=IMITATED if imitated else data.task,
        segments=segments,
        advantage=0.0 if critic else float(data.advantage or 0.0),
        capped=data.capped,
    )
    turn_of = {index: call.turn for index, call in known.items()}
    return checked(_rewarded(one, turn_of, data) if critic else _with_turns(one, turn_of, data.turns))


def _with_turns(one: Trajectory, turn_of: Mapping[int, int], turns: Sequence[float]) -> Trajectory:
    """The segments with the advantages of their turns, if turns have their own."""
    if not turns:
        return one
    segments = list(one.segments)
    for at in one.trained_segments:
        turn = turn_of[segments[at].call]
        own = turns[turn] if 0 <= turn < len(turns) else one.advantage
        segments[at] = msgspec.structs.replace(segments[at], advantage=own)
    return msgspec.structs.replace(one, segments=segments)


def _rewarded(one: Trajectory, turn_of: Mapping[int, int], data: DBRecordData) -> Trajectory:
    """The segments with the reward of each turn after its last segment, and the score after the last segment of all."""
    segments = list(one.segments)
    last = {turn_of[segments[at].call]: at for at in one.trained_segments}
    rewards = {at: data.turns[turn] for turn, at in last.items() if 0 <= turn < len(data.turns)}
    if one.trained_segments:
        end = one.trained_segments[-1]
        rewards[end] = rewards.get(end, 0.0) + float(data.advantage or 0.0)
    for at, reward in rewards.items():
        segments[at] = msgspec.structs.replace(segments[at], reward=reward)
    return msgspec.structs.replace(one, segments=segments)


def refuse_untrainable(sampling: Mapping[str, Any]) -> float:
    """Returns the temperature. Raises UntrainableSamplingError if anything else changed the distribution."""
    for name, neutral in NEUTRAL.items():
        if name in sampling and sampling[name] not in neutral:
            raise UntrainableSamplingError(
                f"A call that should train was sampled with {name}={sampling[name]!r}; its log-probs cannot be "
                "recomputed.",
                hint=f"Leave {name} out of the sampling of training; evaluation may use it.",
            )
    temperature = float(sampling.get("temperature", 1.0))
    if temperature <= 0:
        raise UntrainableSamplingError(
            "A call that should train was sampled greedily, so there is no distribution to learn from.",
            hint="Set a temperature above 0 for training.",
        )
    return temperature


class _Tokens(NamedTuple):
    """The stored tokens of a call as arrays."""

    prompt: Array
    output: Array
    log_probs: Array

    @classmethod
    def of(cls, call: DispatchedSamplingTask) -> _Tokens:
        return cls(
            np.frombuffer(payload(call.prompt), "<u4"),
            np.frombuffer(payload(call.output), "<u4"),
            np.frombuffer(payload(call.log_probs), "<f4"),
        )


def _segment(span: Span, call: DispatchedSamplingTask, tokens: _Tokens, *, imitated: bool) -> Segment:
    try:
        ids = tokens.output if span.kind == "model" else tokens.prompt
        part = stored_slice(span, call.base_length, len(ids))
        if span.kind != "model" or call.context:
            return Segment(parent=span.parent, ids=ids[part], call=span.call)
        return Segment(
            parent=span.parent,
            ids=ids[part],
            trains=True,
            log_probs=tokens.log_probs[part],
            versions=version_runs.cut(call.versions, span.start, span.length),
            temperature=1.0 if imitated else refuse_untrainable(call.sampling),
            call=span.call,
        )
    except ValueError as broken:
        raise BrokenTrajectoryError(f"{call.id}: {broken}.") from None
