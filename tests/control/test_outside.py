"""What another bound would leave outside: counted by the steward, whoever takes Steps, and also where nobody does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentrl.control.handlers.outside import Outside, outside
from agentrl.errors import RefusedError, UnavailableError
from agentrl.protocol.data_commands import StalenessReport
from agentrl.protocol.effects import Effect
from agentrl.protocol.rows import KnobValue
from agentrl.protocol.specs import Role
from agentrl.protocol.wire import raw

REPORT = StalenessReport(bound=2, version=9, ready={0: 8, 1: 4, 2: 2, 4: 1}, under_way={0: 3, 2: 1, 3: 1})
CHANGE = Effect(changes=("bound: 2 -> 1",))


def desk(answer: StalenessReport | None = REPORT, **values: KnobValue) -> Outside:
    known = {"bound": 2, "hard_bound": 0, "strategy": "drop", "groups": 4} | values
    roles = {"trainer": Role.TRAINER, "web": Role.SIDECAR}

    async def ask(*_: object) -> object:
        if answer is None:
            raise UnavailableError("steward-0 is backoff.")
        return raw(answer)

    knobs = SimpleNamespace(
        declaration=lambda name: SimpleNamespace(owner="web" if name == "bound" and "web" in values else "trainer"),
        names=lambda: sorted(known),
        value=known.__getitem__,
    )
    groups = {name: SimpleNamespace(spec=SimpleNamespace(role=role)) for name, role in roles.items()}
    context = SimpleNamespace(knobs=knobs, state=SimpleNamespace(groups=groups))
    return Outside(cast(Any, context), cast(Any, SimpleNamespace(ask=ask)))


async def test_a_tighter_bound_tells_how_many_would_be_outside_and_that_they_are_lost() -> None:
    effect = await desk().told("bound", 1, CHANGE, taken=True)
    assert effect.loses == (
        "3 of 15 ready records would be outside (1 already) and dropped; 1 under way would come too late",
    )


async def test_where_nobody_takes_a_step_the_number_is_told_all_the_same_and_nothing_is_lost() -> None:
    """Once training has ended there is no owner that could be asked; the records are there."""
    effect = await desk().told("bound", 0, CHANGE, taken=False)
    assert effect.loses == ()
    assert effect.changes[1] == (
        "7 of 15 ready records would be outside (1 already), though nobody takes a step now; "
        "1 under way would come too late"
    )


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        (3, "1 of 15 ready records would be outside (all already)"),
        (4, "none of 15 ready records would be outside"),
    ],
)
async def test_a_looser_bound_loses_nothing(bound: int, said: str) -> None:
    effect = await desk().told("bound", bound, CHANGE, taken=True)
    assert (effect.loses, effect.changes[1]) == ((), said)


async def test_under_decay_the_hard_bound_counts_and_the_bound_does_not() -> None:
    decaying = desk(strategy="decay", hard_bound=4)
    assert not (await decaying.told("bound", 1, CHANGE, taken=True)).loses
    assert (await decaying.told("hard_bound", 2, CHANGE, taken=True)).loses
    assert (await desk(strategy="decay", hard_bound=4).told("strategy", "drop", CHANGE, taken=True)).loses
    with pytest.raises(RefusedError, match="smaller than the bound"):
        await decaying.told("bound", 5, CHANGE, taken=True)


async def test_records_that_nobody_could_count_are_not_taken_for_none() -> None:
    tighter = await desk(None).told("bound", 1, CHANGE, taken=True)
    assert tighter.loses == ("how old the ready records are is not known: steward-0 is backoff.",)
    assert not (await desk(None).told("bound", 3, CHANGE, taken=True)).loses


async def test_other_knobs_are_none_of_its_business() -> None:
    assert await desk().told("groups", 1, CHANGE, taken=True) == CHANGE
    assert await desk(web=1).told("bound", 1, CHANGE, taken=True) == CHANGE, "a knob of that name of somebody else"


def test_one_record_is_one_record() -> None:
    one = StalenessReport(bound=2, ready={2: 1})
    assert outside(one, 2, 1, taken=True) == ("1 of 1 ready record would be outside and dropped", True)
