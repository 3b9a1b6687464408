"""Knobs of groups and curricula: what the steward counts over the last batches, and that values hold as it says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from agentrl.control.commands.past_batches_effect import PastBatchesPreview, not_counted
from agentrl.errors import ConfigError, RefusedError, UnavailableError
from agentrl.policies.curriculum import Stage, Until, Window
from agentrl.policies.group_closing import GroupRule
from agentrl.policies.status_tables import Actor
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.data_commands import PastChange, PastPreview
from agentrl.protocol.effects import Effect
from agentrl.protocol.knob import KnobValue
from agentrl.protocol.wire import raw
from agentrl.queries import past_batches
from agentrl.steward import admission, curriculum
from agentrl.steward.settings import EnvironmentSettings, StewardSettings
from agentrl.store import groups, lineages, steps, tasks
from agentrl.store.database import Database
from agentrl.store.document_ids import epoch_id
from agentrl.store.documents import Epoch, to_bson
from tests.steward.test_rounds import settings
from tests.store import flow

UNTIL = Until("shop", 0.9, 4)


def by() -> StewardSettings:
    return settings(
        environments={"shop": EnvironmentSettings(window=Window(0.0, 1.0))},
        stages=(Stage({"shop": 1}, UNTIL), Stage({"shop": 1})),
    )


async def counted(db: Database, name: str, value: KnobValue, **now: KnobValue) -> str:
    return (await past_batches.preview(db, by, PastPreview(name, value, dict(now)))).sentence


async def test_previews_count_what_the_last_batches_would_have_been(db: Database) -> None:
    assert await counted(db, "min_range", 0.5) == past_batches.NOTHING_YET
    assert await counted(db, "stage_1.score", 0.5) == "the curriculum has not begun, so nothing can be counted"
    await curriculum.stage(db, by().stages)
    await flow.sampler(db)
    lineage = await lineages.begin(db, "trainer-0.1", parent_checkpoint="", after_step=0)
    chosen = []
    for place, scores in enumerate(([0.0, 0.2], [0.0, 1.0], [1.0, 1.0])):
        row = msgspec.structs.replace(flow.row(place), epoch=0)
        await tasks.insert(db, [row])
        assert await flow.admit(db, row, n=2)
        await flow.run_group(db, scores)
        chosen.append(await tasks.get(db, row.id))
    leased = await steps.lease(db, flow.step_of(lineage.id, 1, chosen[:2], filtered=chosen[2:]))
    assert leased is not None
    assert await steps.commit(db, leased.id, {"loss": 0.1})

    assert await counted(db, "min_range", 0.5) == (
        "over the last step, of 3 groups (1 without signal) with 4 records that train: 1 group more would have had no "
        "signal, and 2 records would not have trained"
    )
    assert "nothing would have changed" in await counted(db, "min_range", 0.1)
    # Both members of the first group are wrong, so the better one gets the advantage 0.
    assert "train: 1 record would have had another advantage" in await counted(db, "sign_clip", True)
    assert "nothing would have changed" in await counted(db, "limits", "mask"), "no record reached a limit"
    await db.update_one("Record", {"score": 0.2}, {"$set": {"outcome_class": "limit"}})
    assert "1 record would not have trained" in await counted(db, "limits", "mask")
    assert "1 record would have had another advantage" in await counted(db, "limits", "keep")
    await db.update_one("Record", {"score": 0.2}, {"$set": {"outcome_class": "policy"}})
    assert await counted(db, "groups", 1, groups=2) == (
        "over the last step, 3 groups (1 without signal) would have made 2 steps, and with the present value 1 step"
    )
    assert "of 4 records: nothing would have changed" in await counted(db, "balance", False)
    normal = await counted(db, "normalise", True, balance=False)
    assert "of 4 records 4 would have had another advantage: positive advantages times " in normal
    assert await counted(db, "shop.difficulty_most", 0.9) == (
        "by their last scores the next epoch would leave out 1 (0 too hard, 1 too easy) of 3 rows of shop that were "
        "measured, and now leaves out 0 (0 too hard, 0 too easy)"
    )
    # A row that this epoch leaves out comes back in the next one.
    epoch = Epoch(
        id=epoch_id("shop", "train", 1), environment="shop", epoch=1, rows=3, inserted=3, left_out={"easy": 1}
    )
    await db.insert_new("Epoch", to_bson([epoch]))
    again = [msgspec.structs.replace(flow.row(place), id=f"{epoch.id}/{place}", epoch=1) for place in (0, 1)]
    await tasks.insert(db, again)
    assert "would leave out 0 (0 too hard, 0 too easy) of 2 rows" in await counted(db, "shop.difficulty_most", 0.9)
    assert "stage 1 would go on: it has 3 of 4 groups of shop with a mean of 0.533" in await counted(
        db, "stage_1.score", 0.5
    )
    with pytest.raises(RefusedError, match="cannot be counted"):
        await counted(db, "learning_rate", 1.0)
    with pytest.raises(ConfigError, match="No row has a mean score"):
        await counted(db, "shop.difficulty_least", 1.0)


async def test_a_group_is_closed_by_what_held_at_its_admission(db: Database) -> None:
    """The sampler that closes it has the values of a run file that has no penalty for long records any more."""
    await flow.sampler(db)
    (row,) = await flow.queue(db, 1)
    before = settings(n=2, max_in_flight=4, bound=2, group_rule=GroupRule(overlong_tokens=(10, 20)))
    tuned = before.with_knobs({"min_range": 0.5, "overlong_penalty": 0.5})
    assert (await admission.admit(db, tuned, {})).groups == 1
    for score in (0.0, 0.4):
        claim = await flow.claim_one(db, "sampler-0.1")
        assert claim is not None
        assert await flow.end(db, claim, score)
    assert await groups.close(db, row.id, flow.RULE, Actor.SAMPLER) == "ready"
    closed = await tasks.get(db, row.id)
    assert (closed.signal, closed.reason) == (False, "the scores span only 0.4")


@pytest.mark.parametrize("away", [False, True])
async def test_the_coordinator_adds_what_the_steward_counts(away: bool) -> None:
    asked: list[Any] = []

    async def ask(spec: Any, request: Any, who: str) -> msgspec.Raw:
        asked.append(msgspec.msgpack.decode(request.args, type=PastPreview))
        if away:
            raise UnavailableError("steward-0 is backoff.")
        return raw(PastChange("of 3 groups: nothing would have changed"))

    known = {"balance": True, "normalise": False, "groups": 4}
    knobs = SimpleNamespace(
        declaration=lambda name: SimpleNamespace(looks_back=name != "groups"),
        names=lambda: sorted(known),
        value=known.__getitem__,
    )
    preview = PastBatchesPreview(cast(Any, SimpleNamespace(knobs=knobs)), ask)
    change = Effect(changes=("balance: true -> false",), scientific=True)
    assert await preview.extend("groups", 2, change, taken=True) == change
    (_, sentence) = (await preview.extend("balance", False, change, taken=True)).changes
    assert sentence == (
        "what it would have changed over the last batches is not known: steward-0 is backoff."
        if away
        else "of 3 groups: nothing would have changed"
    )
    assert not_counted(["training.n goes from 2 to 4"]) == ()
    assert "another mix" in not_counted(["curriculum goes from [] to [...]"])[0]
    assert asked == [PastPreview("balance", False, {"balance": True, "normalise": False})]
    assert COMMANDS["preview_past"].served_by == "steward"


async def test_an_environment_with_the_name_of_a_stage_keeps_its_rows(db: Database) -> None:
    def named() -> StewardSettings:
        stages = (Stage({"stage_1": 1}, Until("stage_1", 0.9, 4)), Stage({"stage_1": 1}))
        return settings(environments={"stage_1": EnvironmentSettings()}, stages=stages)

    after = named().with_knobs({"stage_1.score": 0.5})
    assert after.environments == named().environments
    assert after.stages[0].until == Until("stage_1", 0.5, 4)
    said = await past_batches.preview(db, named, PastPreview("stage_1.score", 0.5, {}))
    assert said.sentence == "the curriculum has not begun, so nothing can be counted"
