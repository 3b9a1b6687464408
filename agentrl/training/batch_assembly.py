"""From the documents of a Step to what it trains.

Invariants: tokens come from the stored calls and from nowhere else; a record whose oldest trained token is past the
bound trains nothing, whatever was believed when the Step was leased; a call that was sampled in a way whose log-probs
cannot be recomputed is refused, never approximated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agentrl.errors import ConfigError
from agentrl.policies import advantages
from agentrl.policies.freshness import Freshness
from agentrl.policies.version_tree import VersionTree
from agentrl.store.documents import DBRecordData, DispatchedSamplingTask
from agentrl.tokens import version_runs
from agentrl.tokens.binary_format import unpack_floats, unpack_ids
from agentrl.tokens.spans import Span, StoredCall, span_ids
from agentrl.training.batch import Batch, BrokenTrajectoryError, Segment, Trajectory, checked

log = logging.getLogger("trainer")

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (None, 1, 1.0),
    "top_k": (None, -1, 0),
    "min_p": (None, 0, 0.0),
    "frequency_penalty": (None, 0, 0.0),
    "presence_penalty": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
    "regex": (None, ""),
    "json_schema": (None, ""),
    "ebnf": (None, ""),
}
"""Values of sampling parameters under which the engine's distribution is softmax(logits / temperature)."""


class UntrainableSamplingError(ConfigError):
    """Tokens were sampled from a distribution that the trainer cannot recompute."""


@dataclass(frozen=True, slots=True)
class Made:
    """A batch, and who is not in it."""

    batch: Batch
    stale: tuple[str, ...] = ()
    """Records past the bound."""
    broken: tuple[str, ...] = ()
    """Records whose stored tokens do not fit together; why is in the log."""


def make_batch(
    step: int,
    base_version: int,
    data: Sequence[DBRecordData],
    calls: Iterable[DispatchedSamplingTask],
    tree: VersionTree,
    freshness: Freshness,
    *,
    environments: Mapping[str, str] | None = None,
    normalise: bool = False,
) -> Made:
    """`calls` are all calls of these records. Records without advantage do not train. `environments` names the
    environment of every Task; `normalise` brings the advantages of each to one scale."""
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
            trajectory = trajectory_of(one, of_record.get(one.id, []))
        except BrokenTrajectoryError as wrong:
            log.error("%s does not train: %s", one.id, wrong.message)
            broken.append(one.id)
            continue
        rule = freshness.of((environments or {}).get(one.task, ""))
        if rule.allows(tree.staleness(trajectory.versions, base_version)):
            made.append(msgspec.structs.replace(trajectory, decays=rule.strategy == "decay"))
        else:
            stale.append(one.id)
    if normalise:
        made = _normalised(made, data, environments or {})
    seen = {version for trajectory in made for version in trajectory.versions}
    ages = {version: tree.age(version, base_version) for version in sorted(seen)}
    return Made(Batch(step=step, base_version=base_version, trajectories=made, ages=ages), tuple(stale), tuple(broken))


def _normalised(
    made: Sequence[Trajectory], data: Sequence[DBRecordData], environments: Mapping[str, str]
) -> list[Trajectory]:
    capped = {one.id for one in data if one.capped}
    known = [
        advantages.Trained(
            environments.get(one.group, ""), one.group, one.advantage, one.trained_tokens, one.record in capped
        )
        for one in made
    ]
    return [
        msgspec.structs.replace(one, advantage=advantage)
        for one, advantage in zip(made, advantages.normalized(known), strict=True)
    ]


def trajectory_of(data: DBRecordData, calls: Sequence[DispatchedSamplingTask]) -> Trajectory:
    """The token tree of a record with everything that its tokens were sampled with."""
    known = {call.index: call for call in calls}
    index_of = {call.id: call.index for call in calls}
    stored = {call.index: _stored(call, index_of) for call in calls}
    segments: list[Segment] = []
    for span in data.spans:
        call = known.get(span.call)
        if call is None:
            raise BrokenTrajectoryError(f"{data.id} has a span of call {span.call}, which is not stored.")
        segments.append(_segment(span, call, stored))
    return checked(
        Trajectory(record=data.id, group=data.task, segments=segments, advantage=float(data.advantage or 0.0))
    )


def refuse_untrainable(sampling: Mapping[str, Any]) -> float:
    """The temperature; UntrainableSamplingError if more than that was done to the distribution."""
    for name, neutral in NEUTRAL.items():
        if name in sampling and sampling[name] not in neutral:
            raise UntrainableSamplingError(
                f"A call that should train was sampled with {name}={sampling[name]!r}; its log-probs cannot be "
                f"recomputed.",
                hint=f"Leave {name} out of the sampling of training; evaluation may use it.",
            )
    temperature = float(sampling.get("temperature", 1.0))
    if temperature <= 0:
        raise UntrainableSamplingError(
            "A call that should train was sampled greedily, so there is no distribution to learn from.",
            hint="Set a temperature above 0 for training.",
        )
    return temperature


def _segment(span: Span, call: DispatchedSamplingTask, stored: Mapping[int, StoredCall]) -> Segment:
    try:
        ids = span_ids(span, stored)
    except ValueError as broken:
        raise BrokenTrajectoryError(f"{call.record}: {broken}.") from None
    if span.kind != "model":
        return Segment(parent=span.parent, ids=ids)
    log_probs = unpack_floats(call.log_probs)[span.start : span.start + span.length]
    try:
        runs = version_runs.cut(call.versions, span.start, span.length)
    except ValueError as broken:
        raise BrokenTrajectoryError(f"{call.id}: {broken}.") from None
    return Segment(
        parent=span.parent,
        ids=ids,
        trains=True,
        log_probs=log_probs,
        versions=runs,
        temperature=refuse_untrainable(call.sampling),
    )


def _stored(call: DispatchedSamplingTask, index_of: Mapping[str, int]) -> StoredCall:
    if call.base and call.base not in index_of:
        raise BrokenTrajectoryError(f"{call.id} builds on {call.base}, which is not stored.")
    base = index_of[call.base] if call.base else None
    return StoredCall(unpack_ids(call.prompt), unpack_ids(call.output), base, call.base_length)
