"""The knobs of the steward: admission, and how long data is kept.

Invariants: a group keeps the values that it was admitted with; a preview refuses values that contradict each other (a
group larger than what may be in flight); at a start all values come into force together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from agentrl.config import policy_rules
from agentrl.config.knobs import unit_knobs
from agentrl.config.run import RunConfig
from agentrl.formatting.amounts import counted
from agentrl.policies.admission_capacity import Counts
from agentrl.protocol.knob import Knob, plain_value
from agentrl.protocol.specs import Role
from agentrl.steward.settings import StewardSettings
from agentrl.unit import LiveKnob, Unit

KEPT = ("details_s", "data_max_bytes", "disk_reserve_bytes")


class StewardKnobs:
    """`settings` returns the present settings, `counts` the newest counts of records."""

    def __init__(
        self,
        unit: Unit,
        config: RunConfig,
        settings: Callable[[], StewardSettings],
        *,
        counts: Callable[[], Counts],
        on_change: Callable[[StewardSettings], None],
    ) -> None:
        self._unit = unit
        self._settings = settings
        self._counts = counts
        self._on_change = on_change
        self._training = config.training
        knobs = [self._declare(knob) for knob in unit_knobs(config, Role.STEWARD).values()]
        self._take({knob.name: knob.value for knob in knobs})

    def _declare(self, knob: Knob) -> LiveKnob[int]:
        preview = self._preview_of_past if knob.looks_back else self._preview
        return self._unit.declare(
            knob,
            on_change=lambda value: self._take({knob.name: value}),
            preview=partial(preview, knob.name),
        )

    def _take(self, values: Mapping[str, int | float]) -> None:
        self._on_change(self._settings().with_knobs(values))

    def _preview_of_past(self, name: str, value: int | float) -> str:
        """Checks a value and says when it takes effect; its effect on past batches is counted elsewhere."""
        self._settings().with_knobs({name: value})
        policy_rules.refuse_with_a_critic(self._training, {name: value})
        if "." in name:
            part, _, key = name.rpartition(".")
            return "" if key == "score" else f"it holds for rows of {part} that are queued from now on"
        return "groups that are admitted already keep what was set at their admission"

    def _preview(self, name: str, value: int | float) -> str:
        after = self._settings().with_knobs({name: value})
        if name in KEPT:
            return f"{name} becomes {value:,} with the next look at the disks; what was removed does not come back"
        flying = self._counts().in_flight
        under_way = f"{counted(flying, 'records')} {'is' if flying == 1 else 'are'}"
        if name == "max_in_flight":
            room = after.max_in_flight - flying
            if room < 0:
                return f"{under_way} under way; none are admitted until {-room} of them have ended"
            return f"{under_way} under way; up to {room} more may be"
        kept = (
            f"{counted(flying, 'records')} under way {'keeps' if flying == 1 else 'keep'} what was set at the admission"
        )
        if name == "n":
            batch = counted(after.plan({}).batch, "records")
            return (
                f"groups admitted from now on have {counted(int(value), 'members')}, and a step up to {batch}; {kept}"
            )
        return f"{name} becomes {plain_value(value)} for what is admitted from now on; {kept}"
