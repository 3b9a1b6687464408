"""`checkpoints pin` and `checkpoints unpin`, as the steward answers them."""

from __future__ import annotations

import pytest

from agentrl.errors import UnknownNameError
from agentrl.protocol.data_changes import PinCheckpoint, UnpinCheckpoint
from agentrl.store import checkpoints
from agentrl.store.database import Database
from agentrl.store.documents import to_bson
from agentrl.store.weight_documents import Publication
from tests.steward.test_queries import asked


async def test_a_checkpoint_is_pinned_and_left_again(db: Database) -> None:
    made = await checkpoints.begin(db, step=20, lineage="trainer-0.1", version=3, path="checkpoints/step-000020")
    with pytest.raises(UnknownNameError, match="no complete checkpoint"):
        await asked(db, "pin_checkpoint", PinCheckpoint(made.id), dry_run=True)
    await checkpoints.complete(db, made.id, {})
    assert not (await asked(db, "pin_checkpoint", PinCheckpoint(made.id), dry_run=True)).empty
    await asked(db, "pin_checkpoint", PinCheckpoint(made.id))
    assert not await checkpoints.superfluous(db, keep=0)
    assert (await asked(db, "pin_checkpoint", PinCheckpoint(made.id), dry_run=True)).empty
    await asked(db, "unpin_checkpoint", UnpinCheckpoint(made.id))
    assert [one.id for one in await checkpoints.superfluous(db, keep=0)] == [made.id]


async def test_unpin_releases_a_checkpoint_that_is_kept_for_a_reason_but_not_the_best(db: Database) -> None:
    results = {"evaluation": 0.9, "evaluation_margin": 0.05}
    best = Publication(id=2, lineage="trainer-0.1", step=20, evaluation="done", evaluated=results)
    await db.insert_many("Publication", [to_bson(best)])
    made = []
    for step, version in ((20, 2), (30, 3)):
        one = await checkpoints.begin(db, step=step, lineage="trainer-0.1", version=version, path=f"checkpoints/{step}")
        await checkpoints.complete(db, one.id, {})
        await checkpoints.keep(db, one.id, "before learning_rate 0.001 -> 0.05")
        made.append(one.id)
    for name in made:
        preview = await asked(db, "unpin_checkpoint", UnpinCheckpoint(name), dry_run=True)
        assert preview.empty is (name == made[0])
        await asked(db, "unpin_checkpoint", UnpinCheckpoint(name))
    assert [one.id for one in await checkpoints.superfluous(db, keep=0)] == [made[1]]
    assert (await checkpoints.get(db, made[0])).kept_for == checkpoints.BEST_EVALUATION
