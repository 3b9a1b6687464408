"""A preview of a staleness bound counts the ready records that become too old."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from agentrl.control.commands.staleness_effect import StalenessPreview, describe
from agentrl.errors import RefusedError, UnavailableError
from agentrl.protocol.data_commands import StalenessReport
from agentrl.protocol.effects import Effect
from agentrl.protocol.knob import KnobValue
from agentrl.protocol.specs import Role
from agentrl.protocol.wire import raw

REPORT = StalenessReport(bound=2, version=9, ready={0: 8, 1: 4, 2: 2, 4: 1}, under_way={0: 3, 2: 1, 3: 1})
CHANGE = Effect(changes=("bound: 2 -> 1",))


def preview(answer: StalenessReport | None = REPORT, **values: KnobValue) -> StalenessPreview:
    """A preview with these knob values. The steward gives this answer, or is away if it is None. With `web`, the knob
    `bound` belongs to a sidecar."""
    known = {"bound": 2, "hard_bound": 0, "strategy": "drop", "groups": 4} | values
    roles = {"trainer": Role.TRAINER, "web": Role.SIDECAR}

    async def ask(*_: object) -> msgspec.Raw:
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
    return StalenessPreview(cast(Any, context), ask)


@pytest.mark.parametrize(
    ("bound", "taken", "loses", "changes"),
    [
        (
            1,
            True,
            "3 of 15 ready records would be outside (1 already) and dropped; 1 under way would come too late",
            "",
        ),
        (
            0,
            False,
            "",
            "7 of 15 ready records would be outside (1 already), although no trainer takes steps now; "
            "1 under way would come too late",
        ),
        (3, True, "", "1 of 15 ready records would be outside (all already)"),
        (4, True, "", "none of 15 ready records would be outside"),
    ],
    ids=["tighter", "tighter without a trainer", "looser", "wide"],
)
async def test_effect_of_a_bound_counts_the_records_that_become_too_old(
    bound: int, taken: bool, loses: str, changes: str
) -> None:
    effect = await preview().extend("bound", bound, CHANGE, taken=taken)
    assert (effect.loses, effect.changes[1:]) == ((loses,) if loses else (), (changes,) if changes else ())


async def test_under_decay_the_hard_bound_counts_and_the_bound_does_not() -> None:
    decaying = preview(strategy="decay", hard_bound=4)
    assert not (await decaying.extend("bound", 1, CHANGE, taken=True)).loses
    assert (await decaying.extend("hard_bound", 2, CHANGE, taken=True)).loses
    assert (await decaying.extend("strategy", "drop", CHANGE, taken=True)).loses
    with pytest.raises(RefusedError, match="smaller than the bound"):
        await decaying.extend("bound", 5, CHANGE, taken=True)


async def test_without_a_steward_a_tighter_bound_counts_as_a_loss() -> None:
    tighter = await preview(None).extend("bound", 1, CHANGE, taken=True)
    assert tighter.loses == ("how old the ready records are is not known: steward-0 is backoff.",)
    assert not (await preview(None).extend("bound", 3, CHANGE, taken=True)).loses


async def test_other_knobs_keep_their_effect() -> None:
    assert await preview().extend("groups", 1, CHANGE, taken=True) == CHANGE
    assert await preview(web=1).extend("bound", 1, CHANGE, taken=True) == CHANGE, (
        "a sidecar's knob of the same name is another knob"
    )


def test_one_record_is_counted_in_the_singular() -> None:
    one = StalenessReport(bound=2, ready={2: 1})
    assert describe(one, 2, 1, taken=True) == ("1 of 1 ready record would be outside and dropped", True)
