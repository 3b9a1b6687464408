"""From stored documents to what trains: exact tokens, exact ages, and nothing that cannot be recomputed."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from agentrl.policies.freshness import Freshness
from agentrl.policies.version_tree import VersionTree
from agentrl.store.document_ids import call_id
from agentrl.store.documents import DBRecordData, DispatchedSamplingTask
from agentrl.tokens.binary_format import pack_floats, pack_ids
from agentrl.tokens.token_tree import TokenTree
from agentrl.training.batch import BrokenTrajectoryError
from agentrl.training.batch_assembly import UntrainableSamplingError, assemble, refuse_untrainable, trajectory_of
from tests.training.trees import Call, fork, some

TREE = VersionTree({1: None, 2: 1, 3: 2, 4: 1})
RECORD = "shop/train/0/000000#r1.s0.a1"


def stored(
    calls: list[Call],
    *,
    record: str = RECORD,
    versions: list[tuple[int, int]] | None = None,
    advantage: float | None = 1.0,
) -> tuple[DBRecordData, list[DispatchedSamplingTask]]:
    tree = TokenTree()
    documents = []
    for index, prompt, output in calls:
        base, length = tree.base(prompt)
        tree.insert(index, prompt, output)
        documents.append(
            DispatchedSamplingTask(
                id=call_id(record, index),
                record=record,
                index=index,
                base="" if base is None else call_id(record, base),
                base_length=length,
                prompt=pack_ids(prompt[length:]),
                output=pack_ids(output),
                log_probs=pack_floats([-float(index) - at / 64 for at in range(len(output))]),
                versions=versions or [(1, len(output))],
                sampling={"temperature": 0.5 + index},
            )
        )
    return DBRecordData(id=record, task="shop/train/0/000000", spans=tree.spans, advantage=advantage), documents


@pytest.mark.parametrize("number", range(5))
def test_every_generated_token_keeps_its_log_prob_and_temperature(number: int) -> None:
    chance = random.Random(number)
    calls = fork(chance, some(chance, 4, 6), 3)
    trajectory = trajectory_of(*stored(calls))
    found = {}
    for index, segment in enumerate(trajectory.segments):
        if segment.trains:
            context: list[int] = []
            at = segment.parent
            while at >= 0:
                context = [*trajectory.segments[at].ids, *context]
                at = trajectory.segments[at].parent
            for offset, token in enumerate(segment.ids):
                place = (round(segment.temperature - 0.5), tuple([*context, *segment.ids[:offset]]))
                assert place not in found, index
                found[place] = (token, segment.log_probs[offset])
    assert found == {
        (index, tuple(prompt + output[:at])): (token, -float(index) - at / 64)
        for index, prompt, output in calls
        for at, token in enumerate(output)
    }


def test_versions_follow_their_tokens_and_the_oldest_decides() -> None:
    data, calls = stored([(0, [1, 2], [3, 4, 5, 6])], versions=[(1, 1), (3, 3)])
    made = assemble(7, 3, [data], calls, TREE, Freshness(bound=2))
    assert made.batch.trajectories[0].versions == {1: 1, 3: 3}
    assert made.batch.ages == {1: 2, 3: 0}
    late = assemble(7, 3, [data], calls, TREE, Freshness(bound=1))
    assert late.stale == (data.id,)
    assert late.batch.trajectories == []


def test_age_goes_over_the_common_ancestor_of_two_lineages() -> None:
    data, calls = stored([(0, [1, 2], [3, 4])], versions=[(3, 2)])
    made = assemble(7, 4, [data], calls, TREE, Freshness(bound=3))
    assert made.batch.ages == {3: 3}
    assert assemble(7, 4, [data], calls, TREE, Freshness(bound=2)).stale == (data.id,)


def test_environments_have_their_own_bounds_and_decay() -> None:
    rules = Freshness("drop", 0, of_environments={"slow": Freshness("decay", 1, hard_bound=2)})
    data, calls = stored([(0, [1, 2], [3, 4])], versions=[(1, 2)])
    late = assemble(7, 3, [data], calls, TREE, rules, environments={data.task: "fast"})
    assert late.stale == (data.id,)
    slow = assemble(7, 3, [data], calls, TREE, rules, environments={data.task: "slow"})
    assert [one.decays for one in slow.batch.trajectories] == [True]
    fresh = assemble(7, 1, [data], calls, TREE, rules, environments={data.task: "fast"})
    assert [one.decays for one in fresh.batch.trajectories] == [False]


def test_advantages_are_brought_to_one_scale_within_an_environment() -> None:
    sizes = {"a": (1.0, 2), "b": (-3.0, 1), "c": (8.0, 1)}
    data, calls = [], []
    for name, (advantage, tokens) in sizes.items():
        one, its = stored([(0, [1, 2], [3, 4, 5][:tokens])], record=name, advantage=advantage)
        data.append(msgspec.structs.replace(one, task=f"task {name}", capped=name == "a"))
        calls += its
    environments = {"task a": "shop", "task b": "shop", "task c": "alone"}
    made = assemble(1, 1, data, calls, TREE, Freshness(), environments=environments, normalise=True).batch
    found = {one.record: one.advantage for one in made.trajectories}
    mean, spread = (2 * 1.0 - 3.0) / 3, (32 / 9) ** 0.5
    assert found["b"] == pytest.approx((-3.0 - mean) / spread, rel=1e-5)
    assert found["a"] == 0.0, "capped again: it stood above the mean"
    assert found["c"] == 8.0, "one group alone stays as it is"
    even = assemble(1, 1, data, calls, TREE, Freshness(), environments=environments, balance=True).batch
    shrunk = {one.record: one.advantage for one in even.trajectories}
    assert shrunk == pytest.approx({"a": 0.3, "b": -3.0, "c": 2.4}), "2 · 1 + 8 against 3"


def played() -> tuple[DBRecordData, list[DispatchedSamplingTask]]:
    """Three turns. The second one edits the context and the third one does not, so the third comes first in the
    tree."""
    calls: list[Call] = [(0, [1, 2], [3, 4]), (1, [1, 2, 9], [7, 8]), (2, [1, 2, 3, 4, 5], [6])]
    data, documents = stored(calls, advantage=2.0)
    return data, [msgspec.structs.replace(one, turn=one.index) for one in documents]


def test_turns_may_have_advantages_of_their_own() -> None:
    data, calls = played()
    assert {one.advantage for one in trajectory_of(data, calls).segments} == {None}
    data = msgspec.structs.replace(data, turns=[0.5, -1.0, 1.5])
    one = trajectory_of(data, calls)
    assert [one.segments[at].advantage for at in one.trained_segments] == [0.5, -1.0, 1.5]
    assert [one.segments[at].ids.tolist() for at in one.trained_segments] == [[3, 4], [7, 8], [6]], (
        "in the order of time"
    )
    even = assemble(1, 1, [data], calls, TREE, Freshness(), balance=True).batch.trajectories[0]
    shares = [even.segments[at].advantage for at in even.trained_segments]
    assert shares == pytest.approx([0.4, -1.0, 1.2]), "2 · 0.5 + 1.5 against 2 · 1"


def test_a_critic_gets_the_score_after_the_last_token_and_rewards_after_their_turns() -> None:
    data, calls = played()
    data = msgspec.structs.replace(data, turns=[0.5, 0.0, 0.25], capped=True)
    (one,) = assemble(1, 1, [data], calls, TREE, Freshness(), critic=True).batch.trajectories
    assert [one.segments[at].reward for at in one.trained_segments] == [0.5, 0.0, 2.25]
    assert (one.advantage, one.capped) == (0.0, True)


def test_records_without_advantage_do_not_train() -> None:
    data, calls = stored([(0, [1, 2], [3, 4])], advantage=None)
    assert assemble(1, 1, [data], calls, TREE, Freshness()).batch.trajectories == []


def broken(change: str) -> tuple[DBRecordData, list[DispatchedSamplingTask]]:
    data, calls = stored([(0, [1, 2], [3, 4]), (1, [1, 2, 3, 4, 5], [6])])
    changes: dict[str, Any] = {
        "base": {"base": "somewhere else"},
        "tokens": {"output": pack_ids([])},
        "log_probs": {"log_probs": pack_floats([-1.0] * 0)},
        "versions": {"versions": []},
    }
    if change == "call":
        return data, calls[:1]
    return data, [calls[0], msgspec.structs.replace(calls[1], **changes[change])]


@pytest.mark.parametrize("change", ["call", "base", "tokens", "log_probs", "versions"])
def test_a_record_whose_tokens_do_not_fit_together_is_left_out_and_named(
    change: str, caplog: pytest.LogCaptureFixture
) -> None:
    data, calls = broken(change)
    with pytest.raises(BrokenTrajectoryError):
        trajectory_of(data, calls)
    good, more = stored([(0, [1, 2], [3, 4])], record="good")
    made = assemble(1, 1, [data, good], [*calls, *more], TREE, Freshness())
    assert made.broken == (RECORD,)
    assert [one.record for one in made.batch.trajectories] == ["good"]
    assert RECORD in caplog.text


@pytest.mark.parametrize(
    "sampling", [{"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.1}, {"frequency_penalty": 1}, {"temperature": 0}]
)
def test_sampling_beyond_temperature_is_refused(sampling: dict[str, float]) -> None:
    with pytest.raises(UntrainableSamplingError, match="sampled"):
        refuse_untrainable({"temperature": 1.0, **sampling})
    assert refuse_untrainable({"temperature": 0.7, "top_p": 1.0, "top_k": -1}) == 0.7
