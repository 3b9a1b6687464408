"""What a recorder writes of a model call, whatever comes between its being shown and its end."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.engines.interface import Generated, Sampling
from agentrl.rollout import episode_recorder
from agentrl.rollout.episode_errors import EndedError
from agentrl.rollout.episode_recorder import Recorder
from agentrl.store.database import Database, StoreUnavailableError
from agentrl.store.documents import DispatchedSamplingTask, Turn, turn_id
from agentrl.store.trajectories import Writer
from tests.store import flow


async def begun(db: Database, writer: Writer) -> Recorder:
    (task,) = await flow.queue(db, 1)
    assert await flow.admit(db, task, n=1)
    owner = await flow.sampler(db)
    claim = await flow.claim_one(db, owner)
    assert claim is not None
    return await Recorder.begin(db, writer, claim, owner)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
async def test_a_call_that_ends_while_it_is_being_shown_has_its_beginning_and_its_end(
    db: Database, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """`turns` of the loop after it was sent: before, at and after the moment at which it is due to be shown."""
    monkeypatch.setattr(episode_recorder, "SHOWN_AFTER_S", 0.0)
    recorder = await begun(db, Writer(db))
    call = recorder.sent(0, [1, 2, 3], Sampling(), "engine-0.1")
    for _ in range(turns):
        await asyncio.sleep(0)
    recorder.answered(call, [1, 2, 3], Generated(ids=[4], log_probs=[-0.5], versions=[(1, 1)], finish="stop"))
    await recorder.settled()
    (stored,) = await db.find("DispatchedSamplingTask", {"record": recorder.record.id})
    assert stored["status"] == "done"
    assert stored["sent_at"]
    assert stored["done_at"]


class AwayOnce(Writer):
    """The store does not take a model call, and everything that comes after it."""

    async def answered(self, call: DispatchedSamplingTask, *, shown: bool = True) -> None:
        raise StoreUnavailableError("MongoDB did not answer.")


async def test_no_tool_call_and_no_turn_is_stored_without_the_tokens_that_asked_for_it(db: Database) -> None:
    recorder = await begun(db, AwayOnce(db))
    call = recorder.sent(0, [1, 2, 3], Sampling(), "engine-0.1")
    recorder.answered(call, [1, 2, 3], Generated(ids=[4], log_probs=[-0.5], versions=[(1, 1)], finish="stop"))
    recorder.turn_over(Turn(id=turn_id(recorder.record.id, 0), record=recorder.record.id, index=0))
    with pytest.raises(EndedError, match="MongoDB did not answer"):
        await recorder.requested(0, 0, server="shop", tool="lookup", arguments={}, session="x")
    assert [await db.count(kind, {}) for kind in ("ToolCall", "Turn")] == [0, 0]
